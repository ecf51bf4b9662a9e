//! The hugetlb pool: pages from it, and an empty one at every moment that matters.

use super::seccomp;
use super::{MIB, PAGE, filled, first_page, holds, kernel, page, page_tier, raw, stage, steps, tier, tier_bytes};
use hg_probes::words::{Cause, Tier, TierReason};
use std::sync::atomic::Ordering::Relaxed;

const HUGETLB: &[(&str, &str)] = &[("HG_TIER", "hugetlb")];

/// As [`stage::in_child`], with so many pages in the pool.
pub(crate) fn with_pool(name: &str, pages: u64, users: &[stage::User]) -> bool {
    stage::in_child_with(name, HUGETLB, users, || kernel::pool_with(pages))
}

#[test]
fn pages_of_the_pool_come_and_go() {
    let name = "hugetlb::pages_of_the_pool_come_and_go";
    if with_pool(name, 16, &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    let free = kernel::pool_free();
    let block = filled(12 * MIB, 1);
    assert_eq!(tier(), (Some(Tier::Hugetlb), Some(TierReason::Obtained)));
    assert_eq!(kernel::pool_free(), free - 8, "a granule is 8 pages");
    assert_eq!((tier_bytes(Tier::Hugetlb), kernel::status_kib("HugetlbPages")), (16 * MIB, 16 << 10));
    let first = first_page(block);
    let range = kernel::smaps(first, first + 4 * PAGE);
    assert_eq!(range.hugetlb_kib, 4 * 2048, "{range:?}");
    assert_eq!(page_tier(first), Some(Tier::Hugetlb));
    assert!(holds(block, 12 * MIB, 1));
    raw::free(block);
    assert!(hg_alloc::trim());
    assert!(kernel::pool_free() >= free - 1, "all whole pages went back to the pool");
    // And come again.
    let block = filled(12 * MIB, 2);
    assert_eq!(page_tier(first_page(block)), Some(Tier::Hugetlb));
    assert!(kernel::pool_free() <= free - 6);
    assert!(holds(block, 12 * MIB, 2));
}

#[test]
fn an_empty_pool_is_a_step_down() {
    if stage::in_child("hugetlb::an_empty_pool_is_a_step_down", HUGETLB, &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    if kernel::pool_free() > 0 {
        return println!("skipped: the pool is not empty");
    }
    let block = filled(12 * MIB, 1);
    let (tier, reason) = tier();
    assert_ne!(tier, Some(Tier::Hugetlb));
    assert_eq!(reason, Some(TierReason::PoolEmpty));
    assert!(steps(TierReason::PoolEmpty) >= 1);
    assert_eq!(page().header.grow_blocked.load(Relaxed), 0);
    assert_eq!(page().header.grows_refused[Cause::Cap as usize].load(Relaxed), 0);
    assert!(holds(block, 12 * MIB, 1));
}

#[test]
fn pages_that_cannot_be_moved_go_back_to_the_pool() {
    let name = "hugetlb::pages_that_cannot_be_moved_go_back_to_the_pool";
    if with_pool(name, 16, &[stage::User::Same]) {
        return;
    }
    seccomp::fail(libc::SYS_mremap, libc::ENOMEM);
    let block = filled(12 * MIB, 1);
    assert_ne!(page_tier(first_page(block)), Some(Tier::Hugetlb));
    assert_eq!((tier().1, kernel::pool_free()), (Some(TierReason::NotOffered), 16));
    assert!(holds(block, 12 * MIB, 1));
}

#[test]
fn a_pool_that_runs_out_between_two_growths() {
    let name = "hugetlb::a_pool_that_runs_out_between_two_growths";
    if with_pool(name, 12, &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    let first = filled(12 * MIB, 1);
    let second = filled(14 * MIB, 2);
    assert_eq!(page_tier(first_page(first)), Some(Tier::Hugetlb));
    assert_ne!(page_tier(first_page(second)), Some(Tier::Hugetlb));
    assert_eq!(tier().1, Some(TierReason::PoolEmpty));
    assert!(holds(first, 12 * MIB, 1) && holds(second, 14 * MIB, 2));
}

#[test]
fn a_pool_emptied_between_release_and_reuse() {
    let name = "hugetlb::a_pool_emptied_between_release_and_reuse";
    if with_pool(name, 16, &[stage::User::Same]) {
        return;
    }
    let block = filled(30 * MIB, 1);
    assert_eq!(page_tier(first_page(block)), Some(Tier::Hugetlb));
    raw::free(block);
    hg_alloc::trim();
    let kept = kernel::pool_free();
    assert!(kept >= 14);
    // Somebody else takes all that is free. No write may end in SIGBUS.
    kernel::set_pool(16 - kept);
    assert_eq!(kernel::pool_free(), 0);
    let block = filled(28 * MIB, 2);
    assert_ne!(page_tier(first_page(block)), Some(Tier::Hugetlb));
    assert_eq!(tier().1, Some(TierReason::PoolEmpty));
    assert!(holds(block, 28 * MIB, 2));
    raw::free(block);
    hg_alloc::trim();
    // The pool is filled again, and the same places have pages of it again.
    kernel::set_pool(16);
    let block = filled(28 * MIB, 3);
    assert_eq!(page_tier(first_page(block)), Some(Tier::Hugetlb));
    assert!(holds(block, 28 * MIB, 3));
}
