//! Usage, statistics, extents: what an arena tells of itself. Nothing here takes a lock or makes a system call.

use crate::handle::{Arena, get};
use crate::status::Status;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hg_probes::page::StatsPage;
use hg_probes::words::CorruptionKind;

crate::versioned!("hg_used_bytes" "hg_live_bytes" "hg_committed_bytes" "hg_peak_bytes" "hg_cap_bytes" "hg_extent" "hg_owns" "hg_stats_read");

/// Statistics of an arena: all of its processes together. Later versions have more fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Stats {
    /// Bytes of this structure that were written.
    pub struct_size: usize,
    /// Bytes of blocks that programs have, and of those in front caches.
    pub live_bytes: u64,
    /// Bytes of spans and larger blocks.
    pub used_bytes: u64,
    /// The most that these ever were.
    pub used_peak_bytes: u64,
    /// Bytes that are committed: for blocks, and free for new ones.
    pub committed_bytes: u64,
    /// The most that was ever committed, bytes.
    pub committed_peak_bytes: u64,
    /// The most that may be committed, bytes: the cap, or the ceiling of the profile.
    pub ceiling_bytes: u64,
    /// The most that the arena was made for, bytes.
    pub cap_bytes: u64,
    /// What stays committed whatever the load, bytes.
    pub floor_bytes: u64,
    /// Bytes of spans: blocks up to 256 KiB.
    pub span_bytes: u64,
    /// Bytes of larger blocks.
    pub large_bytes: u64,
    /// Larger blocks.
    pub large_count: u64,
    /// Bytes of tables, committed.
    pub metadata_bytes: u64,
    /// Bytes locked into RAM.
    pub pinned_bytes: u64,
    /// Bytes in caches of CPUs that none of the processes may use.
    pub stranded_bytes: u64,
    /// Growths.
    pub grows: u64,
    /// Growths that were refused.
    pub grows_refused: u64,
    /// Shrinks.
    pub shrinks: u64,
    /// Allocations that failed.
    pub allocs_failed: u64,
    /// Calls that were refused, all kinds together.
    pub corruptions: u64,
    /// Of these, double frees.
    pub double_frees: u64,
    /// Critical sections that a process died in and another one put right.
    pub owner_deaths: u64,
    /// Blocks that only a dead process had, given back by hg_recover.
    pub recovered: u64,
    /// 1 while a limit of the system keeps the arena from growing, else 0.
    pub grow_blocked: u32,
    /// Which one: hg_cause_label has the word. Only while it is blocked.
    pub blocked_cause: u32,
    /// What backs the memory of the last growth: hg_tier_label has the word.
    pub tier: u32,
    /// 0.
    pub reserved: u32,
}

unsafe fn read(arena: *const Arena, figure: impl FnOnce(&'static hg_alloc::shared::Arena) -> u64) -> u64 {
    // SAFETY: C1.
    unsafe { get(arena) }.map_or(0, figure)
}

/// Bytes of spans and larger blocks: what the arena cannot give back now. Two loads; 0 for a null arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_used_bytes(arena: *const Arena) -> u64 {
    // SAFETY: C1.
    unsafe { read(arena, |arena| arena.used_bytes()) }
}

/// Bytes of blocks that programs have, and of those in front caches: a sum over all sizes of blocks, some two hundred loads. 0 for
/// a null arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_live_bytes(arena: *const Arena) -> u64 {
    // SAFETY: C1.
    unsafe { read(arena, |arena| arena.live_bytes()) }
}

/// Bytes that are committed. One load; 0 for a null arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_committed_bytes(arena: *const Arena) -> u64 {
    // SAFETY: C1.
    unsafe { read(arena, |arena| arena.committed_bytes()) }
}

/// The most that hg_used_bytes ever was. One load; 0 for a null arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_peak_bytes(arena: *const Arena) -> u64 {
    // SAFETY: C1.
    unsafe { read(arena, |arena| arena.peak_bytes()) }
}

/// The most that the arena can grow to, bytes. One load; 0 for a null arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_cap_bytes(arena: *const Arena) -> u64 {
    // SAFETY: C1.
    unsafe { read(arena, |arena| arena.cap_bytes()) }
}

/// Where the arena's blocks lie: the first address, and how many bytes from there. The same in every process of a shared arena,
/// and for its whole life: growth does not change it. Either pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_extent(arena: *const Arena, first: *mut *mut c_void, bytes: *mut usize) -> Status {
    // SAFETY: C1.
    let Some(arena) = (unsafe { get(arena) }) else { return Status::Argument };
    let header = &arena.stats_page().header;
    // SAFETY: C1.
    unsafe {
        if !first.is_null() {
            *first = header.base_address.load(Relaxed) as *mut c_void;
        }
        if !bytes.is_null() {
            *bytes = arena.cap_bytes() as usize;
        }
    }
    Status::Ok
}

/// Whether an address lies where the arena's blocks lie, whatever is there. A comparison of addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_owns(arena: *const Arena, address: *const c_void) -> bool {
    // SAFETY: C1.
    unsafe { get(arena) }.is_some_and(|arena| arena.owns(address.cast()))
}

/// Writes the statistics of now: as much of the structure as fits bytes, which is sizeof(hg_stats). Each figure is right for some
/// moment during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_stats_read(arena: *const Arena, stats: *mut Stats, bytes: usize) -> Status {
    // SAFETY: C1.
    let Some(arena) = (unsafe { get(arena) }) else { return Status::Argument };
    if stats.is_null() || bytes < size_of::<usize>() {
        return Status::Argument;
    }
    let written = bytes.min(size_of::<Stats>());
    let now = Stats { struct_size: written, ..snapshot(arena.stats_page(), arena) };
    // SAFETY: C1: so many bytes can be written; a plain structure may be copied in part.
    unsafe { core::ptr::copy_nonoverlapping((&raw const now).cast::<u8>(), stats.cast(), written) };
    Status::Ok
}

fn snapshot(page: &StatsPage, arena: &hg_alloc::shared::Arena) -> Stats {
    let header = &page.header;
    let get = |word: &AtomicU64| word.load(Relaxed);
    let sum = |words: &[AtomicU64]| words.iter().map(get).sum();
    Stats {
        struct_size: 0,
        live_bytes: arena.live_bytes(),
        used_bytes: arena.used_bytes(),
        used_peak_bytes: arena.peak_bytes(),
        committed_bytes: arena.committed_bytes(),
        committed_peak_bytes: get(&header.committed_peak_bytes),
        ceiling_bytes: get(&header.ceiling_bytes),
        cap_bytes: arena.cap_bytes(),
        floor_bytes: get(&header.floor_bytes),
        span_bytes: get(&header.span_bytes),
        large_bytes: get(&header.large_bytes),
        large_count: get(&header.large_count),
        metadata_bytes: get(&header.metadata_bytes),
        pinned_bytes: get(&header.pinned_bytes),
        stranded_bytes: get(&header.stranded_bytes),
        grows: get(&header.grows),
        grows_refused: sum(&header.grows_refused),
        shrinks: get(&header.shrinks),
        allocs_failed: sum(&header.allocs_failed),
        corruptions: sum(&header.corruptions),
        double_frees: header.corruptions.get(CorruptionKind::DoubleFree as usize).map_or(0, get),
        owner_deaths: get(&header.owner_deaths),
        recovered: get(&header.recovered),
        grow_blocked: header.grow_blocked.load(Relaxed),
        blocked_cause: header.blocked_cause.load(Relaxed),
        tier: header.tier.load(Relaxed),
        reserved: 0,
    }
}
