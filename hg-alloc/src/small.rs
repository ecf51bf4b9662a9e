//! Cells: malloc and free of up to 256 KiB.
//!
//! The fast paths come first: a table look-up and a pop; a descriptor, a check and a push. What they cannot do goes to a
//! slow path: the class's lock, and a batch of cells into or out of the front cache of the current CPU.

use crate::arena::Arena;
use crate::cell::{CACHED, Entry, LIVE, SAMPLED};
use crate::front::slot::Slot;
use crate::front::{OFFSETS, rseq};
use crate::grid::tables::Descriptor;
use crate::safety::check;
use crate::size_class::{CLASSES, MAX_SIZE, SLICE, SLICE_SHIFT, TABLE_MAX, class_of, divide};
use crate::stats;
use crate::sys::{KeepErrno, clock, rseq as kernel_rseq};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, CorruptionKind, Destination, Reason, Source};

/// Where the array of the class of each small size lies in a block: the size table of the fast path.
static ARRAYS: [u32; TABLE_MAX / 16 + 1] = {
    let mut arrays = [0; TABLE_MAX / 16 + 1];
    let mut step = 0;
    while step < arrays.len() {
        arrays[step] = OFFSETS[class_of(step * 16)];
        step += 1;
    }
    arrays
};

/// How often a slow path tries a sequence that is interrupted again and again, as under a debugger's single steps.
const RESTARTS: u32 = 16;

/// How often a slow path may find memory grown and still fail, because other threads took all of it.
const ATTEMPTS: u32 = 1000;

impl Arena {
    /// Allocates. Null with ENOMEM if there is no memory.
    #[inline(always)]
    pub(crate) fn malloc(&'static self, size: usize) -> *mut u8 {
        let array = if size < self.hot.table_limit.load(Relaxed) {
            // SAFETY: the limit is at most TABLE_MAX + 1, so the index is in the table.
            unsafe { *ARRAYS.get_unchecked(size.wrapping_add(15) >> 4) }
        } else if size <= MAX_SIZE && self.hot.table_limit.load(Relaxed) != 0 {
            // SAFETY: the class of a size up to MAX_SIZE is below COUNT.
            unsafe { *OFFSETS.get_unchecked(class_of(size)) }
        } else {
            return self.malloc_slow(size, Entry::NONE);
        };
        // SAFETY: S5, the arena is started, or the limit would have been 0.
        let entry = unsafe { self.pop(array as usize) };
        // SAFETY: S4, the entry stood in a front cache, or has the state byte of a failed pop.
        let state = unsafe { entry.state() };
        if state.load(Relaxed) == CACHED {
            state.store(LIVE, Relaxed);
            return entry.cell as *mut u8;
        }
        self.malloc_slow(size, entry)
    }

    /// Frees. A bad address is refused and counted.
    #[inline(always)]
    pub(crate) fn free(&'static self, address: *mut u8) {
        let offset = (address as usize).wrapping_sub(self.hot.base.load(Relaxed));
        if offset < self.hot.limit.load(Relaxed) {
            let descriptor = self.descriptor(offset);
            if let Some(entry) = descriptor.entry_at(address as usize, offset) {
                // SAFETY: S4, the address is the start of a cell in a span.
                let state = unsafe { entry.state() };
                if state.load(Relaxed) == LIVE {
                    state.store(CACHED, Relaxed);
                    // SAFETY: S5, memory is accessible, so the arena is started; S1, the cell was the caller's alone.
                    if unsafe { self.push(descriptor.array.load(Relaxed), entry) } {
                        return;
                    }
                    return self.flush(entry);
                }
            }
        }
        self.free_slow(address as usize)
    }

    /// The descriptor of the slice that is `offset` bytes into the accessible memory.
    #[inline(always)]
    fn descriptor(&self, offset: usize) -> &Descriptor {
        let at = self.hot.descriptors.load(Relaxed) + (offset >> SLICE_SHIFT) * size_of::<Descriptor>();
        // SAFETY: S4, descriptors of accessible memory are accessible for ever.
        unsafe { &*(at as *const Descriptor) }
    }

    /// # Safety
    /// S5: the arena is started.
    #[inline(always)]
    unsafe fn pop(&self, array: usize) -> Entry {
        let (fronts, id) = (self.hot.fronts.load(Relaxed), self.hot.id.load(Relaxed));
        // SAFETY: S5, all values are the started arena's.
        unsafe { rseq::pop(fronts + array, id, self.hot.sequence.load(Relaxed)) }
    }

    /// # Safety
    /// S5: the arena is started. S1: the cell is CACHED and in no other place.
    #[inline(always)]
    unsafe fn push(&self, array: usize, entry: Entry) -> bool {
        let (fronts, id) = (self.hot.fronts.load(Relaxed), self.hot.id.load(Relaxed));
        // SAFETY: S5, all values are the started arena's; S1 by the caller's promise.
        unsafe { rseq::push(fronts + array, id, self.hot.sequence.load(Relaxed), entry) }
    }

    /// `popped` is an entry that the fast path took and did not find CACHED, or none.
    #[cold]
    #[inline(never)]
    fn malloc_slow(&'static self, size: usize, popped: Entry) -> *mut u8 {
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
        let front = Front::current(self);
        let due = front.count_down(class, || self.sampler.countdown(class_size(class) as usize));
        let entry = self.pop_cached(&front, class).map_or_else(|| self.refill(class, front), Ok)?;
        let sampled = due && {
            let weight = self.sampler.weight(class_size(class) as usize);
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
            check::refuse(page, CorruptionKind::DoubledEntry, entry.cell, class_size(class), detail);
        }
    }

    /// Fills the front cache with a batch and returns one cell more, still CACHED.
    fn refill(&'static self, class: usize, front: Front) -> Result<Entry, Cause> {
        let start = clock::now_ns();
        let (Some(lock), Some(shape), Some(settings)) = (self.pools.get(class), CLASSES.get(class), self.settings())
        else {
            return Err(Cause::NoReservation);
        };
        let want = shape.batch as usize;
        let mut pressed = false;
        let mut fresh = false;
        for _ in 0..ATTEMPTS {
            let Some(mut pool) = lock.lock(Reason::Refill) else { return self.borrow_larger(class) };
            self.fronts.open(front.block(), class);
            let mut first = Entry::NONE;
            let mut sink = |entry| {
                if first.cell == 0 {
                    first = entry;
                    return true;
                }
                front.push(class, entry)
            };
            let mut source = Source::Transfer;
            let mut reused = pool.transfer.take(want, &mut sink);
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
                self.publish_class(class, &pool);
                if let Some(page) = self.page() {
                    stats::class(page, class, |block| {
                        stats::add(&block.refills, 1);
                        stats::add(&block.reused, reused as u64);
                        stats::add(&block.carved, carved as u64);
                    });
                }
                drop(pool);
                emit::refill(|| args::refill {
                    arena: lock.arena(),
                    class: shape.size,
                    reused: reused as u32,
                    carved: carved as u32,
                    source,
                    ns: clock::now_ns().saturating_sub(start),
                });
                return Ok(first);
            }
            match pool.central.attach_span(&self.grid) {
                Ok(()) => {
                    fresh = true;
                    continue;
                }
                Err(crate::central::Empty::Reentered) => return Err(Cause::Reentered),
                Err(crate::central::Empty::Grid(need)) => {
                    drop(pool);
                    let grown = self.grid.grow(need, Cause::Exhausted, settings.backing, &self.hot.limit);
                    if let Err((cause, _)) = grown {
                        if pressed || cause == Cause::Reentered {
                            return Err(cause);
                        }
                        // Before a NULL is returned every cache that can be reached is emptied.
                        pressed = true;
                        self.trim(Cause::Pressure);
                    }
                }
            }
        }
        Err(Cause::Exhausted)
    }

    /// A cell of a larger class from the front cache, for a signal handler that interrupted the holder of the class's lock.
    fn borrow_larger(&self, class: usize) -> Result<Entry, Cause> {
        let front = Front::current(self);
        (class + 1..CLASSES.len()).find_map(|larger| front.pop(larger)).ok_or(Cause::Reentered)
    }

    /// Takes a batch out of the full front cache, and a cell that it did not take; or makes the cache larger.
    #[cold]
    #[inline(never)]
    fn flush(&'static self, entry: Entry) {
        // Room after all: the sequence was interrupted, or the thread uses a slot.
        if Front::current(self).push(self.class_at(entry.cell), entry) {
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
        let Some(mut pool) = lock.lock(Reason::Flush) else { return false };
        let front = Front::current(self);
        self.fronts.open(front.block(), class);
        self.fronts.raise(front.block(), class, self.front_budget());
        if front.push(class, entry) {
            return true;
        }
        let batch = shape.batch as usize;
        let destination = if pool.transfer.has_room(batch) { Destination::Transfer } else { Destination::Central };
        let mut next = Some(entry);
        let mut cells = 0u32;
        while let Some(entry) = next {
            if destination == Destination::Central || !pool.transfer.put(entry) {
                pool.put_central(entry, self);
            }
            cells += 1;
            next = if (cells as usize) <= batch { front.pop(class) } else { None };
        }
        self.publish_class(class, &pool);
        if let Some(page) = self.page() {
            stats::class(page, class, |block| {
                stats::add(&block.flushes, 1);
                stats::add(&block.flushed, u64::from(cells));
            });
        }
        drop(pool);
        emit::flush(|| args::flush {
            arena: lock.arena(),
            class: shape.size,
            cells,
            destination,
            ns: clock::now_ns().saturating_sub(start),
        });
        true
    }

    /// The class of the span at an address of accessible memory.
    pub(crate) fn class_at(&self, address: usize) -> usize {
        let offset = address.wrapping_sub(self.hot.base.load(Relaxed));
        let array = self.descriptor(offset).array.load(Relaxed);
        OFFSETS.partition_point(|offset| (*offset as usize) < array)
    }

    /// Frees what is no live cell: a large object, nothing at all, or a bad address.
    #[cold]
    #[inline(never)]
    fn free_slow(&'static self, address: usize) {
        let _errno = KeepErrno::new();
        if address == 0 {
            return;
        }
        match self.look_up(address) {
            Ok(Object::Large) => self.free_large(address),
            Ok(Object::Cell { sampled: Some(entry), .. }) => self.free_sampled(entry),
            // Became live between the check and now: the race of two frees that private arenas allow.
            Ok(Object::Cell { class, .. }) => self.refuse(CorruptionKind::DoubleFree, address, class_size(class), 0),
            Err(bad) => self.refuse(bad.kind, address, bad.class, bad.detail),
        }
    }

    fn free_sampled(&'static self, entry: Entry) {
        self.sampler.give(self.number, entry.cell);
        // SAFETY: S4, the entry is a cell of a span.
        unsafe { entry.state() }.store(CACHED, Relaxed);
        self.flush(entry);
    }

    /// Counts and tells a bad call.
    pub(crate) fn refuse(&'static self, kind: CorruptionKind, address: usize, class: u32, detail: u64) {
        // The very first call may be a bad free.
        if (self.page().is_some() || self.ensure_started())
            && let Some(page) = self.page()
        {
            check::refuse(page, kind, address, class, detail);
        }
    }

    /// What lives at an address: the start of a live cell, perhaps a large object, or the reason why it is neither.
    pub(crate) fn look_up(&self, address: usize) -> Result<Object, Bad> {
        let bad = |kind, class, detail| Err(Bad { kind, class, detail });
        let offset = address.wrapping_sub(self.hot.base.load(Relaxed));
        if offset >= self.hot.limit.load(Relaxed) {
            let reserved = self.settings().is_some_and(|settings| offset < settings.cap_bytes);
            let kind = if reserved { CorruptionKind::WildFree } else { CorruptionKind::ForeignFree };
            return bad(kind, 0, 0);
        }
        let descriptor = self.descriptor(offset);
        if descriptor.reciprocal.load(Relaxed) == 0 {
            return if offset.is_multiple_of(SLICE) {
                Ok(Object::Large)
            } else {
                bad(CorruptionKind::InteriorFree, 0, 0)
            };
        }
        let class = self.class_at(address);
        let Some(entry) = descriptor.entry_at(address, offset) else {
            return bad(CorruptionKind::InteriorFree, class_size(class), 0);
        };
        // SAFETY: S4, the address is the start of a cell in a span.
        match unsafe { entry.state() }.load(Relaxed) {
            LIVE => Ok(Object::Cell { class, sampled: None }),
            SAMPLED => Ok(Object::Cell { class, sampled: Some(entry) }),
            state => bad(CorruptionKind::DoubleFree, class_size(class), u64::from(state)),
        }
    }
}

impl Descriptor {
    /// The cell that starts at an address `offset` bytes into the accessible memory, if one does in this slice.
    #[inline(always)]
    fn entry_at(&self, address: usize, offset: usize) -> Option<Entry> {
        let reciprocal = self.reciprocal.load(Relaxed);
        // A slice of no span has reciprocal 0, which no rest is below, whatever its start says.
        let (cell, rest) = divide(offset.wrapping_sub(self.start.load(Relaxed)) as u64, reciprocal);
        let state = self.first_state.load(Relaxed).wrapping_add(cell as usize);
        (rest < reciprocal).then_some(Entry { cell: address, state })
    }
}

/// What lives at an address.
pub(crate) enum Object {
    /// A live cell starts there; `sampled` is the cell if it is a sample.
    Cell { class: usize, sampled: Option<Entry> },
    /// If anything, a large object; the grid knows.
    Large,
}

/// Why nothing that can be freed lives at an address.
pub(crate) struct Bad {
    pub(crate) kind: CorruptionKind,
    /// Cell size of the span there, or 0.
    pub(crate) class: u32,
    /// The state byte found, or 0.
    pub(crate) detail: u64,
}

fn class_size(class: usize) -> u32 {
    CLASSES.get(class).map_or(0, |shape| shape.size)
}

/// The front cache that the calling thread uses on a slow path.
enum Front<'a> {
    /// That of the CPU it runs on, which may change at any moment; `block` is that of a moment ago.
    Rseq { arena: &'a Arena, block: usize },
    /// A slot of its own for now, or none if somebody else has it.
    Slot { slot: Option<Slot<'a>>, fallback_block: usize },
}

impl<'a> Front<'a> {
    fn current(arena: &'a Arena) -> Front<'a> {
        match kernel_rseq::current_id(arena.hot.id.load(Relaxed)) {
            id if id >= 0 => Front::Rseq { arena, block: (id as usize).min(arena.fronts.rseq_blocks() - 1) },
            _ => Front::Slot { slot: arena.fronts.slot(), fallback_block: arena.fronts.rseq_blocks() },
        }
    }

    fn block(&self) -> usize {
        match self {
            Front::Rseq { block, .. } => *block,
            Front::Slot { slot, fallback_block } => slot.as_ref().map_or(*fallback_block, |slot| slot.block),
        }
    }

    /// Counts an allocation of a class that came here; sets the countdown anew where it is over. Returns whether the
    /// allocation ends one, which that of an array never used does not.
    fn count_down(&self, class: usize, next: impl FnOnce() -> u16) -> bool {
        let (arena, block) = match self {
            Front::Rseq { arena, block } => (arena, *block),
            Front::Slot { slot, .. } => return slot.as_ref().is_some_and(|slot| slot.count_down(class, next)),
        };
        let head = arena.fronts.head(block, class);
        let Some(array) = OFFSETS.get(class) else { return false };
        let (over, used) = (head.countdown_over(), head.is_open());
        // What the array cannot serve counts here; what it can serve, the pop that follows counts.
        let counted = if over { next() } else { head.countdown() };
        let countdown = if head.is_empty() { counted.saturating_sub(1) } else { counted };
        let (fronts, id, sequence) = (&arena.hot.fronts, &arena.hot.id, &arena.hot.sequence);
        let armed = (0..RESTARTS).any(|_| {
            // SAFETY: S5, slow paths run in a started arena.
            unsafe {
                rseq::arm(fronts.load(Relaxed) + *array as usize, id.load(Relaxed), sequence.load(Relaxed), countdown)
            }
        });
        armed && over && used
    }

    /// Takes the topmost entry of a class, unless the array is empty or 16 attempts were interrupted.
    fn pop(&self, class: usize) -> Option<Entry> {
        let (arena, block) = match self {
            Front::Rseq { arena, block } => (arena, *block),
            Front::Slot { slot, .. } => return slot.as_ref()?.pop(class),
        };
        let array = *OFFSETS.get(class)? as usize;
        for _ in 0..RESTARTS {
            // SAFETY: S5, slow paths run in a started arena.
            let entry = unsafe { arena.pop(array) };
            if entry.cell != 0 {
                return Some(entry);
            }
            if arena.fronts.head(block, class).is_empty() {
                break;
            }
        }
        None
    }

    /// Puts an entry on top of a class's array, unless that is full or 16 attempts were interrupted.
    fn push(&self, class: usize, entry: Entry) -> bool {
        let (arena, block) = match self {
            Front::Rseq { arena, block } => (arena, *block),
            Front::Slot { slot, .. } => return slot.as_ref().is_some_and(|slot| slot.push(class, entry)),
        };
        let Some(array) = OFFSETS.get(class) else { return false };
        for _ in 0..RESTARTS {
            // SAFETY: S5, slow paths run in a started arena; S1, the entry is in flight here alone.
            if unsafe { arena.push(*array as usize, entry) } {
                return true;
            }
            if arena.fronts.head(block, class).is_full() {
                break;
            }
        }
        false
    }
}
