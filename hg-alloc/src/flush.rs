//! The slow path of free: a batch of cells out of the front cache of the current CPU, to the transfer cache or to the spans.

use crate::arena::Arena;
use crate::cell::Entry;
use crate::size_class::CLASSES;
use crate::stats;
use crate::sys::{KeepErrno, clock};
use core::sync::atomic::Ordering::*;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Destination, Reason};

impl Arena {
    /// Takes a batch out of the full front cache, and a cell that it did not take; or makes the cache larger.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush(&'static self, entry: Entry) {
        // Room after all: the sequence was interrupted, or the thread uses a slot.
        if self.fronts.current().push(self.class_at(entry.cell), entry) {
            return;
        }
        let _errno = KeepErrno::new();
        if !self.flush_entry(entry) {
            return self.defer(entry);
        }
        while let Some(cell) = self.deferred.take() {
            let offset = cell.wrapping_sub(self.hot.base.load(Relaxed));
            if let Some(entry) = self.descriptor(offset).entry_at(cell, offset)
                && !self.flush_entry(entry)
            {
                return self.defer(entry);
            }
        }
        self.watch_density();
        self.shrink_above_slack();
    }

    /// Keeps a freed cell for a later flush.
    #[cold]
    fn defer(&self, entry: Entry) {
        if !self.deferred.leave(entry.cell)
            && let Some(page) = self.page()
        {
            page.header.cells_deferred.fetch_add(1, Relaxed);
        }
    }

    /// Returns false, having done nothing, if the class's lock cannot be had in a signal handler.
    fn flush_entry(&'static self, entry: Entry) -> bool {
        let start = clock::now_ns();
        let class = self.class_at(entry.cell);
        let (Some(lock), Some(shape)) = (self.pools.get(class), CLASSES.get(class)) else { return true };
        self.fronts.touch_zone(class, || self.front_budget());
        let Some(mut pool) = lock.lock(Reason::Flush) else { return false };
        let front = self.fronts.current();
        self.open_front(&front, class);
        front.raise(class, self.front_budget());
        if front.push(class, entry) {
            return true;
        }
        let batch = shape.batch as usize;
        let destination = if pool.transfer.has_room(batch, shape.size as usize, self.density.mode()) {
            Destination::Transfer
        } else {
            Destination::Central
        };
        let mut cells = 0;
        if destination == Destination::Transfer
            // A whole batch in one sequence, as a rule: the lock is held for a copy.
            && pool.transfer.put_batch(batch, |room| front.pop_batch(class, room))
        {
            cells = batch;
        }
        let mut next = Some(entry);
        while let Some(entry) = next {
            if destination == Destination::Central || !pool.transfer.put(entry) {
                pool.put_central(entry, self);
            }
            cells += 1;
            next = if cells <= batch { front.pop(class) } else { None };
        }
        self.publish_class(class, &mut pool, |block| {
            stats::add(&block.flushes, 1);
            stats::add(&block.flushed, cells as u64);
        });
        drop(pool);
        emit::flush(|| args::flush {
            arena: lock.arena(),
            class: shape.size,
            cells: cells as u32,
            destination,
            ns: clock::now_ns().saturating_sub(start),
        });
        true
    }
}
