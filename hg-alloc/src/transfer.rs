//! The transfer cache of a class: cells on their way from one CPU's front cache to another's.
//!
//! A stack of whole batches in front of the spans, under the class lock: a flush leaves its batch here and the next refill
//! takes it, without looking at a bitmap. Cells in it stay CACHED.

use crate::cell::Entry;
use crate::size_class::BATCH_MAX;

/// Batches that fit.
const BATCHES: usize = 8;

/// A stack of entries. Under the class lock.
pub(crate) struct Transfer {
    entries: [Entry; BATCHES * BATCH_MAX],
    length: usize,
}

impl Transfer {
    pub(crate) const fn new() -> Self {
        Transfer { entries: [Entry::NONE; BATCHES * BATCH_MAX], length: 0 }
    }

    /// Cells in it.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Whether a batch and one cell more fit, for a class whose batches have `batch` cells.
    pub(crate) fn has_room(&self, batch: usize) -> bool {
        self.length + batch < BATCHES * batch
    }

    /// Puts an entry on top. The caller asked [`has_room`](Self::has_room).
    pub(crate) fn put(&mut self, entry: Entry) -> bool {
        match self.entries.get_mut(self.length) {
            Some(place) => {
                *place = entry;
                self.length += 1;
                true
            }
            None => false,
        }
    }

    /// Passes up to `want` entries on, topmost first, until `sink` refuses one. Returns how many it took.
    pub(crate) fn take(&mut self, want: usize, sink: &mut impl FnMut(Entry) -> bool) -> usize {
        let mut taken = 0;
        while taken < want && self.length > 0 {
            let Some(entry) = self.entries.get(self.length - 1) else { break };
            if !sink(*entry) {
                break;
            }
            self.length -= 1;
            taken += 1;
        }
        taken
    }
}
