//! The slow path of malloc: a batch of cells from the class into the front cache of the current CPU.
//!
//! Sources in this order: the transfer cache, recycled cells of the class's spans, never-used cells, a new span from the
//! grid, more memory from the system. The class lock is held while cells move, so that a fork finds none in flight.

use crate::arena::{ATTEMPTS, Arena};
use crate::cell::{CACHED, CENTRAL, Entry, LIVE, SAMPLED};
use crate::central::Empty;
use crate::density::Mode;
use crate::front::Front;
use crate::safety::check;
use crate::size_class::{CLASSES, MAX_SIZE, class_of, size_of_class};
use crate::stats;
use crate::sys::{KeepErrno, clock};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, CorruptionKind, Reason, Source};

impl Arena {
    /// `popped` is an entry that the fast path took and did not find CACHED, or none.
    #[cold]
    #[inline(never)]
    pub(crate) fn malloc_slow(&'static self, size: usize, popped: Entry) -> *mut u8 {
        let mut errno = KeepErrno::new();
        if size > MAX_SIZE {
            return self.malloc_large(size, 1, &mut errno).0;
        }
        match self.take_cell(size, popped) {
            Ok((entry, sampled)) => {
                // SAFETY: S4, the entry came from a front cache or from its span.
                unsafe { entry.state() }.store(if sampled { SAMPLED } else { LIVE }, Relaxed);
                entry.cell as *mut u8
            }
            Err(cause) => {
                check::fail(self.page(), size, cause);
                errno.out_of_memory();
                null_mut()
            }
        }
    }

    /// A cell, still CACHED, from the front cache or by a refill; and whether it is a sample.
    fn take_cell(&'static self, size: usize, popped: Entry) -> Result<(Entry, bool), Cause> {
        if self.page().is_none() && !self.ensure_started() {
            return Err(Cause::NoReservation);
        }
        let class = class_of(size);
        self.refuse_doubled(popped, class);
        let front = self.fronts.current();
        let due = front.count_down(class, || self.sampler.countdown(size_of_class(class) as usize));
        let cached = self.pop_cached(&front, class);
        // Not held through a refill, which may empty all slots.
        drop(front);
        let entry = cached.map_or_else(|| self.refill(class), Ok)?;
        let sampled = due && {
            let weight = self.sampler.weight(size_of_class(class) as usize);
            self.sampler.take(self.number, entry.cell, size, weight)
        };
        Ok((entry, sampled))
    }

    /// The topmost cell of the front cache that is what it says; others are refused.
    fn pop_cached(&'static self, front: &Front, class: usize) -> Option<Entry> {
        while let Some(entry) = front.pop(class) {
            // SAFETY: S4, the entry stood in a front cache.
            if unsafe { entry.state() }.load(Relaxed) == CACHED {
                return Some(entry);
            }
            self.refuse_doubled(entry, class);
        }
        None
    }

    #[cold]
    fn refuse_doubled(&self, entry: Entry, class: usize) {
        if entry.cell != 0
            && let Some(page) = self.page()
        {
            // SAFETY: S4, the entry stood in a front cache.
            let detail = u64::from(unsafe { entry.state() }.load(Relaxed));
            check::refuse(page, CorruptionKind::DoubledEntry, entry.cell, size_of_class(class), detail);
        }
    }

    /// Fills the front cache with a batch and returns one cell more, still CACHED.
    fn refill(&'static self, class: usize) -> Result<Entry, Cause> {
        let start = clock::now_ns();
        let (Some(lock), Some(shape)) = (self.pools.get(class), CLASSES.get(class)) else {
            return Err(Cause::NoReservation);
        };
        let want = shape.batch as usize;
        let mut pressed = false;
        let mut fresh = false;
        self.fronts.touch_zone(class, || self.front_budget());
        for _ in 0..ATTEMPTS {
            let Some(mut pool) = lock.lock(Reason::Refill) else { return self.borrow_larger(class) };
            let front = self.fronts.current();
            // Dry for the second time: more than the first few cells are wanted.
            if self.fronts.head(front.block(), class).is_open() {
                front.enlarge(class, self.front_budget());
            } else {
                self.open_front(&front, class);
            }
            let mut first = Entry::NONE;
            let mut source = Source::Transfer;
            // A whole batch in one sequence, as a rule: the lock is held for a copy.
            let mut reused = pool.transfer.take_batch(want, |batch| {
                let Some((last, rest)) = batch.split_last() else { return false };
                let taken = front.push_batch(class, rest);
                first = if taken { *last } else { Entry::NONE };
                taken
            });
            let mut sink = |entry| {
                if first.cell == 0 {
                    first = entry;
                    return true;
                }
                front.push(class, entry)
            };
            if reused == 0 {
                reused = pool.transfer.take(want, &mut sink);
            }
            let mut carved = 0;
            if reused == 0 {
                source = Source::Central;
                reused = pool.central.take_recycled(want, &mut sink);
            }
            if reused == 0 {
                source = if fresh { Source::Fresh } else { Source::Carve };
                carved = pool.central.carve(want, &mut sink);
            }
            if reused + carved > 0 {
                self.publish_class(class, &mut pool, |block| {
                    stats::add(&block.refills, 1);
                    stats::add(&block.reused, reused as u64);
                    stats::add(&block.carved, carved as u64);
                });
                drop(front);
                drop(pool);
                emit::refill(|| args::refill {
                    arena: lock.arena(),
                    class: shape.size,
                    reused: reused as u32,
                    carved: carved as u32,
                    source,
                    ns: clock::now_ns().saturating_sub(start),
                });
                self.watch_density();
                return Ok(first);
            }
            match pool.central.attach_span(&self.grid) {
                Ok(()) => {
                    fresh = true;
                    let states = pool.central.carving_states();
                    drop(front);
                    drop(pool);
                    // A first write is a page fault, for which nobody should wait.
                    for address in states {
                        // SAFETY: S4, the state of a cell of one of our spans: whosever it is by now, it stays what it is.
                        let state = unsafe { &*(address as *const AtomicU8) };
                        let _ = state.compare_exchange(CENTRAL, CENTRAL, Relaxed, Relaxed);
                    }
                }
                Err(Empty::Reentered) => return Err(Cause::Reentered),
                Err(Empty::Grid(need)) => {
                    drop(front);
                    drop(pool);
                    self.make_room(need, &mut pressed)?;
                }
            }
        }
        Err(Cause::Exhausted)
    }

    /// Opens a class's array, if it has no capacity; not one of large cells where spans are sparse, as each cell of it would
    /// keep a large span. Under the class's lock.
    pub(crate) fn open_front(&self, front: &Front, class: usize) {
        let large = CLASSES.get(class).is_none_or(|shape| shape.slices > 2);
        if !large || self.density.mode() != Mode::Sparse {
            self.fronts.open(front.block(), class);
        }
    }

    /// A cell of a larger class from the front cache, for a signal handler that interrupted the holder of the class's lock.
    fn borrow_larger(&self, class: usize) -> Result<Entry, Cause> {
        let front = self.fronts.current();
        (class + 1..CLASSES.len()).find_map(|larger| front.pop(larger)).ok_or(Cause::Reentered)
    }
}
