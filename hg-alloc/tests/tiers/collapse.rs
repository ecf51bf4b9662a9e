//! Huge pages made of pages in use.

use super::{MIB, PAGE, filled, holds, kernel, page, page_tier, raw, stage, tier, tier_bytes};
use hg_probes::words::{Tier, TierReason};
use std::sync::atomic::Ordering::Relaxed;

const BLOCK: usize = MIB / 4;

/// The pages of the grid that lie in blocks side by side, by their first addresses.
fn whole_pages(blocks: &[*mut u8]) -> Vec<usize> {
    let places: std::collections::HashSet<usize> = blocks.iter().map(|block| *block as usize).collect();
    let mut starts: Vec<usize> = places.iter().map(|place| place / PAGE * PAGE).collect();
    starts.sort_unstable();
    starts.dedup();
    starts.retain(|start| (0..PAGE / BLOCK).all(|index| places.contains(&(start + index * BLOCK))));
    starts
}

#[test]
fn dense_pages_become_huge_ones_as_the_arena_grows() {
    let name = "collapse::dense_pages_become_huge_ones_as_the_arena_grows";
    if stage::in_child(name, &[("HG_TIER", "collapse")], &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    let blocks: Vec<_> = (0..64 * MIB / BLOCK).map(|_| filled(BLOCK, 7)).collect();
    if tier() != (Some(Tier::Collapsed), Some(TierReason::Obtained)) {
        return println!("skipped: this kernel does not collapse, {:?}", tier());
    }
    let pages = whole_pages(&blocks);
    assert!(pages.len() >= 28);
    let collapsed: Vec<_> = pages.iter().filter(|start| page_tier(**start) == Some(Tier::Collapsed)).collect();
    // Each growth collapses what earlier ones brought: all but the last two granules for certain.
    assert!(collapsed.len() >= 14, "{} of {} pages", collapsed.len(), pages.len());
    for start in &pages {
        let huge = kernel::smaps(*start, *start + PAGE).huge_kib == 2048;
        assert_eq!(huge, page_tier(*start) == Some(Tier::Collapsed), "the page at {start:#x}");
    }
    assert!(tier_bytes(Tier::Collapsed) >= collapsed.len() * PAGE);
    assert_eq!(
        tier_bytes(Tier::Collapsed) + tier_bytes(Tier::Base),
        page().header.top_slices.load(Relaxed) as usize * 32768
    );
    assert!(blocks.iter().all(|block| holds(*block, BLOCK, 7)));
}

#[test]
fn dense_pages_become_huge_ones_where_only_the_sum_is_told() {
    let name = "collapse::dense_pages_become_huge_ones_where_only_the_sum_is_told";
    if !stage::is_root() {
        return println!("skipped: {name} needs root for a mount namespace");
    }
    if stage::in_child(name, &[("HG_TIER", "collapse")], &[stage::User::Same]) {
        return;
    }
    // As on kernels that do not tell which pages are huge.
    if !kernel::replace("/proc/self/pagemap", "nothing") {
        return;
    }
    let blocks: Vec<_> = (0..64 * MIB / BLOCK).map(|_| filled(BLOCK, 7)).collect();
    if tier().0 != Some(Tier::Collapsed) {
        return println!("skipped: this kernel does not collapse");
    }
    let pages = whole_pages(&blocks);
    let collapsed = pages.iter().filter(|start| page_tier(**start) == Some(Tier::Collapsed)).count();
    assert!(collapsed >= 14, "{collapsed} of {} pages", pages.len());
    for start in &pages {
        let huge = kernel::smaps(*start, *start + PAGE).huge_kib == 2048;
        assert_eq!(huge, page_tier(*start) == Some(Tier::Collapsed), "the page at {start:#x}");
    }
}

#[test]
fn maintenance_collapses_what_a_huge_page_was_lost_from() {
    let name = "collapse::maintenance_collapses_what_a_huge_page_was_lost_from";
    let variables = [("HG_TIER", "auto"), ("HG_THREAD", "1"), ("HG_DECAY_MS", "1000")];
    if stage::in_child(name, &variables, &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    let block = filled(12 * MIB, 1);
    if tier().0 != Some(Tier::Thp) || !kernel::tells_huge_pages() {
        return println!("skipped: no huge page, or a kernel before 6.7");
    }
    let first = super::first_page(block);
    // SAFETY: the range lies in a live block; the kernel forgets its contents.
    let split = unsafe { libc::madvise((first + PAGE / 2) as *mut libc::c_void, 4096, libc::MADV_DONTNEED) };
    assert_eq!(split, 0);
    assert_eq!(kernel::smaps(first, first + PAGE).huge_kib, 0);
    let begin = std::time::Instant::now();
    let huge_kib = || kernel::smaps(first, first + PAGE).huge_kib;
    while page_tier(first) != Some(Tier::Collapsed) && begin.elapsed() < std::time::Duration::from_secs(10) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    if page_tier(first) == Some(Tier::Thp) && huge_kib() == 2048 {
        return println!("skipped: the kernel's own thread was faster");
    }
    assert_eq!((page_tier(first), huge_kib()), (Some(Tier::Collapsed), 2048));
    assert_eq!(tier_bytes(Tier::Collapsed), PAGE);
}

#[test]
fn sparse_pages_are_never_collapsed() {
    let name = "collapse::sparse_pages_are_never_collapsed";
    if stage::in_child(name, &[("HG_TIER", "collapse")], &[stage::User::Same]) {
        return;
    }
    // In use, but hardly touched: huge pages would hold eight times as much.
    let untouched: Vec<_> = (0..48 * MIB / BLOCK).map(|_| raw::malloc(BLOCK)).collect();
    for block in &untouched {
        for offset in (0..BLOCK).step_by(8 * 4096) {
            // SAFETY: within a live block.
            unsafe { block.add(offset).write_volatile(1) };
        }
    }
    // Touched all over, but mostly free by now.
    let freed: Vec<_> = (0..48 * MIB / BLOCK).map(|_| filled(BLOCK, 2)).collect();
    freed.iter().enumerate().filter(|(index, _)| index % 4 != 0).for_each(|(_, block)| raw::free(*block));
    let last = filled(80 * MIB, 3);
    let more = filled(40 * MIB, 4);
    if tier().0 != Some(Tier::Collapsed) {
        return println!("skipped: this kernel does not collapse");
    }
    for start in whole_pages(&untouched) {
        assert_ne!(page_tier(start), Some(Tier::Collapsed));
        assert_eq!(kernel::smaps(start, start + PAGE).huge_kib, 0);
    }
    assert!(holds(last, 80 * MIB, 3) && holds(more, 40 * MIB, 4));
}
