//! Frees that have to wait: a signal handler interrupted the allocator with the very lock that the free needs.
//!
//! A few lock-free places hold such cells until the next flush of any thread puts them back. If all are taken the cell is
//! lost to the program, which the stats page counts.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

const PLACES: usize = 64;

/// Addresses of freed cells that wait.
pub(crate) struct Deferred {
    places: [AtomicUsize; PLACES],
    waiting: AtomicU32,
}

impl Deferred {
    pub(crate) const fn new() -> Self {
        Deferred { places: [const { AtomicUsize::new(0) }; PLACES], waiting: AtomicU32::new(0) }
    }

    /// Leaves a cell here. False if all places are taken.
    pub(crate) fn leave(&self, cell: usize) -> bool {
        let left = self.places.iter().any(|place| place.compare_exchange(0, cell, Release, Relaxed).is_ok());
        if left {
            self.waiting.fetch_add(1, Relaxed);
        }
        left
    }

    /// Takes one of the cells that wait.
    pub(crate) fn take(&self) -> Option<usize> {
        if self.waiting.load(Relaxed) == 0 {
            return None;
        }
        let cell = self.places.iter().map(|place| place.swap(0, Acquire)).find(|cell| *cell != 0)?;
        self.waiting.fetch_sub(1, Relaxed);
        Some(cell)
    }
}
