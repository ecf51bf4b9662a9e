//! Many blocks of one size at a time.
//!
//! Whole batches go between the program and the front cache, each in one sequence. What the front cache does not have, or has no
//! room for, goes through the class's lock, which is taken once for up to [`MOST`] cells. A batch stands in the thread's
//! record while it is on its way, as that of a refill does.
//!
//! Lock: the class's. Callers: hosts.

use super::Arena;
use super::core::Entry;
use super::hot::Found;
use super::sample::Site;
use crate::cell::{CACHED, LIVE};
use crate::stats;
use crate::sys::{KeepErrno, clock};
use core::sync::atomic::{AtomicU64, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::directory::{BATCH, ThreadRecord};
use hg_probes::emit;
use hg_probes::words::{CorruptionKind, Destination, Reason, Source};

/// Cells that one acquisition of a lock moves at most: about ten microseconds.
const MOST: usize = 1024;

impl Arena {
    /// Allocates blocks of one size into `to`, from its start. Returns how many there was memory for; places beyond are untouched.
    pub fn malloc_many(&self, size: usize, to: &mut [*mut u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.class_of(size).map_or(0, |class| self.take_many(class, size, rest)) {
                // Not so: what is large, and where the class has to get memory first.
                0 => match (self.malloc(size), rest.first_mut()) {
                    (block, Some(place)) if !block.is_null() => {
                        *place = block;
                        done += 1;
                    }
                    _ => return done,
                },
                taken => done += taken,
            }
        }
        done
    }

    /// Frees many blocks, each as [`free`](Self::free) does.
    pub fn free_many(&self, blocks: &[*mut u8]) {
        let mut rest = blocks;
        while let Some((first, others)) = rest.split_first() {
            rest = match self.put_many(rest) {
                0 => {
                    self.free(*first);
                    others
                }
                put => rest.get(put..).unwrap_or_default(),
            };
        }
    }

    /// Fills places from a cache or from spans. Returns how many, which may be less than could be had.
    fn take_many(&self, class: usize, size: usize, to: &mut [*mut u8]) -> usize {
        // A signal handler whose thread has a batch on its way goes one by one.
        let Some(record) = self.record().filter(|record| record.batch_len.load(Relaxed) == 0) else { return 0 };
        let (mut taken, mut bad) = self.take_front(class, record, to);
        if taken == 0 && bad == 0 {
            (taken, bad) = self.take_locked(class, record, to);
        }
        for _ in 0..bad {
            self.refuse(CorruptionKind::DoubledEntry, self.user, class, 0);
        }
        self.count_down_many(record, size, to.get(..taken).unwrap_or_default());
        taken
    }

    /// Returns how many places were filled, and how many entries were no free cells.
    fn take_front(&self, class: usize, record: &ThreadRecord, to: &mut [*mut u8]) -> (usize, usize) {
        let held = self.block().map_or(0, |block| self.front_length(block, class));
        let want = held.min(to.len()).min(BATCH);
        record.batch_len.store(want as u32, Release);
        let batch = record.batch.get(..want).unwrap_or_default();
        let batch = if self.pop_batch(class, batch) { batch } else { &[] };
        let given = self.hand_out_many(batch, to);
        record.batch_len.store(0, Release);
        (given, batch.len() - given)
    }

    /// The same, under the class's lock.
    fn take_locked(&self, class: usize, record: &ThreadRecord, to: &mut [*mut u8]) -> (usize, usize) {
        let start = clock::now_ns();
        let Some(guard) = self.lock_class(class, Reason::Refill) else { return (0, 0) };
        let held = self.core().pool(class).transfer_len.load(Relaxed);
        let (mut given, mut bad, mut reused, mut carved, mut fresh) = (0, 0, 0, 0, false);
        while let Some(rest) = to.get_mut(given..MOST.min(to.len())).filter(|rest| !rest.is_empty()) {
            record.batch_len.store(rest.len().min(BATCH) as u32, Release);
            let found = self.take_cells(&guard, class, rest.len(), record);
            let count = found.reused + found.carved;
            guard.commit();
            let here = self.hand_out_many(record.batch.get(..count).unwrap_or_default(), rest);
            record.batch_len.store(0, Release);
            (given, bad) = (given + here, bad + count - here);
            (reused, carved) = (reused + found.reused, carved + found.carved);
            if count == 0 {
                match self.take_span(&guard, class) {
                    Some(true) => fresh = true,
                    _ => break,
                }
            }
        }
        self.publish_class(class, |block| {
            stats::add(&block.refills, 1);
            stats::add(&block.reused, reused as u64);
            stats::add(&block.carved, carved as u64);
        });
        drop(guard);
        self.count(|process| &process.refills, 1);
        emit::refill(|| args::refill {
            arena: self.number,
            class: self.cell_size(class),
            reused: reused as u32,
            carved: carved as u32,
            source: match carved {
                0 if held > 0 => Source::Transfer,
                0 => Source::Central,
                _ if fresh => Source::Fresh,
                _ => Source::Carve,
            },
            ns: clock::now_ns().saturating_sub(start),
        });
        (given, bad)
    }

    /// Makes the cells of a batch LIVE. Returns how many places were filled.
    fn hand_out_many(&self, batch: &[AtomicU64], to: &mut [*mut u8]) -> usize {
        let mut places = to.iter_mut();
        let cells = batch.iter().filter_map(|entry| self.hand_out(Entry(entry.load(Relaxed)), None));
        cells.zip(&mut places).map(|(address, place)| *place = address).count()
    }

    /// Counts allocations for samples.
    fn count_down_many(&self, record: &ThreadRecord, size: usize, blocks: &[*mut u8]) {
        let (left, bytes) = (record.sample_left.load(Relaxed), (size * blocks.len()) as u64);
        if left > bytes {
            return record.sample_left.store(left - bytes, Relaxed);
        }
        let found = blocks.iter().filter_map(|block| self.hot.find(*block as usize));
        found.for_each(|found| self.count_down(record, found.entry, size, || Site::UNKNOWN));
    }

    /// Frees the first blocks, as far as they are ordinary cells of one class. Returns how many.
    fn put_many(&self, blocks: &[*mut u8]) -> usize {
        let Some(record) = self.record().filter(|record| record.batch_len.load(Relaxed) == 0) else { return 0 };
        let Some(class) = blocks.first().and_then(|first| self.hot.find(*first as usize)).map(|found| found.class)
        else {
            return 0;
        };
        let count = self.take_back(class, blocks, record);
        let batch = record.batch.get(..count).unwrap_or_default();
        if self.push_batch(class, batch) {
            record.batch_len.store(0, Release);
            return count;
        }
        self.put_locked(class, blocks, count, record)
    }

    /// Frees the batch in the record, the first `count` blocks, and those behind it, under the class's lock. Returns how many.
    fn put_locked(&self, class: usize, blocks: &[*mut u8], count: usize, record: &ThreadRecord) -> usize {
        let _errno = KeepErrno::new();
        let start = clock::now_ns();
        let Some(guard) = self.lock_class(class, Reason::Flush) else {
            record.batch.iter().take(count).for_each(|entry| self.defer(Entry(entry.load(Relaxed))));
            record.batch_len.store(0, Release);
            return count;
        };
        let transfer = &self.core().pool(class).transfer_len;
        let held = transfer.load(Relaxed);
        let (mut done, mut here) = (0, count);
        while here > 0 {
            self.put_cells(&guard, class, record.batch.get(..here).unwrap_or_default(), true);
            guard.commit();
            record.batch_len.store(0, Release);
            done += here;
            here = self.take_back(class, blocks.get(done..MOST.min(blocks.len())).unwrap_or_default(), record);
        }
        let cached = transfer.load(Relaxed).saturating_sub(held) as usize;
        self.publish_class(class, |block| {
            stats::add(&block.flushes, 1);
            stats::add(&block.flushed, done as u64);
        });
        drop(guard);
        self.count(|process| &process.flushes, 1);
        emit::flush(|| args::flush {
            arena: self.number,
            class: self.cell_size(class),
            cells: done as u32,
            destination: if cached == done { Destination::Transfer } else { Destination::Central },
            ns: clock::now_ns().saturating_sub(start),
        });
        self.shrink_above_slack();
        self.look_after_the_dead();
        done
    }

    /// Makes LIVE cells CACHED, and has them in the record, as far as the first blocks are such of the class. Returns how many.
    fn take_back(&self, class: usize, blocks: &[*mut u8], record: &ThreadRecord) -> usize {
        for (count, (block, place)) in blocks.iter().zip(&record.batch).enumerate() {
            let Some(Found { entry, state, .. }) = self.hot.find(*block as usize).filter(|found| found.class == class)
            else {
                return count;
            };
            // Told before it is done: an entry too many in a record does no harm.
            place.store(entry.0, Relaxed);
            record.batch_len.store(count as u32 + 1, Release);
            if state.compare_exchange(LIVE, CACHED, AcqRel, Relaxed).is_err() {
                record.batch_len.store(count as u32, Release);
                return count;
            }
        }
        blocks.len().min(BATCH)
    }
}
