//! Tiers of arenas that processes share: the pool's window, the step down to the other, and huge pages of shared memory.

use super::{MIB, PAGE, filled_at, first_page, holds, kernel, stage};
use hg_alloc::shared::{Arena, Options, create};
use hg_probes::words::{Cause, Tier, TierReason};
use std::sync::atomic::Ordering::Relaxed;

fn arena(options: Options) -> &'static Arena {
    create(&options).expect("an arena")
}

fn tier_bytes(arena: &Arena, tier: Tier) -> usize {
    arena.stats_page().header.tier_bytes[tier as usize].load(Relaxed) as usize
}

fn steps(arena: &Arena, reason: TierReason) -> u64 {
    arena.stats_page().header.tier_reasons[reason as usize].load(Relaxed)
}

fn large(arena: &Arena, bytes: usize, tag: u8) -> *mut u8 {
    let block = arena.malloc(bytes);
    assert!(!block.is_null());
    filled_at(block, bytes, tag);
    block
}

#[test]
fn the_pool_serves_first_and_plain_memory_after() {
    let name = "shared::the_pool_serves_first_and_plain_memory_after";
    if stage::in_child_with(name, &[], &[stage::User::Same, stage::User::Nobody], || kernel::pool_with(6)) {
        return;
    }
    let free = kernel::pool_free();
    let arena = arena(Options { hugetlb: true, ..Options::shared("pool", 0, 64 * MIB as u64) });
    assert_eq!((arena.cap_bytes(), kernel::pool_free()), (64 * MIB as u64, free), "nothing is reserved");
    let first = large(arena, 7 * MIB, 1);
    let pages = (free - kernel::pool_free()) as usize;
    assert!(pages >= 4, "{pages} pages");
    assert_eq!(tier_bytes(arena, Tier::Hugetlb), pages * PAGE);
    assert_eq!(kernel::smaps(first_page(first), first_page(first) + 2 * PAGE).hugetlb_kib, 4 << 10);
    // More than the pool has: from the other window, without a signal.
    let second = large(arena, 12 * MIB, 2);
    assert!(steps(arena, TierReason::PoolEmpty) > 0);
    assert!(arena.stats_page().header.grows_refused[Cause::HugetlbPool as usize].load(Relaxed) > 0);
    assert_eq!(arena.stats_page().header.grow_blocked.load(Relaxed), 0);
    assert_eq!(kernel::smaps(first_page(second), first_page(second) + 4 * PAGE).hugetlb_kib, 0);
    // A child sees the same pages, in both windows.
    assert_eq!(
        stage::forked(|| {
            let same = holds(first, 7 * MIB, 1) && holds(second, 12 * MIB, 2);
            filled_at(first, 7 * MIB, 3);
            arena.free(second);
            same
        }),
        0
    );
    assert!(holds(first, 7 * MIB, 3));
    // The cap counts both windows together.
    let mut blocks = Vec::new();
    while let Some(block) = Some(arena.malloc(2 * MIB)).filter(|block| !block.is_null()) {
        blocks.push(block);
    }
    assert!(arena.committed_bytes() <= 64 * MIB as u64 && blocks.len() >= 26, "{} blocks", blocks.len());
    blocks.into_iter().chain([first]).for_each(|block| arena.free(block));
    arena.trim();
    assert_eq!((arena.committed_bytes(), kernel::pool_free()), (0, free), "all pages are back in the pool");
    assert_eq!(tier_bytes(arena, Tier::Hugetlb), 0);
}

#[test]
fn shared_memory_becomes_huge_pages_by_collapse() {
    let name = "shared::shared_memory_becomes_huge_pages_by_collapse";
    if stage::in_child(name, &[], &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    if !kernel::tells_huge_pages() {
        return println!("skipped: the kernel does not tell where huge pages are");
    }
    let arena = arena(Options { huge: true, ..Options::shared("huge", 0, 64 * MIB as u64) });
    let block = large(arena, 5 * MIB, 1);
    let huge = tier_bytes(arena, Tier::Thp) + tier_bytes(arena, Tier::Collapsed);
    let plain = tier_bytes(arena, Tier::Base);
    assert_eq!(huge + plain, arena.committed_bytes() as usize);
    let mapped = kernel::smaps(first_page(block), first_page(block) + PAGE).shmem_huge_kib << 10;
    // What the page table says of this process, of the pages that lie wholly in the block.
    assert!(mapped <= huge, "{mapped} bytes in huge pages, {huge} told");
    assert!(huge == 0 || mapped > 0);
    if plain > 0 {
        assert!(steps(arena, TierReason::NotOffered) > 0);
    }
    assert!(holds(block, 5 * MIB, 1));
}
