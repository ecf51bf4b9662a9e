//! Bad calls: refused, counted, told to whoever listens; the program goes on.
//!
//! Called from the slow paths only, without any lock held.

use core::sync::atomic::Ordering::Relaxed;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::page::StatsPage;
use hg_probes::words::{Cause, CorruptionKind};

/// Counts a refused bad call and fires `corruption`. `class` is a cell size, 0 where none is known.
#[cold]
pub(crate) fn refuse(page: &StatsPage, kind: CorruptionKind, address: usize, class: u32, detail: u64) {
    if let Some(counter) = page.header.corruptions.get(kind as usize) {
        counter.fetch_add(1, Relaxed);
    }
    let arena = page.header.arena.load(Relaxed);
    emit::corruption(|| args::corruption { arena, kind, address, class, detail });
}

/// Counts a failed allocation and fires `alloc_failed`. `page` is missing where the arena itself could not start.
#[cold]
pub(crate) fn fail(page: Option<&StatsPage>, bytes: usize, cause: Cause) {
    if let Some(counter) = page.and_then(|page| page.header.allocs_failed.get(cause as usize)) {
        counter.fetch_add(1, Relaxed);
    }
    let arena = page.map_or(0, |page| page.header.arena.load(Relaxed));
    emit::alloc_failed(|| args::alloc_failed { arena, bytes, cause });
}
