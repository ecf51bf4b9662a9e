//! The grid of an arena that processes share: pages of 2 MiB, cut into 64 slices, and who has each.
//!
//! A page is uncommitted, committed, or busy with a thread that commits it or gives it back. A word for each page has a bit for each
//! slice that is committed and free, so that a page without anything in use is a word of ones. Free memory is taken where
//! the address is lowest, which leaves the highest pages free.
//!
//! Lock: the grid's, for everything here but [`owner`](Arena::owner), which each free reads: of a live block it does not change.

use super::Arena;
use super::core::Owner;
use super::journal::{Journal, Undo};
use super::layout::PAGE_SLICES;
use super::lock::Guard;
use crate::size_class::SLICE;
use crate::stats;
use core::sync::atomic::Ordering::*;
use hg_probes::words::CorruptionKind;

/// State of a page, in the low byte of its word; a busy one has the record of its thread, plus one, above.
pub(super) const UNCOMMITTED: u32 = 0;
pub(super) const COMMITTED: u32 = 1;
pub(super) const BUSY: u32 = 2;

impl Arena {
    /// Who has a slice.
    #[inline(always)]
    pub(super) fn owner(&self, slice: usize) -> Owner {
        self.descriptor(slice).map_or(Owner::Nobody, |word| Owner::from_word(word.load(Relaxed)))
    }

    /// The state of a page.
    pub(super) fn page_state(&self, page: usize) -> u32 {
        self.page_word(page).map_or(UNCOMMITTED, |word| word.load(Relaxed)) & 0xff
    }

    /// Takes `count` free slices whose first is a multiple of `align`, a power of two of at most a page.
    fn take_run(&self, grid: &Guard, count: usize, align: usize) -> Option<usize> {
        let state = &self.core().grid;
        if count > state.free_slices.load(Relaxed) as usize {
            return None;
        }
        let first = self.find_run(count, align)?;
        grid.note_slices(Undo::WereFree, first, count);
        self.mark(first, count, false);
        grid.set(&state.free_slices, state.free_slices.load(Relaxed) - count as u32);
        self.core().low_water.fetch_min(state.free_slices.load(Relaxed), Relaxed);
        Some(first)
    }

    /// The lowest run of free slices.
    pub(super) fn find_run(&self, count: usize, align: usize) -> Option<usize> {
        let hint = &self.core().grid.first_free;
        let (mut start, mut length, mut seen) = (0, 0, false);
        let fits = |start: usize, length: usize| {
            let first = start.next_multiple_of(align);
            (first + count <= start + length).then_some(first)
        };
        for page in hint.load(Relaxed) as usize..self.layout.pages {
            let word = self.free_word(page).map_or(0, |word| word.load(Relaxed));
            if word != 0 && !seen {
                seen = true;
                hint.store(page as u32, Relaxed);
            }
            let mut bit = 0;
            while bit < PAGE_SLICES {
                let rest = word >> bit;
                let run = if rest & 1 == 0 {
                    length = 0;
                    rest.trailing_zeros()
                } else {
                    (!rest).trailing_zeros()
                };
                let run = (run as usize).min(PAGE_SLICES - bit);
                if rest & 1 != 0 {
                    start = if length == 0 { page * PAGE_SLICES + bit } else { start };
                    length += run;
                    if let Some(first) = fits(start, length) {
                        return Some(first);
                    }
                }
                bit += run;
            }
        }
        None
    }

    /// Sets or clears the free bits of a run.
    fn mark(&self, first: usize, count: usize, free: bool) {
        let end = (first + count).min(self.layout.slices);
        let mut at = first;
        while at < end {
            let (page, bit) = (at / PAGE_SLICES, at % PAGE_SLICES);
            let length = (PAGE_SLICES - bit).min(end - at);
            let mask = (u64::MAX >> (PAGE_SLICES - length)) << bit;
            if let Some(word) = self.free_word(page) {
                let old = word.load(Relaxed);
                word.store(if free { old | mask } else { old & !mask }, Relaxed);
            }
            at += length;
        }
    }

    fn give_run(&self, grid: &Guard, first: usize, count: usize) {
        let state = &self.core().grid;
        grid.note_slices(Undo::WereTaken, first, count);
        self.mark(first, count, true);
        grid.set(&state.free_slices, state.free_slices.load(Relaxed) + count as u32);
        let page = (first / PAGE_SLICES) as u32;
        if page < state.first_free.load(Relaxed) {
            state.first_free.store(page, Relaxed);
        }
    }

    /// Gives a span to a class. Returns where it begins.
    pub(super) fn grant_span(&self, grid: &Guard, class: usize) -> Option<usize> {
        let slices = self.shapes().get(class)?.slices as usize;
        let head = self.take_run(grid, slices, 1)?;
        let word = Owner::Span { class, head }.word(self.layout.states_of(head, self.cell_size(class)));
        (head..head + slices).filter_map(|slice| self.descriptor(slice)).for_each(|at| grid.set_long(at, word));
        let state = &self.core().grid;
        grid.set(&state.span_slices, state.span_slices.load(Relaxed) + slices as u32);
        self.publish_grid();
        Some(head)
    }

    /// Takes a span back from a class. All its cells are CENTRAL.
    pub(super) fn give_span(&self, grid: &Guard, class: usize, head: usize) {
        let slices = self.shapes().get(class).map_or(0, |shape| shape.slices as usize);
        (head..head + slices).filter_map(|slice| self.descriptor(slice)).for_each(|at| grid.set_long(at, 0));
        self.give_run(grid, head, slices);
        let state = &self.core().grid;
        grid.set(&state.span_slices, state.span_slices.load(Relaxed).saturating_sub(slices as u32));
        self.publish_grid();
    }

    /// Makes a run a large object.
    pub(super) fn open_large(&self, grid: &Guard, count: usize, align: usize) -> Option<usize> {
        let head = self.take_run(grid, count, align)?;
        let state = &self.core().grid;
        if let (Some(descriptor), Some(run)) = (self.descriptor(head), self.run(head)) {
            grid.set_long(descriptor, Owner::Large.word(0));
            grid.set(run, count as u32);
        }
        grid.set(&state.large_slices, state.large_slices.load(Relaxed) + count as u32);
        grid.set(&state.large_count, state.large_count.load(Relaxed) + 1);
        grid.set_long(&state.large_allocs, state.large_allocs.load(Relaxed) + 1);
        self.publish_grid();
        Some(head)
    }

    /// Frees a large object; what it is instead, if it is none.
    pub(super) fn close_large(&self, grid: &Guard, head: usize) -> Result<usize, CorruptionKind> {
        let count = self.large_slices(head).ok_or_else(|| match self.is_free(head) {
            true => CorruptionKind::DoubleFree,
            false => CorruptionKind::WildFree,
        })?;
        let state = &self.core().grid;
        if let Some(descriptor) = self.descriptor(head) {
            grid.set_long(descriptor, 0);
        }
        self.give_run(grid, head, count);
        grid.set(&state.large_slices, state.large_slices.load(Relaxed).saturating_sub(count as u32));
        grid.set(&state.large_count, state.large_count.load(Relaxed).saturating_sub(1));
        grid.set_long(&state.large_frees, state.large_frees.load(Relaxed) + 1);
        self.publish_grid();
        Ok(count)
    }

    /// Changes the length of a large object in place. False if the memory behind it is not free.
    pub(super) fn resize_large(&self, grid: &Guard, head: usize, new: usize) -> bool {
        let (Some(old), Some(run)) = (self.large_slices(head), self.run(head)) else { return false };
        let state = &self.core().grid;
        if new < old {
            self.give_run(grid, head + new, old - new);
        } else if new > old {
            if !(head + old..head + new).all(|slice| self.is_free(slice)) {
                return false;
            }
            grid.note_slices(Undo::WereFree, head + old, new - old);
            self.mark(head + old, new - old, false);
            grid.set(&state.free_slices, state.free_slices.load(Relaxed).saturating_sub((new - old) as u32));
        }
        grid.set(run, new as u32);
        grid.set(&state.large_slices, state.large_slices.load(Relaxed) + new as u32 - old as u32);
        self.publish_grid();
        true
    }

    /// Slices of the large object that begins at a slice.
    pub(super) fn large_slices(&self, head: usize) -> Option<usize> {
        let count = self.run(head)?.load(Relaxed) as usize;
        (self.owner(head) == Owner::Large && head + count <= self.layout.slices).then_some(count)
    }

    /// Whether a slice is committed and nobody's.
    pub(super) fn is_free(&self, slice: usize) -> bool {
        let word = self.free_word(slice / PAGE_SLICES).map_or(0, |word| word.load(Relaxed));
        word >> (slice % PAGE_SLICES) & 1 != 0
    }

    /// Puts back what a dead owner of the lock beside `journal` changed.
    pub(super) fn roll_back(&self, journal: &Journal) {
        journal.roll_back(self.tables, self.layout.bytes, &|kind, first, count| {
            if kind == Undo::Slot {
                return self.put_back_slot(first as usize, count);
            }
            let (first, count) = (first as usize, count as usize);
            if first < self.layout.slices && count <= self.layout.slices {
                self.mark(first, count, kind == Undo::WereFree);
                // Only a hint, which may be too high now.
                self.core().grid.first_free.store(0, Relaxed);
            }
        });
    }

    /// Brings the stats page up to date. Under the grid's lock.
    pub(super) fn publish_grid(&self) {
        let (header, grid) = (&self.stats_page().header, &self.core().grid);
        let slices = |word: &core::sync::atomic::AtomicU32| u64::from(word.load(Relaxed)) * SLICE as u64;
        stats::change(&header.seq, || {
            let committed = self.committed_bytes();
            header.committed_bytes.store(committed, Relaxed);
            header.committed_peak_bytes.store(committed.max(header.committed_peak_bytes.load(Relaxed)), Relaxed);
            header.free_dirty_bytes.store(slices(&grid.free_slices), Relaxed);
            let (spans, large) = (slices(&grid.span_slices), slices(&grid.large_slices));
            header.span_bytes.store(spans, Relaxed);
            header.large_bytes.store(large, Relaxed);
            header.used_peak_bytes.store((spans + large).max(header.used_peak_bytes.load(Relaxed)), Relaxed);
            header.large_count.store(grid.large_count.load(Relaxed).into(), Relaxed);
            header.large_allocs.store(grid.large_allocs.load(Relaxed), Relaxed);
            header.large_frees.store(grid.large_frees.load(Relaxed), Relaxed);
            header.limbo_bytes.store(self.busy_bytes(), Relaxed);
            header.top_slices.store(self.layout.slices as u64, Relaxed);
        });
    }
}
