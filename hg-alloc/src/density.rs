//! Sparse spans: what an arena does when most of its spans' memory is free, but hardly a span is wholly so.
//!
//! After a peak, cells that nobody uses lie in front and transfer caches, each perhaps the only one of its span, and keep
//! that span from being given back: 18 MiB of cached cells were seen to hold 109 MiB. So, when more than half of the spans'
//! memory is free, all caches are emptied, and stay tiny while that helps: frees then go straight to their spans, which
//! become free as the last cell comes home. The same is done when more cells are cached than live, and hold more than a few
//! MiB: nobody may come again after the last frees. If it does not help, because the program's own live cells are so spread, the
//! arena resigns, after a bounded number of slow calls, until half of the cells outstanding then are gone.
//!
//! *Outstanding* are cells that are not with their span, live or cached, and those never used, which hold no memory. No lock: a few words that slow paths look at;
//! whoever moves the mode on does the work.

use crate::arena::Arena;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Free bytes in spans that are not worth a drain; half of it ends the sparse mode.
const EXCESS: u64 = 4 << 20;

/// Bytes of spans that may stay for cached cells alone.
const IDLE: u64 = 6 << 20;

/// One of so many slow calls counts the cached cells.
const COUNT_EVERY: u32 = 16;

/// Slow calls without a span given back after which an arena resigns: half a millisecond of one thread.
const PATIENCE: u32 = 4096;

/// How the caches are run.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Most of the spans' memory is outstanding: caches follow demand.
    Dense = 0,
    /// It is not: caches are tiny.
    Sparse = 1,
    /// It is not, and tiny caches did not help: they are small.
    Resigned = 2,
}

/// What the decision is made of.
pub(crate) struct Density {
    /// Bytes of cells outstanding.
    outstanding: AtomicU64,
    mode: AtomicU32,
    /// Outstanding bytes when the arena resigned.
    mark: AtomicU64,
    patience: AtomicU32,
    /// Bytes of spans when patience was last refilled.
    spans_before: AtomicU64,
    /// Bytes of cells in transfer caches.
    in_transfer: AtomicU64,
    calls: AtomicU32,
}

impl Density {
    pub(crate) const fn new() -> Self {
        Density {
            outstanding: AtomicU64::new(0),
            mode: AtomicU32::new(Mode::Dense as u32),
            mark: AtomicU64::new(0),
            patience: AtomicU32::new(0),
            spans_before: AtomicU64::new(0),
            in_transfer: AtomicU64::new(0),
            calls: AtomicU32::new(0),
        }
    }

    /// How the caches are run now.
    pub(crate) fn mode(&self) -> Mode {
        match self.mode.load(Relaxed) {
            0 => Mode::Dense,
            1 => Mode::Sparse,
            _ => Mode::Resigned,
        }
    }

    /// Bytes of cells outstanding.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding.load(Relaxed)
    }

    /// Tells that a class has `now` bytes outstanding that had `before`.
    pub(crate) fn changed(&self, before: u64, now: u64) {
        if before != now {
            self.outstanding.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }

    /// Tells that a class's transfer cache has `now` bytes that had `before`.
    pub(crate) fn transfer_changed(&self, before: u64, now: u64) {
        if before != now {
            self.in_transfer.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }

    /// Looks at `spans` bytes of spans, after a slow call; `in_fronts` counts the bytes of cells in front caches. True if the
    /// mode became sparse: the caller empties the caches.
    fn look(&self, spans: u64, in_fronts: impl FnOnce() -> u64) -> bool {
        let outstanding = self.outstanding();
        let excess = spans.saturating_sub(outstanding);
        match self.mode() {
            Mode::Dense => {
                (outstanding < spans / 2 && excess > EXCESS || self.mostly_cached(spans, in_fronts))
                    && self.enter(Mode::Dense, spans)
            }
            _ if outstanding / 5 >= spans / 8 || excess < EXCESS / 2 => {
                self.mode.store(Mode::Dense as u32, Relaxed);
                false
            }
            Mode::Resigned => {
                (outstanding < self.mark.load(Relaxed) / 2 || self.mostly_cached(spans, in_fronts))
                    && self.enter(Mode::Resigned, spans)
            }
            Mode::Sparse => {
                let patience = self.patience.load(Relaxed);
                self.patience.store(patience.saturating_sub(1), Relaxed);
                if patience == 0 && !self.refill_patience(spans) {
                    self.mark.store(outstanding, Relaxed);
                    self.mode.store(Mode::Resigned as u32, Relaxed);
                }
                false
            }
        }
    }

    /// Whether more cells are cached than live, and hold memory that is worth a drain. Now and then: it looks at each head.
    fn mostly_cached(&self, spans: u64, in_fronts: impl FnOnce() -> u64) -> bool {
        if spans < IDLE {
            return false;
        }
        let calls = self.calls.load(Relaxed).wrapping_add(1);
        self.calls.store(calls, Relaxed);
        if !calls.is_multiple_of(COUNT_EVERY) {
            return false;
        }
        let cached = in_fronts() + self.in_transfer.load(Relaxed);
        let live = self.outstanding().saturating_sub(cached);
        cached > live && spans - live.min(spans) > IDLE
    }

    fn enter(&self, from: Mode, spans: u64) -> bool {
        self.spans_before.store(spans, Relaxed);
        self.patience.store(PATIENCE, Relaxed);
        self.mode.compare_exchange(from as u32, Mode::Sparse as u32, Relaxed, Relaxed).is_ok()
    }

    /// Whether a sixteenth of the spans went since the last time.
    fn refill_patience(&self, spans: u64) -> bool {
        let before = self.spans_before.load(Relaxed);
        let helped = spans < before - before / 16;
        if helped {
            self.spans_before.store(spans, Relaxed);
            self.patience.store(PATIENCE, Relaxed);
        }
        helped
    }
}

impl Arena {
    /// Looks at the density of spans after a slow call. No lock is held.
    pub(crate) fn watch_density(&self) {
        let spans = self.page().map_or(0, |page| page.header.span_bytes.load(Relaxed));
        if self.density.look(spans, || self.fronts.cells_bytes()) {
            self.empty_caches();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn none() -> u64 {
        0
    }

    #[test]
    fn a_spike_that_is_freed_is_sparse_until_its_spans_are_gone() {
        let density = Density::new();
        density.changed(0, 100 * MIB);
        assert!(!density.look(110 * MIB, none) && density.mode() == Mode::Dense);
        density.changed(100 * MIB, 50 * MIB);
        assert!(density.look(110 * MIB, none), "half is free");
        assert!(!density.look(110 * MIB, none) && density.mode() == Mode::Sparse);
        density.changed(50 * MIB, 2 * MIB);
        density.look(3 * MIB, none);
        assert_eq!(density.mode(), Mode::Dense, "the rest is not worth it");
    }

    #[test]
    fn live_cells_that_are_spread_cost_a_bounded_number_of_slow_calls() {
        let density = Density::new();
        density.changed(0, 20 * MIB);
        assert!(density.look(100 * MIB, none));
        for _ in 0..=PATIENCE {
            assert_eq!(density.mode(), Mode::Sparse);
            assert!(!density.look(100 * MIB, none));
        }
        assert_eq!(density.mode(), Mode::Resigned);
        density.changed(20 * MIB, 11 * MIB);
        assert!(!density.look(100 * MIB, none));
        density.changed(11 * MIB, 9 * MIB);
        assert!(density.look(100 * MIB, none), "half of what was outstanding is gone");
    }

    #[test]
    fn patience_lasts_while_spans_go() {
        let density = Density::new();
        density.changed(0, 10 * MIB);
        assert!(density.look(100 * MIB, none));
        for step in 0..10 * u64::from(PATIENCE) {
            density.look(100 * MIB - step * 2048, none);
        }
        assert_eq!(density.mode(), Mode::Sparse);
    }

    #[test]
    fn cells_that_are_mostly_cached_go_home() {
        let density = Density::new();
        density.changed(0, 20 * MIB);
        density.transfer_changed(0, 3 * MIB);
        let look = |in_fronts: u64| (0..COUNT_EVERY).any(|_| density.look(24 * MIB, || in_fronts));
        assert!(!look(6 * MIB), "11 of 20 are live");
        assert!(look(8 * MIB), "9 of 20 are live");
        density.changed(20 * MIB, 4 * MIB);
        density.transfer_changed(3 * MIB, 0);
        assert!((0..COUNT_EVERY).all(|_| !density.look(5 * MIB, || 4 * MIB)), "too little to go for");
    }
}
