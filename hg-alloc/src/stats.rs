//! The writer's side of the stats page.
//!
//! Blocks are written under their locks, so plain loads and stores of relaxed atomics suffice: no read-modify-write. The
//! sequence number of a block is odd while the block changes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use hg_probes::page::{ClassStats, Histogram, StatsPage, bucket};

/// Adds to a counter that only the holder of its lock writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// Changes a block between two increments of its sequence number.
#[inline]
pub(crate) fn change<R>(sequence: &AtomicU32, write: impl FnOnce() -> R) -> R {
    let start = sequence.load(Relaxed);
    sequence.store(start.wrapping_add(1), Relaxed);
    core::sync::atomic::fence(Release);
    let result = write();
    sequence.store(start.wrapping_add(2), Release);
    result
}

/// Adds a duration to a histogram, under the lock that it belongs to.
pub(crate) fn record(histogram: &Histogram, ns: u64, now_ns: u64, tid: u32, stalled: bool) {
    add(&histogram.count, 1);
    add(&histogram.sum_ns, ns);
    if let Some(counter) = histogram.buckets.get(bucket(ns)) {
        add(counter, 1);
    }
    if ns > histogram.max_ns.load(Relaxed) {
        histogram.max_ns.store(ns, Relaxed);
        histogram.max_at_ns.store(now_ns, Relaxed);
        histogram.max_tid.store(tid, Relaxed);
    }
    if stalled {
        histogram.stalls.store(histogram.stalls.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Changes the block of a class, under the class's lock.
pub(crate) fn class<R>(page: &StatsPage, class: usize, write: impl FnOnce(&ClassStats) -> R) -> Option<R> {
    page.classes.get(class).map(|block| change(&block.seq, || write(block)))
}
