//! Limits and bad calls, each in a process of its own: a refusal has its cause in the stats page, the program goes on, and
//! what was refused works again once there is room.
//!
//! Each scenario runs in a child: the environment is read once, and counters are to start from zero.

mod common;

use common::{in_child, page};
use hg_alloc::raw;
use hg_probes::words::{Cause, CorruptionKind, Tier, TierReason};
use std::sync::atomic::Ordering::Relaxed;

fn refused(kind: CorruptionKind) -> u64 {
    page().header.corruptions[kind as usize].load(Relaxed)
}

#[test]
fn a_full_arena_says_so_and_recovers() {
    if in_child("a_full_arena_says_so_and_recovers", &[("HG_CAP", "64m")]).is_some() {
        return;
    }
    for size in [1000, 100_000, 3_000_000] {
        let failed = page_failures(Cause::Cap);
        let mut blocks = Vec::new();
        let errno = loop {
            let block = raw::malloc(size);
            if block.is_null() {
                break std::io::Error::last_os_error().raw_os_error();
            }
            blocks.push(block);
        };
        assert_eq!(errno, Some(libc::ENOMEM));
        let held = blocks.len() * size;
        assert!(held > 48 << 20, "only {held} bytes of 64 MiB could be had in blocks of {size}");
        assert_eq!(page_failures(Cause::Cap), failed + 1);
        assert!(page().header.grows_refused[Cause::Cap as usize].load(Relaxed) > 0);
        // The cap is what somebody asked for: no limit of the system blocks growth.
        assert_eq!(page().header.grow_blocked.load(Relaxed), 0);
        blocks.into_iter().for_each(raw::free);
        hg_alloc::trim();
        assert!(page().header.committed_bytes.load(Relaxed) < 20 << 20);
    }
    // All that was given back can be had again, in one piece.
    let block = raw::malloc(40 << 20);
    assert!(!block.is_null());
    assert_eq!(page().header.grow_blocked.load(Relaxed), 0);
    raw::free(block);
}

fn page_failures(cause: Cause) -> u64 {
    hg_alloc::stats_page().map_or(0, |page| page.header.allocs_failed[cause as usize].load(Relaxed))
}

#[test]
fn the_smallest_arena_serves_all_sizes() {
    if in_child("the_smallest_arena_serves_all_sizes", &[("HG_CAP", "16m")]).is_some() {
        return;
    }
    // Cells of 16 bytes need most states for their memory.
    for size in [16, 100, 5000, 200_000, 1_000_000] {
        let mut blocks = Vec::new();
        loop {
            let block = raw::malloc(size);
            if block.is_null() {
                break;
            }
            blocks.push(block);
        }
        assert!(blocks.len() * size > 11 << 20, "{} blocks of {size}", blocks.len());
        blocks.into_iter().for_each(raw::free);
    }
}

#[test]
fn impossible_sizes_are_refused_at_once() {
    for size in [usize::MAX, isize::MAX as usize, isize::MAX as usize + 1, 1 << 50] {
        assert!(raw::malloc(size).is_null());
        assert!(raw::calloc(size).is_null());
        assert!(raw::aligned(4096, size).is_null());
    }
    assert!(raw::aligned(1 << 62, 1).is_null());
    let block = raw::malloc(10);
    assert!(raw::realloc(block, usize::MAX).is_null());
    assert_eq!(raw::usable_size(block), 16);
    raw::free(block);
}

#[test]
fn bad_frees_are_refused_each_with_its_kind() {
    if in_child("bad_frees_are_refused_each_with_its_kind", &[]).is_some() {
        return;
    }
    let small = raw::malloc(100);
    let large = raw::malloc(5 << 20);
    let mut on_stack = 0u64;
    raw::free(small.wrapping_add(16));
    raw::free(large.wrapping_add(48));
    raw::free(large.wrapping_add(1 << 20));
    assert_eq!(refused(CorruptionKind::InteriorFree), 3);
    raw::free((&raw mut on_stack).cast());
    raw::free(16 as *mut u8);
    assert_eq!(refused(CorruptionKind::ForeignFree), 2);
    raw::free(small);
    raw::free(small);
    assert_eq!(refused(CorruptionKind::DoubleFree), 1);
    raw::free(large);
    raw::free(large);
    assert_eq!(refused(CorruptionKind::DoubleFree) + refused(CorruptionKind::WildFree), 2);
    assert!(raw::realloc(small, 200).is_null());
    assert_eq!(raw::usable_size(small), 0);
    assert_eq!(refused(CorruptionKind::DoubleFree) + refused(CorruptionKind::WildFree), 4);
    // The program goes on, and nothing was put back twice.
    let again: Vec<_> = (0..1000).map(|_| raw::malloc(100)).collect();
    let distinct: std::collections::HashSet<_> = again.iter().collect();
    assert_eq!(distinct.len(), again.len());
}

#[test]
fn malformed_variables_get_a_line_and_the_default() {
    let bad = [("HG_CAP", "lots"), ("HG_TIER", "\u{1b}[31mhuge"), ("HG_PIN", "2"), ("HG_LOCK_STALL_US", "0")];
    let Some(text) = in_child("malformed_variables_get_a_line_and_the_default", &bad) else {
        raw::free(raw::malloc(1));
        assert_eq!(page().header.stall_us.load(Relaxed), 1000);
        assert_eq!(page().header.tier_wanted.load(Relaxed), Tier::Base as u32);
        assert_eq!(page().header.pin_wanted.load(Relaxed), 0);
        return;
    };
    for (name, _) in bad {
        let lines = text.lines().filter(|line| line.starts_with(&format!("hg: {name}="))).count();
        assert_eq!(lines, 1, "{name} in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "control characters reach the terminal:\n{text}");
}

#[test]
fn a_tier_is_what_the_kernel_gave() {
    if in_child("a_tier_is_what_the_kernel_gave", &[("HG_TIER", "thp")]).is_some() {
        return;
    }
    let block = raw::malloc(1);
    // SAFETY: just allocated.
    unsafe { block.write_volatile(1) };
    let header = &page().header;
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let (tier, reason) = (header.tier.load(Relaxed), header.tier_reason.load(Relaxed));
    if setting.contains("[never]") {
        assert_eq!((tier, reason), (Tier::Base as u32, TierReason::SysfsNever as u32));
    } else if tier == Tier::Thp as u32 {
        assert_eq!(reason, TierReason::Obtained as u32);
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
        let huge = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).expect("the counter");
        let kib: u64 = huge.trim().trim_end_matches(" kB").trim().parse().expect("a number");
        assert!(kib >= 2048, "the page says THP, the kernel {kib} KiB");
    } else {
        assert_ne!(reason, TierReason::Obtained as u32);
    }
}

#[test]
fn pinned_bytes_are_the_kernels() {
    if in_child("pinned_bytes_are_the_kernels", &[("HG_PIN", "1")]).is_some() {
        return;
    }
    raw::free(raw::malloc(1));
    let header = &page().header;
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("VmLck");
    let kib: u64 = locked.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    assert_eq!(header.pinned_bytes.load(Relaxed), kib * 1024);
    assert_eq!(kib == 0, header.pin_errno.load(Relaxed) != 0);
}
