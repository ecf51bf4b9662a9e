//! Spans of a class and their cells, under the class's lock.
//!
//! A span's free cells are those whose state is CENTRAL; those from `carved` on were never used. A span with recycled cells
//! stands in the class's list. There is no other record of a free cell, so none that could disagree.
//!
//! A span goes from the grid to the class, and back, under both locks, in two commits. Between them the class's word `taking` or
//! `returning` names it, so that the next owner of the class's lock can ask the grid who has it, and finish.

use super::Arena;
use super::core::{Entry, Owner, Pool, TRANSFER};
use super::lock::Guard;
use crate::cell::{CACHED, CENTRAL};
use crate::size_class::SLICE;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use hg_probes::directory::{BATCH, ThreadRecord};
use hg_probes::words::Reason;

/// What a class knows of a span, at the slice where it begins.
#[repr(C)]
pub(super) struct SpanLinks {
    /// Slices, plus one, of its neighbours in the list of spans with recycled cells.
    next: AtomicU32,
    previous: AtomicU32,
    /// Recycled cells.
    pub(super) free: AtomicU32,
    /// Cells ever used.
    pub(super) carved: AtomicU32,
    /// No cell before this one is recycled.
    hint: AtomicU32,
    _pad: AtomicU32,
}

/// Changes that one cell makes at most.
const CELL_CHANGES: usize = 16;

/// What a refill found.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    pub(super) reused: usize,
    pub(super) carved: usize,
}

/// Eight states at once, for a search.
fn eight(states: &[AtomicU8; 8]) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|index| states[index].load(Relaxed)))
}

impl Arena {
    /// Bytes of the cells of a class here.
    #[inline(always)]
    pub(super) fn cell_size(&self, class: usize) -> u32 {
        self.shapes().get(class).map_or(0, |shape| shape.size)
    }

    /// Takes at most `want` cells into the thread's record; they are CACHED then. Under the class's lock.
    pub(super) fn take_cells(&self, guard: &Guard, class: usize, want: usize, record: &ThreadRecord) -> Found {
        let want = want.min(BATCH);
        let pool = self.core().pool(class);
        let held = (pool.transfer_len.load(Relaxed) as usize).min(TRANSFER);
        let taken = held.min(want);
        if taken > 0 {
            let entries = pool.transfer.iter().skip(held - taken).take(taken);
            entries.zip(&record.batch).for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
            record.batch_len.store(taken as u32, Relaxed);
            guard.set(&pool.transfer_len, (held - taken) as u32);
            return Found { reused: taken, carved: 0 };
        }
        let mut found = Found { reused: self.take_recycled(guard, class, want, record), carved: 0 };
        if found.reused == 0 {
            found.carved = self.carve(guard, class, want, record);
        }
        found
    }

    /// Hands one cell over to the thread's record. Told there first: an entry too many there does no harm.
    fn hand_over(&self, guard: &Guard, entry: Entry, record: &ThreadRecord, at: usize) {
        if let (Some(to), Some(state)) = (record.batch.get(at), self.state(entry)) {
            to.store(entry.0, Relaxed);
            record.batch_len.store(at as u32 + 1, Release);
            guard.set_byte(state, CACHED);
        }
    }

    fn take_recycled(&self, guard: &Guard, class: usize, want: usize, record: &ThreadRecord) -> usize {
        let pool = self.core().pool(class);
        let mut taken = 0;
        while taken < want && guard.room() > want + CELL_CHANGES {
            let Some(head) = slice(&pool.partial).filter(|head| *head < self.layout.slices) else { break };
            let span = self.span(head);
            let carved = span.carved.load(Relaxed) as usize;
            let mut cell = span.hint.load(Relaxed) as usize;
            let before = taken;
            while taken < want && cell < carved {
                // Eight states that say nothing are passed over at once.
                if cell.is_multiple_of(8) && cell + 8 <= carved && self.no_central(class, head, cell) {
                    cell += 8;
                    continue;
                }
                let entry = self.entry_of(class, head, cell);
                if self.state(entry).is_some_and(|state| state.load(Relaxed) == CENTRAL) {
                    self.hand_over(guard, entry, record, taken);
                    taken += 1;
                }
                cell += 1;
            }
            let left = (span.free.load(Relaxed) as usize).saturating_sub(taken - before);
            guard.set(&span.free, left as u32);
            guard.set(&span.hint, cell as u32);
            if left == 0 || taken == before {
                self.unlist(guard, pool, head);
            }
        }
        guard.set_long(&pool.free_cells, pool.free_cells.load(Relaxed).saturating_sub(taken as u64));
        taken
    }

    fn no_central(&self, class: usize, head: usize, cell: usize) -> bool {
        let first = self.layout.states_of(head, self.cell_size(class)) + cell;
        let Some(state) = self.state(Entry::new(0, first + 7)) else { return false };
        let start = state.as_ptr() as usize - 7;
        // SAFETY: S12, eight states of one span.
        let word = eight(unsafe { &*(start as *const [AtomicU8; 8]) });
        // A byte is zero if subtracting one borrows into its highest bit; states are small, so that bit is never set before.
        word.wrapping_sub(0x0101_0101_0101_0101) & 0x8080_8080_8080_8080 == 0
    }

    fn carve(&self, guard: &Guard, class: usize, want: usize, record: &ThreadRecord) -> usize {
        let pool = self.core().pool(class);
        let Some(head) = slice(&pool.carving).filter(|head| *head < self.layout.slices) else { return 0 };
        let span = self.span(head);
        let (first, cells) = (span.carved.load(Relaxed) as usize, self.cells_of(class));
        let taken = want.min(cells.saturating_sub(first));
        for index in 0..taken {
            self.hand_over(guard, self.entry_of(class, head, first + index), record, index);
        }
        guard.set(&span.carved, (first + taken) as u32);
        guard.set_long(&pool.uncarved, pool.uncarved.load(Relaxed).saturating_sub(taken as u64));
        if first + taken >= cells {
            guard.set(&pool.carving, 0);
        }
        taken
    }

    /// Puts cells back that nobody but the caller has: into the transfer cache while it has room, then into their spans. Under
    /// the class's lock. The caller goes on having them in his record until the section ended.
    pub(super) fn put_cells(&self, guard: &Guard, class: usize, entries: &[AtomicU64], transfer: bool) {
        let pool = self.core().pool(class);
        let held = (pool.transfer_len.load(Relaxed) as usize).min(TRANSFER);
        let room = if transfer { self.transfer_room(class).saturating_sub(held) } else { 0 };
        let (cached, central) = entries.split_at(room.min(entries.len()));
        for (to, from) in pool.transfer.iter().skip(held).zip(cached) {
            to.store(from.load(Relaxed), Relaxed);
        }
        if !cached.is_empty() {
            guard.set(&pool.transfer_len, (held + cached.len()) as u32);
        }
        central.iter().for_each(|entry| self.put_central(guard, class, Entry(entry.load(Relaxed))));
    }

    /// Entries that the transfer cache of a class may hold.
    fn transfer_room(&self, class: usize) -> usize {
        self.shapes().get(class).map_or(0, |shape| (shape.batch as usize * 4).min(TRANSFER))
    }

    /// Puts a CACHED cell that nobody else has into its span, and a span that became free into the grid. Each cell is a whole
    /// part of the section. Under the class's lock.
    pub(super) fn put_central(&self, guard: &Guard, class: usize, entry: Entry) {
        let Some((head, cell)) = self.locate(class, entry) else { return };
        let Some(state) = self.state(entry).filter(|state| state.load(Relaxed) == CACHED) else { return };
        if guard.room() < CELL_CHANGES {
            guard.commit();
        }
        let (pool, span) = (self.core().pool(class), self.span(head));
        let free = span.free.load(Relaxed) + 1;
        guard.set_byte(state, CENTRAL);
        guard.set(&span.free, free);
        guard.set_long(&pool.free_cells, pool.free_cells.load(Relaxed) + 1);
        if (cell as u32) < span.hint.load(Relaxed) {
            guard.set(&span.hint, cell as u32);
        }
        if free == 1 {
            self.list(guard, pool, head);
        }
        let carved = span.carved.load(Relaxed);
        let others = pool.free_cells.load(Relaxed) + pool.uncarved.load(Relaxed) - u64::from(free);
        if free == carved && slice(&pool.carving) != Some(head) && others >= u64::from(carved) / 2 {
            self.return_span(guard, class, head);
        }
    }

    /// Gives the free spans of a class back to the grid, all of them. Under the class's lock.
    pub(super) fn return_free_spans(&self, guard: &Guard, class: usize) {
        let pool = self.core().pool(class);
        let mut next = slice(&pool.partial);
        while let Some(head) = next.filter(|head| *head < self.layout.slices) {
            let span = self.span(head);
            next = slice(&span.next);
            if span.free.load(Relaxed) == span.carved.load(Relaxed) && span.free.load(Relaxed) > 0 {
                guard.commit();
                self.return_span(guard, class, head);
            }
        }
    }

    /// Returns a span whose used cells are all free. What was changed before is whole, and is committed with it.
    fn return_span(&self, guard: &Guard, class: usize, head: usize) {
        let (pool, span) = (self.core().pool(class), self.span(head));
        let (free, cells) = (u64::from(span.free.load(Relaxed)), self.cells_of(class) as u64);
        if guard.room() < CELL_CHANGES {
            guard.commit();
        }
        self.unlist(guard, pool, head);
        if slice(&pool.carving) == Some(head) {
            guard.set(&pool.carving, 0);
        }
        guard.set_long(&pool.free_cells, pool.free_cells.load(Relaxed).saturating_sub(free));
        let never = cells.saturating_sub(u64::from(span.carved.load(Relaxed)));
        guard.set_long(&pool.uncarved, pool.uncarved.load(Relaxed).saturating_sub(never));
        guard.set(&pool.spans, pool.spans.load(Relaxed).saturating_sub(1));
        guard.set(&pool.returning, head as u32 + 1);
        guard.commit();
        self.finish_returning(class);
    }

    /// Gives the span named by `returning` to the grid, if the class still has it there.
    fn finish_returning(&self, class: usize) {
        let pool = self.core().pool(class);
        let Some(head) = slice(&pool.returning) else { return };
        let grid = self.core().grid.lock.lock_again(self, Reason::Flush);
        if self.owner(head) == (Owner::Span { class, head }) {
            self.give_span(&grid, class, head);
        }
        drop(grid);
        pool.returning.store(0, Relaxed);
    }

    /// Takes a span from the grid, to be carved. False if the grid has none. Under the class's lock.
    pub(super) fn take_span(&self, guard: &Guard, class: usize) -> Option<bool> {
        let pool = self.core().pool(class);
        guard.commit();
        let grid = self.core().grid.lock.lock(self, Reason::Refill)?;
        let Some(head) = self.grant_span(&grid, class) else { return Some(false) };
        pool.taking.store(head as u32 + 1, Release);
        drop(grid);
        self.finish_taking(guard, class);
        Some(true)
    }

    /// Makes the span named by `taking` the one that is carved, if the grid gave it to this class.
    fn finish_taking(&self, guard: &Guard, class: usize) {
        let pool = self.core().pool(class);
        let Some(head) = slice(&pool.taking) else { return };
        let granted = self.owner(head) == (Owner::Span { class, head }) && slice(&pool.carving).is_none();
        if granted {
            let span = self.span(head);
            for word in [&span.next, &span.previous, &span.free, &span.carved, &span.hint] {
                word.store(0, Relaxed);
            }
            guard.set(&pool.carving, head as u32 + 1);
            guard.set(&pool.spans, pool.spans.load(Relaxed) + 1);
            guard.set_long(&pool.uncarved, pool.uncarved.load(Relaxed) + self.cells_of(class) as u64);
        }
        guard.set(&pool.taking, 0);
        guard.commit();
    }

    /// Finishes what a dead owner of the class's lock had begun in two parts.
    #[cold]
    pub(super) fn finish_for_dead(&self, guard: &Guard, class: usize) {
        let pool = self.core().pool(class);
        if slice(&pool.taking).is_some() {
            // The grid's own journal comes first: it says whether the span was granted.
            drop(self.core().grid.lock.lock_again(self, Reason::Refill));
            self.finish_taking(guard, class);
        }
        self.finish_returning(class);
    }

    /// Puts a span in front of the list of those with recycled cells.
    fn list(&self, guard: &Guard, pool: &Pool, head: usize) {
        let (span, first) = (self.span(head), pool.partial.load(Relaxed));
        guard.set(&span.next, first);
        guard.set(&span.previous, 0);
        if let Some(first) = slice(&pool.partial) {
            guard.set(&self.span(first).previous, head as u32 + 1);
        }
        guard.set(&pool.partial, head as u32 + 1);
    }

    fn unlist(&self, guard: &Guard, pool: &Pool, head: usize) {
        let span = self.span(head);
        let (next, previous) = (span.next.load(Relaxed), span.previous.load(Relaxed));
        let is_listed = previous != 0 || slice(&pool.partial) == Some(head);
        if !is_listed {
            return;
        }
        match slice(&span.previous) {
            Some(previous) => guard.set(&self.span(previous).next, next),
            None => guard.set(&pool.partial, next),
        }
        if let Some(next) = slice(&span.next) {
            guard.set(&self.span(next).previous, previous);
        }
        guard.set(&span.next, 0);
        guard.set(&span.previous, 0);
    }
}

/// The slice that a word names.
fn slice(word: &AtomicU32) -> Option<usize> {
    (word.load(Relaxed) as usize).checked_sub(1)
}

impl Arena {
    /// Cells of a class's span.
    pub(super) fn cells_of(&self, class: usize) -> usize {
        self.shapes().get(class).map_or(0, |shape| shape.cells as usize)
    }

    /// The entry of a span's cell.
    #[inline(always)]
    pub(super) fn entry_of(&self, class: usize, head: usize, cell: usize) -> Entry {
        let size = self.cell_size(class);
        Entry::new(head * SLICE + cell * size as usize, self.layout.states_of(head, size) + cell)
    }

    /// The span and the number of an entry's cell, if it is one of this class.
    pub(super) fn locate(&self, class: usize, entry: Entry) -> Option<(usize, usize)> {
        let slice = entry.offset() / SLICE;
        let Owner::Span { class: owner, head } = self.owner(slice) else { return None };
        let size = self.cell_size(class) as usize;
        let cell = entry.offset().checked_sub(head * SLICE)?.checked_div(size)?;
        (owner == class && self.entry_of(class, head, cell) == entry && cell < self.cells_of(class))
            .then_some((head, cell))
    }
}
