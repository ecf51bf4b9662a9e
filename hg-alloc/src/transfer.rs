//! The transfer cache of a class: cells on their way from one CPU's front cache to another's.
//!
//! A stack of whole batches in front of the spans, under the class lock: a flush leaves its batch here and the next refill
//! takes it, without looking at a bitmap. Cells in it stay CACHED.

use crate::cell::Entry;
use crate::density::Mode;
use crate::size_class::BATCH_MAX;

/// Bytes of cells that fit (or one batch and a cell, if that is more), and the most batches.
const BYTES: usize = 128 << 10;
const BATCHES: usize = 8;

const ENTRIES: usize = BATCHES * BATCH_MAX;

/// Bytes of memory for one transfer cache.
pub(crate) const TRANSFER_BYTES: usize = ENTRIES * size_of::<Entry>();

/// A stack of entries. Under the class lock. The entries lie in memory mapped for them, not in the arena's static: most classes
/// never touch theirs, and what is not touched costs nothing there.
pub(crate) struct Transfer {
    /// Address of the entries, 0 before the arena's start.
    address: usize,
    length: usize,
}

impl Transfer {
    pub(crate) const fn new() -> Self {
        Transfer { address: 0, length: 0 }
    }

    /// Gives the cache its memory: [`TRANSFER_BYTES`] zeros, for ever.
    pub(crate) fn start(&mut self, address: usize) {
        self.address = address;
    }

    fn entries(&mut self) -> &mut [Entry] {
        if self.address == 0 {
            return &mut [];
        }
        // SAFETY: S3, the memory belongs to the class lock, which is held; zeros are entries.
        unsafe { core::slice::from_raw_parts_mut(self.address as *mut Entry, ENTRIES) }
    }

    /// Cells in it.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Whether a batch and one cell more fit, for a class whose batches have `batch` cells of `size` bytes, and in a part of
    /// the cache: all of it, one batch, or none where spans are sparse.
    pub(crate) fn has_room(&self, batch: usize, size: usize, mode: Mode) -> bool {
        let cells = match mode {
            Mode::Dense => (BYTES / size).clamp(batch + 1, BATCHES * batch),
            Mode::Resigned => batch + 1,
            Mode::Sparse => 0,
        };
        self.length + batch < cells
    }

    /// Puts an entry on top. The caller asked [`has_room`](Self::has_room).
    pub(crate) fn put(&mut self, entry: Entry) -> bool {
        let length = self.length;
        match self.entries().get_mut(length) {
            Some(place) => {
                *place = entry;
                self.length += 1;
                true
            }
            None => false,
        }
    }

    /// Puts a batch on top that `fill` writes, if it says that it did.
    pub(crate) fn put_batch(&mut self, batch: usize, fill: impl FnOnce(&mut [Entry]) -> bool) -> bool {
        let length = self.length;
        let filled = self.entries().get_mut(length..length + batch).is_some_and(fill);
        if filled {
            self.length += batch;
        }
        filled
    }

    /// Takes up to `want` entries, at least one, off the top, if `drain` says that it has them all.
    pub(crate) fn take_batch(&mut self, want: usize, drain: impl FnOnce(&[Entry]) -> bool) -> usize {
        let length = self.length;
        let rest = length.saturating_sub(want);
        let drained = self.entries().get(rest..length).is_some_and(|batch| !batch.is_empty() && drain(batch));
        if !drained {
            return 0;
        }
        let taken = self.length - rest;
        self.length = rest;
        taken
    }

    /// Passes up to `want` entries on, topmost first, until `sink` refuses one. Returns how many it took.
    pub(crate) fn take(&mut self, want: usize, sink: &mut impl FnMut(Entry) -> bool) -> usize {
        let mut taken = 0;
        while taken < want && self.length > 0 {
            let last = self.length - 1;
            let Some(entry) = self.entries().get(last).copied() else { break };
            if !sink(entry) {
                break;
            }
            self.length -= 1;
            taken += 1;
        }
        taken
    }
}
