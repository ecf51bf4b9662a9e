//! malloc and free of an arena made by handle: fast paths first, then refill and flush.
//!
//! Each leaves in the thread's record what it has in its hands, before it has it and until it has it no more. What the word
//! said before is put back at the end: a signal handler may come in between, and allocate.

use super::Arena;
use super::core::{Entry, Owner};
use super::front::{self, released};
use super::hook::Event;
use super::hot::Found;
use super::recover::batch_len;
use super::sample::Site;
use super::slot::Claim;
use crate::arena::ATTEMPTS;
use crate::cell::{CACHED, LIVE, SAMPLED};
use crate::safety::check;
use crate::size_class::{CLASSES, SLICE, SLICE_SHIFT, divide};
use crate::stats;
use crate::sys::{KeepErrno, clock};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::directory::{BATCH, ThreadRecord};
use hg_probes::emit;
use hg_probes::words::{Cause, CorruptionKind, Destination, Reason, Source};

impl Arena {
    /// Allocates `size` bytes, at least one, at a multiple of the arena's alignment. Null with ENOMEM if there is no memory.
    #[inline]
    pub fn malloc(&self, size: usize) -> *mut u8 {
        self.malloc_at(size, || Site::UNKNOWN)
    }

    /// As [`malloc`](Self::malloc), for a call site that is known: sampled bytes are counted there. `site` is called for a sample
    /// alone, and must not allocate.
    #[inline(always)]
    pub fn malloc_at(&self, size: usize, site: impl Fn() -> Site) -> *mut u8 {
        match self.class_of(size) {
            Some(class) if self.hot.is_single => self.malloc_single(class, size, site),
            Some(class) => self.malloc_cell(class, size, site, None),
            None => self.malloc_large(size, 1, None),
        }
    }

    /// Frees a block. Null is allowed; any bad address is refused and counted.
    #[inline(always)]
    pub fn free(&self, address: *mut u8) {
        if self.hot.is_single { self.free_single(address) } else { self.free_cell(address) }
    }

    /// Frees a block of any arena.
    pub(super) fn free_cell(&self, address: *mut u8) {
        let Some(record) = self.hot.record() else { return self.free_first(address) };
        let Some(Found { class, shape, entry, state }) = self.hot.find(address as usize) else {
            return self.free_other(address);
        };
        let before = record.in_flight.load(Relaxed);
        record.in_flight.store(entry.0, Release);
        let (array, id, sequence) = (shape.array, self.hot.id, self.hot.sequence);
        if self.hot.is_shared {
            // SAFETY: S13 and S1, the state is that of the entry's cell, which the thread's record names.
            let ended = unsafe { front::release(array, id, sequence, entry.0, state.as_ptr()) };
            if ended != released::DONE {
                self.free_slow(class, address, entry, record, ended);
            }
        } else if state.load(Relaxed) != LIVE {
            self.free_unusual(class, address, entry, record);
        } else {
            state.store(CACHED, Relaxed);
            // SAFETY: S13 and S1, the entry is in the calling thread's hands alone.
            if !unsafe { front::push(array, id, sequence, entry.0) } {
                self.flush(class, entry, record);
            }
        }
        record.in_flight.store(before, Release);
    }

    /// Goes on where a release did not end.
    #[cold]
    #[inline(never)]
    fn free_slow(&self, class: usize, address: *mut u8, entry: Entry, record: &ThreadRecord, ended: u32) {
        let swap = |state: &AtomicU8| state.compare_exchange(LIVE, CACHED, AcqRel, Relaxed).is_ok();
        if ended == released::IN_HANDS || ended == released::NOTHING && self.state(entry).is_some_and(swap) {
            self.flush(class, entry, record);
        } else {
            self.free_unusual(class, address, entry, record);
        }
    }

    /// Frees a cell that is not LIVE: a sample, or what is to be refused.
    #[cold]
    #[inline(never)]
    fn free_unusual(&self, class: usize, address: *mut u8, entry: Entry, record: &ThreadRecord) {
        let Some(state) = self.state(entry) else { return };
        match state.compare_exchange(SAMPLED, CACHED, AcqRel, Relaxed) {
            Ok(_) => {
                self.end_sample(entry);
                self.flush(class, entry, record);
            }
            Err(other) => self.refuse(CorruptionKind::DoubleFree, address as usize, class, other.into()),
        }
    }

    #[inline(always)]
    pub(super) fn malloc_cell(
        &self,
        class: usize,
        size: usize,
        site: impl Fn() -> Site,
        into: Option<&Claim>,
    ) -> *mut u8 {
        let Some(record) = self.hot.record() else { return self.malloc_first(class, size, &site(), into) };
        let before = record.in_flight.load(Relaxed);
        let array = self.hot.shape(class).array;
        // SAFETY: S13, a started arena's values and the calling thread's word.
        let entry = Entry(unsafe { front::pop(array, self.hot.id, self.hot.sequence, &record.in_flight) });
        if let Some(address) = self.hand_out(entry, into) {
            self.count_down(record, entry, size, site);
            record.in_flight.store(before, Release);
            return address;
        }
        self.malloc_slow(class, size, into, entry, record, before)
    }

    /// A thread's first malloc here, or one where there can be no record.
    #[cold]
    #[inline(never)]
    fn malloc_first(&self, class: usize, size: usize, site: &Site, into: Option<&Claim>) -> *mut u8 {
        match self.record() {
            Some(_) => self.malloc_cell(class, size, || *site, into),
            None => self.fail(size, Cause::Reentered),
        }
    }

    /// A thread's first free here, or one where there can be no record.
    #[cold]
    #[inline(never)]
    fn free_first(&self, address: *mut u8) {
        match self.record() {
            Some(_) => self.free_cell(address),
            None => self.free_unrecorded(address),
        }
    }

    /// Makes a cell LIVE that came out of a cache. `None` if it is not what a cache holds.
    #[inline(always)]
    pub(super) fn hand_out(&self, entry: Entry, into: Option<&Claim>) -> Option<*mut u8> {
        let (state, address) = self.hot.cell(entry)?;
        // SAFETY: S12, the address of a state.
        let state = unsafe { &*(state as *const AtomicU8) };
        if state.load(Relaxed) != CACHED {
            return None;
        }
        if let Some(claim) = into {
            claim.announce(address);
        }
        state.store(LIVE, Release);
        Some(address as *mut u8)
    }

    /// The entry of the cell that begins so many bytes into user memory, in a span that begins at a slice.
    #[inline(always)]
    pub(super) fn live_entry(&self, class: usize, head: usize, offset: usize) -> Option<Entry> {
        let shape = self.shapes().get(class)?;
        let (cell, rest) = divide(offset.wrapping_sub(head << SLICE_SHIFT) as u64, shape.reciprocal);
        let fits = rest < shape.reciprocal && cell < u64::from(shape.cells);
        fits.then(|| Entry::new(offset, self.layout.states_of(head, shape.size) + cell as usize))
    }

    /// Whether the cell that begins so many bytes into user memory is with the program.
    pub(super) fn is_live(&self, class: usize, head: usize, offset: usize) -> bool {
        let state = self.live_entry(class, head, offset).and_then(|entry| self.state(entry));
        state.is_some_and(|state| matches!(state.load(Relaxed), LIVE | SAMPLED))
    }

    #[cold]
    #[inline(never)]
    fn malloc_slow(
        &self,
        class: usize,
        size: usize,
        into: Option<&Claim>,
        popped: Entry,
        record: &ThreadRecord,
        before: u64,
    ) -> *mut u8 {
        let mut errno = KeepErrno::new();
        if popped.0 != 0 {
            self.refuse(CorruptionKind::DoubledEntry, self.user.wrapping_add(popped.offset()), class, popped.0);
        }
        let taken = loop {
            let entry = self.pop_patiently(class, &record.in_flight);
            if entry == 0 {
                break self.refill(class, record, into);
            }
            match self.hand_out(Entry(entry), into) {
                Some(address) => break Ok(address),
                None => self.refuse(CorruptionKind::DoubledEntry, self.user, class, entry),
            }
        };
        record.in_flight.store(before, Release);
        self.look_after_the_dead();
        taken.unwrap_or_else(|cause| {
            errno.out_of_memory();
            self.fail(size, cause)
        })
    }

    /// Fills the front cache with a batch and hands out one cell more.
    fn refill(&self, class: usize, record: &ThreadRecord, into: Option<&Claim>) -> Result<*mut u8, Cause> {
        let start = clock::now_ns();
        let spare = spare_record();
        let record_of_batch = if record.batch_len.load(Relaxed) == 0 { record } else { &spare };
        let (mut pressed, mut fresh) = (false, false);
        let shape = CLASSES.get(class).ok_or(Cause::TooLarge)?;
        for _ in 0..ATTEMPTS {
            let guard = self.lock_class(class, Reason::Refill).ok_or(Cause::Reentered)?;
            let has_front = self.block().is_some() && !self.core().pool(class).is_stopped();
            if has_front {
                self.raise(class);
            }
            // No more than the front cache has room for.
            let want = if has_front { (self.front_room(class) + 1).min(shape.batch as usize) } else { 1 };
            let held = self.core().pool(class).transfer_len.load(Relaxed);
            record_of_batch.batch_len.store(want.min(BATCH) as u32, Release);
            let found = self.take_cells(&guard, class, want, record_of_batch);
            let count = found.reused + found.carved;
            if let Some((last, rest)) = record_of_batch.batch.get(..count).and_then(|batch| batch.split_last()) {
                self.publish_class(class, |block| {
                    stats::add(&block.refills, 1);
                    stats::add(&block.reused, found.reused as u64);
                    stats::add(&block.carved, found.carved as u64);
                });
                drop(guard);
                let entry = Entry(last.load(Relaxed));
                record.in_flight.store(entry.0, Release);
                self.stock(class, rest);
                record_of_batch.batch_len.store(0, Release);
                self.count(|process| &process.refills, 1);
                let source = match found {
                    _ if found.carved > 0 && fresh => Source::Fresh,
                    _ if found.carved > 0 => Source::Carve,
                    _ if held > 0 => Source::Transfer,
                    _ => Source::Central,
                };
                emit::refill(|| args::refill {
                    arena: self.number,
                    class: self.cell_size(class),
                    reused: found.reused as u32,
                    carved: found.carved as u32,
                    source,
                    ns: clock::now_ns().saturating_sub(start),
                });
                return self.hand_out(entry, into).ok_or(Cause::Kernel);
            }
            record_of_batch.batch_len.store(0, Release);
            match self.take_span(&guard, class).ok_or(Cause::Reentered)? {
                true => fresh = true,
                false => {
                    drop(guard);
                    self.make_room(shape.slices as usize, 1, &mut pressed)?;
                }
            }
        }
        Err(Cause::Exhausted)
    }

    /// Puts entries of the thread's record into the front cache, or back where they came from.
    fn stock(&self, class: usize, entries: &[AtomicU64]) {
        if self.push_batch(class, entries) {
            return;
        }
        let pushed = entries.iter().take_while(|entry| self.push_patiently(class, entry.load(Relaxed))).count();
        let left = entries.get(pushed..).unwrap_or_default();
        if left.is_empty() {
            return;
        }
        match self.lock_class(class, Reason::Flush) {
            Some(guard) => {
                self.put_cells(&guard, class, left, true);
                self.publish_class(class, |block| stats::add(&block.flushed, left.len() as u64));
            }
            None => left.iter().for_each(|entry| self.defer(Entry(entry.load(Relaxed)))),
        }
    }

    /// Takes a batch out of the full front cache, and a cell that it did not take.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&self, class: usize, entry: Entry, record: &ThreadRecord) {
        if self.push_patiently(class, entry.0) {
            return;
        }
        let _errno = KeepErrno::new();
        let start = clock::now_ns();
        let spare = spare_record();
        let record = if record.batch_len.load(Relaxed) == 0 { record } else { &spare };
        let most = CLASSES.get(class).map_or(1, |shape| shape.batch as usize).min(BATCH);
        let want = self.block().map_or(0, |block| self.front_length(block, class).div_ceil(2)).min(most);
        record.batch_len.store(want as u32, Release);
        let batch = record.batch.get(..want).unwrap_or_default();
        let taken = if self.pop_batch(class, batch) { want } else { 0 };
        let cells = record.batch.get(..taken).unwrap_or_default();
        let Some(guard) = self.lock_class(class, Reason::Flush) else {
            cells.iter().for_each(|cell| self.defer(Entry(cell.load(Relaxed))));
            record.batch_len.store(0, Release);
            return self.defer(entry);
        };
        if self.block().is_some() {
            self.raise(class);
        }
        let held = self.core().pool(class).transfer_len.load(Relaxed);
        self.put_cells(&guard, class, cells, true);
        self.put_cells(&guard, class, &[AtomicU64::new(entry.0)], true);
        self.take_deferred(&guard);
        let cached = self.core().pool(class).transfer_len.load(Relaxed).saturating_sub(held);
        self.publish_class(class, |block| {
            stats::add(&block.flushes, 1);
            stats::add(&block.flushed, taken as u64 + 1);
        });
        drop(guard);
        record.batch_len.store(0, Release);
        self.count(|process| &process.flushes, 1);
        emit::flush(|| args::flush {
            arena: self.number,
            class: self.cell_size(class),
            cells: taken as u32 + 1,
            destination: if cached as usize > taken { Destination::Transfer } else { Destination::Central },
            ns: clock::now_ns().saturating_sub(start),
        });
        self.shrink_above_slack();
        self.look_after_the_dead();
    }

    /// Recovers what the dead had, where a lock told that somebody died. Ends a slow path: the thread has nothing in its hands.
    pub(super) fn look_after_the_dead(&self) {
        if self.core().somebody_died.load(Relaxed) != 0 && self.core().somebody_died.swap(0, Relaxed) != 0 {
            self.recover();
        }
        self.tell_waiting();
    }

    /// A free by a thread that can have no record: under the class's lock.
    #[cold]
    fn free_unrecorded(&self, address: *mut u8) {
        let offset = (address as usize).wrapping_sub(self.user);
        if offset < self.cap_bytes
            && let Owner::Span { class, head } = self.owner(offset >> SLICE_SHIFT)
            && let Some(entry) = self.live_entry(class, head, offset)
            && let Some(state) = self.state(entry)
        {
            if state.compare_exchange(LIVE, CACHED, AcqRel, Relaxed).is_err()
                && state.compare_exchange(SAMPLED, CACHED, AcqRel, Relaxed).is_err()
            {
                return self.refuse(CorruptionKind::DoubleFree, address as usize, class, state.load(Relaxed).into());
            }
            return match self.lock_class(class, Reason::Flush) {
                Some(guard) => self.put_central(&guard, class, entry),
                None => self.defer(entry),
            };
        }
        self.free_other(address);
    }

    /// Frees what is no cell: a large object, null, or a bad address.
    #[cold]
    #[inline(never)]
    fn free_other(&self, address: *mut u8) {
        let offset = (address as usize).wrapping_sub(self.user);
        if address.is_null() {
            return;
        }
        let _errno = KeepErrno::new();
        if offset >= self.cap_bytes {
            return self.refuse(CorruptionKind::ForeignFree, address as usize, usize::MAX, 0);
        }
        match self.owner(offset / SLICE) {
            Owner::Span { class, .. } => self.refuse(CorruptionKind::InteriorFree, address as usize, class, 0),
            _ if offset.is_multiple_of(SLICE) => self.free_large(address, offset / SLICE, None),
            _ => self.refuse(CorruptionKind::WildFree, address as usize, usize::MAX, 0),
        }
    }

    /// Counts a refused bad call of this process.
    #[cold]
    pub(super) fn refuse(&self, kind: CorruptionKind, address: usize, class: usize, detail: u64) {
        let size = self.cell_size(class);
        self.count(|process| &process.corruptions, 1);
        check::refuse(self.stats_page(), kind, address, size, detail);
        self.tell(Event::Corruption { kind, address, class: size });
    }

    /// Counts a failed allocation.
    #[cold]
    pub(super) fn fail(&self, size: usize, cause: Cause) -> *mut u8 {
        self.count(|process| &process.failed, 1);
        check::fail(Some(self.stats_page()), size, cause);
        crate::sys::Errno(libc::ENOMEM).set();
        null_mut()
    }

    /// Keeps a cell whose lock could not be had in a signal handler, for a later flush.
    pub(super) fn defer(&self, entry: Entry) {
        let left = self.core().deferred.iter().any(|place| place.compare_exchange(0, entry.0, AcqRel, Relaxed).is_ok());
        if !left {
            // Found by the next audit of a quiet arena.
            self.stats_page().header.cells_deferred.fetch_add(1, Relaxed);
        }
    }

    /// Puts deferred cells of the guard's class back.
    fn take_deferred(&self, guard: &super::lock::Guard) {
        let class = guard.class();
        for place in &self.core().deferred {
            let entry = Entry(place.load(Acquire));
            if entry.0 != 0 && self.locate(class, entry).is_some() {
                guard.commit();
                guard.set_long(place, 0);
                self.put_central(guard, class, entry);
            }
        }
    }

    /// Makes `count` slices available. When that cannot be, all caches are emptied once, so that no request fails while free
    /// memory can be reached; `pressed` says that this was done.
    pub(super) fn make_room(&self, count: usize, align: usize, pressed: &mut bool) -> Result<(), Cause> {
        match self.grow(count, align, if *pressed { Cause::Pressure } else { Cause::Exhausted }) {
            Err(cause) if *pressed || cause == Cause::Reentered => Err(cause),
            Err(_) => {
                *pressed = true;
                self.recover();
                self.empty_caches();
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Empties all caches that can be reached into their spans.
    pub(super) fn empty_caches(&self) {
        for class in 0..CLASSES.len() {
            self.empty_class(class);
        }
    }

    /// Empties a class's caches into its spans, and gives free spans to the grid.
    pub(super) fn empty_class(&self, class: usize) {
        let in_use = self.core().pool(class).spans.load(Relaxed) > 0;
        let Some(guard) = in_use.then(|| self.freeze(class)).flatten() else { return };
        let pool = self.core().pool(class);
        while let Some(last) = pool.transfer_len.load(Relaxed).checked_sub(1) {
            let entry = pool.transfer.get(last as usize).map_or(0, |word| word.load(Relaxed));
            guard.commit();
            guard.set(&pool.transfer_len, last);
            self.put_central(&guard, class, Entry(entry));
        }
        self.take_deferred(&guard);
        self.return_free_spans(&guard, class);
        self.publish_class(class, |_| {});
        self.thaw(guard, class);
    }
}

/// A record for a call that a signal handler makes while its thread's own is in use.
fn spare_record() -> ThreadRecord {
    // SAFETY: all zero is a record that is nobody's.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl Arena {
    /// Entries of cells in the hands of threads now, for an audit.
    pub(super) fn in_hands(&self) -> impl Iterator<Item = Entry> {
        self.threads().filter(|record| record.used.load(Relaxed) != 0).flat_map(|record| {
            let batch = record.batch.iter().take(batch_len(record));
            batch.chain([&record.in_flight]).map(|word| Entry(word.load(Relaxed))).filter(|entry| entry.0 != 0)
        })
    }
}
