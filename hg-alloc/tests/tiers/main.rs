//! Tiers and pins on the real kernel: what the stats page says of a page is what the kernel says of the range.
//!
//! Each scenario runs in a process of its own, as root and as nobody where both can; what needs root is skipped without it,
//! saying so. The hugetlb pool and the settings that tests change are put back when they end, also when they fail. Tests that
//! change them wait for each other.

#[allow(dead_code)]
#[path = "../common/capability.rs"]
mod capability;
mod collapse;
mod fork;
mod hugetlb;
mod kernel;
mod pin;
#[allow(dead_code)]
#[path = "../common/seccomp.rs"]
mod seccomp;
mod settings;
mod shared;
mod stage;
mod sum;

use hg_alloc::raw;
use hg_probes::grid::{PINNED, tier_of};
use hg_probes::page::StatsPage;
use hg_probes::words::{Tier, TierReason};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const MIB: usize = 1 << 20;
const PAGE: usize = 2 * MIB;

fn page() -> &'static StatsPage {
    hg_alloc::stats_page().expect("something was allocated")
}

fn tier() -> (Option<Tier>, Option<TierReason>) {
    let header = &page().header;
    let (tier, reason) = (header.tier.load(Relaxed), header.tier_reason.load(Relaxed));
    (Tier::from_u64(tier.into()), TierReason::from_u64(reason.into()))
}

fn tier_bytes(tier: Tier) -> usize {
    page().header.tier_bytes[tier as usize].load(Relaxed) as usize
}

fn steps(reason: TierReason) -> u64 {
    page().header.tier_reasons[reason as usize].load(Relaxed)
}

/// The byte of the page of the grid that an address lies on.
fn page_byte(address: usize) -> u8 {
    let header = &page().header;
    let index = (address - header.base_address.load(Relaxed) as usize) / PAGE;
    let byte = (header.tiers_address.load(Relaxed) as usize + index) as *const AtomicU8;
    // SAFETY: the bytes of pages below the top are accessible for ever, and the address is of a live block.
    unsafe { (*byte).load(Relaxed) }
}

fn page_tier(address: usize) -> Option<Tier> {
    Tier::from_u64(tier_of(page_byte(address)).into())
}

fn page_pinned(address: usize) -> bool {
    page_byte(address) & PINNED != 0
}

/// Allocates a block and writes to each base page of it.
fn filled(bytes: usize, value: u8) -> *mut u8 {
    let block = raw::malloc(bytes);
    assert!(!block.is_null(), "{bytes} bytes are to be had");
    filled_at(block, bytes, value);
    block
}

/// Writes to each base page of a block.
fn filled_at(block: *mut u8, bytes: usize, value: u8) {
    for offset in (0..bytes).step_by(4096) {
        // SAFETY: within a live block.
        unsafe { block.add(offset).write_volatile(value) };
    }
}

/// Whether each base page of a block still begins with its value.
fn holds(block: *mut u8, bytes: usize, value: u8) -> bool {
    // SAFETY: within a live block.
    (0..bytes).step_by(4096).all(|offset| unsafe { block.add(offset).read_volatile() } == value)
}

/// The first whole page of the grid in a block.
fn first_page(block: *mut u8) -> usize {
    (block as usize).next_multiple_of(PAGE)
}

#[test]
fn huge_pages_by_advice() {
    let name = "huge_pages_by_advice";
    if stage::in_child(name, &[("HG_TIER", "thp")], &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    if kernel::chosen("enabled").is_none_or(|word| word == "never") {
        return println!("skipped: this kernel gives no huge pages");
    }
    let block = filled(12 * MIB, 1);
    if tier() != (Some(Tier::Thp), Some(TierReason::Obtained)) {
        // Memory may be fragmented, but then nothing may claim otherwise.
        assert_ne!(tier().1, Some(TierReason::Obtained));
        return println!("skipped: the kernel has no huge page, {:?}", tier());
    }
    let first = first_page(block);
    let range = kernel::smaps(first, first + 5 * PAGE);
    assert_eq!(range.huge_kib, 5 * 2048, "the kernel backs what the page says: {range:?}");
    assert_eq!(page_tier(first), Some(Tier::Thp));
    assert_eq!(tier_bytes(Tier::Thp), 16 * MIB);
    // The next growth looks at what the first one got, now that it is used.
    let more = filled(24 * MIB, 2);
    assert_eq!(page_tier(first + 4 * PAGE), Some(Tier::Thp));
    assert!(holds(block, 12 * MIB, 1) && holds(more, 24 * MIB, 2));
    raw::free(more);
    raw::free(block);
}

#[test]
fn a_page_that_lost_its_huge_page_says_so() {
    let name = "a_page_that_lost_its_huge_page_says_so";
    if stage::in_child(name, &[("HG_TIER", "thp")], &[stage::User::Same]) {
        return;
    }
    let block = filled(12 * MIB, 1);
    if tier().0 != Some(Tier::Thp) || !kernel::tells_huge_pages() {
        return println!("skipped: no huge page, or a kernel before 6.7");
    }
    let first = first_page(block);
    // SAFETY: the range lies in a live block; the kernel forgets its contents.
    let split = unsafe { libc::madvise((first + PAGE / 2) as *mut libc::c_void, 4096, libc::MADV_DONTNEED) };
    assert_eq!(split, 0);
    assert_eq!(page_tier(first), Some(Tier::Thp), "nobody looked yet");
    raw::free(filled(24 * MIB, 2));
    assert_eq!(page_tier(first), Some(Tier::Base));
    assert_eq!(page_tier(first + PAGE), Some(Tier::Thp));
}

#[test]
fn half_a_huge_page_goes_back_for_good() {
    let name = "half_a_huge_page_goes_back_for_good";
    if stage::in_child(name, &[("HG_TIER", "thp")], &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    // Blocks side by side, so that one page has nothing but some of them.
    let blocks: Vec<_> = (0..15).map(|_| filled(MIB, 3)).collect();
    let mut sorted: Vec<usize> = blocks.iter().map(|block| *block as usize).collect();
    sorted.sort_unstable();
    let whole = sorted.windows(2).find(|pair| pair[0] % PAGE == 0 && pair[1] == pair[0] + MIB).expect("two on a page");
    let (half, kept) = (whole[0], whole[1]);
    if page_tier(half) != Some(Tier::Thp) {
        return println!("skipped: the kernel has no huge page");
    }
    assert_eq!(kernel::smaps(half, half + PAGE).huge_kib, 2048);
    let splits = kernel::splits();
    raw::free(half as *mut u8);
    assert!(hg_alloc::trim());
    let after = kernel::smaps(half, half + PAGE);
    assert_eq!((after.huge_kib, after.resident_kib), (0, 1024), "{after:?}");
    assert_eq!(page_tier(half), Some(Tier::Base));
    assert!(steps(TierReason::Sparse) >= 1);
    if let (Some(before), Some(after)) = (splits, kernel::splits()) {
        assert!(after > before, "the kernel split no huge page: the half is still with it");
    }
    assert!(holds(kept as *mut u8, MIB, 3));
    // The page is a base page now: any part of it goes.
    let reused = filled(MIB, 4);
    assert!(holds(kept as *mut u8, MIB, 3) && holds(reused, MIB, 4));
}

#[test]
fn less_than_half_a_huge_page_stays() {
    if stage::in_child("less_than_half_a_huge_page_stays", &[("HG_TIER", "thp")], &[stage::User::Same]) {
        return;
    }
    let blocks: Vec<_> = (0..28).map(|_| filled(MIB / 2, 3)).collect();
    let mut sorted: Vec<usize> = blocks.iter().map(|block| *block as usize).collect();
    sorted.sort_unstable();
    let first = sorted.iter().copied().find(|block| block % PAGE == 0).expect("one at the start of a page");
    if page_tier(first) != Some(Tier::Thp) {
        return println!("skipped: the kernel has no huge page");
    }
    raw::free(first as *mut u8);
    hg_alloc::trim();
    assert_eq!(kernel::smaps(first, first + PAGE).huge_kib, 2048);
    assert_eq!(page_tier(first), Some(Tier::Thp));
}

#[test]
fn base_pages_stay_base_pages() {
    if stage::in_child("base_pages_stay_base_pages", &[("HG_TIER", "base")], &[stage::User::Same]) {
        return;
    }
    let block = filled(12 * MIB, 1);
    let first = first_page(block);
    let range = kernel::smaps(first, first + 4 * PAGE);
    assert_eq!((range.huge_kib, range.resident_kib), (0, 4 * 2048));
    assert_eq!(tier(), (Some(Tier::Base), Some(TierReason::NotAsked)));
    assert_eq!((page_tier(first), tier_bytes(Tier::Base)), (Some(Tier::Base), 16 * MIB));
    assert!(range.flags.contains("nh"), "huge pages for everybody do not reach the arena: {range:?}");
}

#[test]
fn auto_takes_the_best_there_is_but_not_the_pool() {
    let name = "auto_takes_the_best_there_is_but_not_the_pool";
    if stage::in_child(name, &[("HG_TIER", "auto")], &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    let block = filled(12 * MIB, 1);
    assert_eq!(page().header.tier_wanted.load(Relaxed), Tier::Hugetlb as u32);
    assert_eq!(steps(TierReason::Inherited), 1);
    assert_eq!(tier_bytes(Tier::Hugetlb), 0);
    let first = first_page(block);
    match tier() {
        (Some(Tier::Thp), Some(TierReason::Inherited)) => {
            assert_eq!(kernel::smaps(first, first + 5 * PAGE).huge_kib, 5 * 2048);
        }
        (_, Some(reason)) => assert_ne!(reason, TierReason::Obtained),
        (_, None) => panic!("a reason without a word"),
    }
}
