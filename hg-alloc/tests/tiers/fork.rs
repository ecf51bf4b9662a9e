//! Forks of processes with each tier, and with locks.

use super::hugetlb::with_pool;
use super::{MIB, filled, first_page, holds, kernel, page, page_pinned, page_tier, raw, stage, steps};
use hg_probes::words::{Tier, TierReason};
use std::sync::atomic::Ordering::Relaxed;

/// Parent and child both go on with what they share and with what they get anew.
fn both_go_on() {
    let shared = filled(12 * MIB, 1);
    let small: Vec<_> = (0..1000).map(|index| filled(100 + index, 2)).collect();
    let status = stage::forked(|| {
        let fine = holds(shared, 12 * MIB, 1);
        let own = filled(30 * MIB, 3);
        // SAFETY: the block is live in the child as well.
        unsafe { shared.write_bytes(4, 12 * MIB) };
        small.iter().for_each(|block| raw::free(*block));
        let fine = fine && holds(own, 30 * MIB, 3) && holds(shared, 12 * MIB, 4);
        raw::free(own);
        hg_alloc::trim();
        fine && holds(filled(20 * MIB, 5), 20 * MIB, 5)
    });
    assert_eq!(status, 0, "the child of {:?}", super::tier());
    assert!(holds(shared, 12 * MIB, 1));
    let own = filled(30 * MIB, 6);
    assert!(holds(own, 30 * MIB, 6));
    small.iter().for_each(|block| raw::free(*block));
}

#[test]
fn a_child_goes_on_with_base_pages() {
    if !stage::in_child("fork::a_child_goes_on_with_base_pages", &[], &[stage::User::Same]) {
        both_go_on();
    }
}

#[test]
fn a_child_goes_on_with_huge_pages() {
    if !stage::in_child("fork::a_child_goes_on_with_huge_pages", &[("HG_TIER", "thp")], &[stage::User::Same]) {
        both_go_on();
    }
}

#[test]
fn a_child_goes_on_with_collapsed_pages() {
    if !stage::in_child("fork::a_child_goes_on_with_collapsed_pages", &[("HG_TIER", "collapse")], &[stage::User::Same])
    {
        both_go_on();
    }
}

#[test]
fn a_child_goes_on_with_pages_of_a_full_pool() {
    if !with_pool("fork::a_child_goes_on_with_pages_of_a_full_pool", 64, &[stage::User::Same]) {
        both_go_on();
    }
}

#[test]
fn an_empty_pool_ends_the_child_and_never_the_parent() {
    let name = "fork::an_empty_pool_ends_the_child_and_never_the_parent";
    if with_pool(name, 8, &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    let block = filled(12 * MIB, 1);
    assert_eq!(page_tier(first_page(block)), Some(Tier::Hugetlb));
    assert_eq!(kernel::pool_free(), 0);
    let reads = stage::forked(|| {
        let counted = steps(TierReason::Inherited) == 1;
        let told = page().header.tier_reason.load(Relaxed) == TierReason::Inherited as u32;
        // What the child gets anew is safe: the pool is empty, so it is no page of it.
        counted && told && holds(block, 12 * MIB, 1) && holds(filled(20 * MIB, 2), 20 * MIB, 2)
    });
    assert_eq!(reads, 0, "a child that writes only to its own memory lives");
    let writes = stage::forked(|| {
        // SAFETY: the block is live, but to write takes a page of the pool.
        unsafe { block.write_volatile(9) };
        true
    });
    assert!(libc::WIFSIGNALED(writes) && libc::WTERMSIG(writes) == libc::SIGBUS, "status {writes:#x}");
    // While a child shares the pages, the parent's writes are served at the child's cost.
    let touches = || {
        // SAFETY: the block is live, but the child has lost its share in it.
        unsafe { block.read_volatile() == 1 }
    };
    // SAFETY: the block is live.
    let loses = stage::forked_meanwhile(touches, || unsafe { block.write_volatile(1) });
    assert!(libc::WIFSIGNALED(loses) && libc::WTERMSIG(loses) == libc::SIGBUS, "status {loses:#x}");
    assert!(holds(block, 12 * MIB, 1));
    let spares = stage::forked_meanwhile(|| true, || assert!(holds(block, 12 * MIB, 1)));
    assert_eq!(spares, 0, "a child that touches nothing of it lives");
}

#[test]
fn maintenance_locks_again_what_a_child_inherited() {
    let name = "fork::maintenance_locks_again_what_a_child_inherited";
    let variables = [("HG_PIN", "1"), ("HG_THREAD", "1"), ("HG_DECAY_MS", "1000")];
    if stage::in_child(name, &variables, &[stage::User::Same]) {
        return;
    }
    if !super::capability::may_lock() {
        return println!("skipped: without privileges the limit decides");
    }
    let block = filled(12 * MIB, 1);
    let status = stage::forked(|| {
        let header = &page().header;
        let begin = std::time::Instant::now();
        while header.pinned_bytes.load(Relaxed) < 16 << 20 && begin.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let copies = kernel::smaps(first_page(block), first_page(block) + 8 * MIB);
        header.pinned_bytes.load(Relaxed) == 16 << 20
            && kernel::status_kib("VmLck") == 16 << 10
            && copies.flags.contains(" lo")
            && copies.private_kib == 0
            && holds(block, 12 * MIB, 1)
    });
    assert_eq!(status, 0);
}

#[test]
fn locks_are_not_inherited_but_taken_again() {
    let name = "fork::locks_are_not_inherited_but_taken_again";
    if stage::in_child(name, &[("HG_PIN", "1")], &[stage::User::Same]) {
        return;
    }
    if !super::capability::may_lock() {
        return println!("skipped: without privileges the limit decides");
    }
    let block = filled(12 * MIB, 1);
    assert_eq!(page().header.pinned_bytes.load(Relaxed), 16 << 20);
    let status = stage::forked(|| {
        let header = &page().header;
        let none = header.pinned_bytes.load(Relaxed) == 0 && !page_pinned(first_page(block));
        let own = filled(20 * MIB, 2);
        let all = kernel::status_kib("VmLck") >= 44 << 10;
        let told = header.pinned_bytes.load(Relaxed) == kernel::status_kib("VmLck") * 1024;
        let shared = kernel::smaps(first_page(block), first_page(block) + 8 * MIB);
        // The parent's pages are locked where they are, not copied.
        let kept = shared.flags.contains(" lo") && page_pinned(first_page(block)) && shared.private_kib == 0;
        none && all && told && kept && holds(block, 12 * MIB, 1) && holds(own, 20 * MIB, 2)
    });
    assert_eq!(status, 0);
    assert_eq!(page().header.pinned_bytes.load(Relaxed), kernel::status_kib("VmLck") * 1024);
}
