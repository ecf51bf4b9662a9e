//! The central pool of a class: its spans, and which of their cells are free.
//!
//! A span's free cells are bits of a bitmap beside its state bytes; cells beyond `carved` were never used and have no bit.
//! Spans with bits set stand in the list `partial`; at most one span, `carving`, has never-used cells. Recycled cells go
//! first: they are warm, and a span that is not carved further can empty.
//!
//! All of it is under the class lock; spans come from and go to the grid under the grid lock taken inside it.

use crate::cell::{CACHED, CENTRAL, Entry};
use crate::grid::states::Blocks;
use crate::grid::tables::{Kind, NONE, Span, Tables};
use crate::grid::{Need, SharedGrid};
use crate::size_class::{CLASSES, Class, SLICE_SHIFT};
use core::sync::atomic::Ordering::*;
use hg_probes::words::Reason;

/// The spans of one class.
pub(crate) struct Central {
    tables: Tables,
    class: usize,
    /// The class's array in block 0 of the front caches.
    array: usize,
    /// First span with recycled cells.
    partial: u32,
    /// The span with never-used cells.
    carving: u32,
    /// Memory for the spans' states.
    blocks: Blocks,
    /// Spans of the class.
    pub(crate) spans: u32,
    /// Their free cells: recycled, or never used.
    pub(crate) free_cells: u64,
}

/// Why a class has no cells to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    /// The grid needs more memory first.
    Grid(Need),
    /// The calling thread holds the grid lock: a signal handler interrupted it there.
    Reentered,
}

impl Central {
    pub(crate) const fn new() -> Self {
        Central {
            tables: Tables::new(),
            class: 0,
            array: 0,
            partial: NONE,
            carving: NONE,
            blocks: Blocks::new(),
            spans: 0,
            free_cells: 0,
        }
    }

    /// Tells the pool its class, where the tables are, and where the class's front cache is.
    pub(crate) fn start(&mut self, tables: Tables, class: usize, array: usize) {
        self.tables = tables;
        self.blocks.start(tables, class);
        self.array = array;
        self.class = class;
    }

    fn shape(&self) -> &'static Class {
        CLASSES.get(self.class).unwrap_or(&CLASSES[0])
    }

    /// Passes up to `want` recycled cells on, until `sink` refuses one. Returns how many it took.
    pub(crate) fn take_recycled(&mut self, want: usize, sink: &mut impl FnMut(Entry) -> bool) -> usize {
        let mut taken = 0;
        while taken < want && self.partial != NONE {
            let before = taken;
            taken += self.take_from_span(self.partial, want - taken, sink);
            if taken == before {
                break;
            }
        }
        taken
    }

    fn take_from_span(&mut self, head: u32, want: usize, sink: &mut impl FnMut(Entry) -> bool) -> usize {
        let span = self.span(head);
        let shape = self.shape();
        let mut taken = 0;
        let words = shape.cells.div_ceil(64);
        let mut word = span.hint;
        'words: while word < words {
            // SAFETY: S3, the span's bitmap belongs to the class lock, which is held; `word` is inside it.
            let bits = unsafe { &mut *self.tables.bitmap_word(span.states, word) };
            while *bits != 0 {
                if taken == want {
                    break 'words;
                }
                let cell = word * 64 + bits.trailing_zeros();
                if !self.hand_out(head, span.states, cell, sink) {
                    break 'words;
                }
                *bits &= *bits - 1;
                taken += 1;
            }
            word += 1;
        }
        span.hint = word;
        span.free -= taken as u32;
        self.free_cells -= taken as u64;
        if span.free == 0 {
            self.unlist(head);
        }
        taken
    }

    /// Passes up to `want` never-used cells on, until `sink` refuses one. Returns how many it took.
    pub(crate) fn carve(&mut self, want: usize, sink: &mut impl FnMut(Entry) -> bool) -> usize {
        if self.carving == NONE {
            return 0;
        }
        let head = self.carving;
        let span = self.span(head);
        let cells = self.shape().cells;
        let mut taken = 0;
        while taken < want && span.carved < cells && self.hand_out(head, span.states, span.carved, sink) {
            span.carved += 1;
            taken += 1;
        }
        self.free_cells -= taken as u64;
        if span.carved == cells {
            self.carving = NONE;
        }
        taken
    }

    /// Cells that were never used.
    pub(crate) fn uncarved(&self) -> u64 {
        if self.carving == NONE { 0 } else { u64::from(self.shape().cells - self.span(self.carving).carved) }
    }

    /// Gives one cell to the sink, marked as cached before anybody else can see it.
    fn hand_out(&self, head: u32, states: u32, cell: u32, sink: &mut impl FnMut(Entry) -> bool) -> bool {
        let shape = self.shape();
        let entry = Entry {
            cell: self.tables.address(head) + cell as usize * shape.size as usize,
            state: self.tables.first_state(states, shape.cells) + cell as usize,
        };
        // SAFETY: S4, the state of a cell of one of our spans.
        let state = unsafe { entry.state() };
        state.store(CACHED, Relaxed);
        let taken = sink(entry);
        if !taken {
            state.store(CENTRAL, Relaxed);
        }
        taken
    }

    /// Takes a cell back. Returns its span if that is wholly free now and not to be kept: with `keep_last` a class's last
    /// free cells stay, or their span would be taken and given in turns.
    pub(crate) fn put(&mut self, entry: Entry, keep_last: bool) -> Option<u32> {
        let descriptor = self.tables.descriptor(self.tables.slice_of(entry.cell));
        let head = (descriptor.start.load(Relaxed) >> SLICE_SHIFT) as u32;
        let span = self.span(head);
        let shape = self.shape();
        let cell = (entry.state - self.tables.first_state(span.states, shape.cells)) as u32;
        // SAFETY: S4, an entry's state address is that of its cell.
        unsafe { entry.state() }.store(CENTRAL, Relaxed);
        // SAFETY: S3, the span's bitmap belongs to the class lock, which is held.
        unsafe { *self.tables.bitmap_word(span.states, cell / 64) |= 1 << (cell % 64) };
        span.hint = span.hint.min(cell / 64);
        span.free += 1;
        self.free_cells += 1;
        if !span.listed {
            self.list(head);
        }
        (span.free == span.carved && (!keep_last || self.has_other_cells(head))).then_some(head)
    }

    /// Whether the class has free cells outside this span.
    fn has_other_cells(&self, head: u32) -> bool {
        let alone = self.partial == head && self.span(head).next == NONE;
        !alone || (self.carving != NONE && self.carving != head)
    }

    /// Gets a new span to carve from. The class has no free cell.
    pub(crate) fn attach_span(&mut self, grid: &SharedGrid) -> Result<(), Empty> {
        let shape = self.shape();
        let mut grid = grid.lock.lock(Reason::Span).ok_or(Empty::Reentered)?;
        let states = self.blocks.take(&mut grid).map_err(Empty::Grid)?;
        let head = match grid.take_span(shape.slices) {
            Ok(head) => head,
            Err(need) => {
                self.blocks.give(states, &mut grid);
                return Err(Empty::Grid(need));
            }
        };
        self.tables.set_run(head, Kind::Span, shape.slices);
        let span = self.span(head);
        span.listed = false;
        (span.next, span.previous) = (NONE, NONE);
        (span.free, span.carved, span.hint) = (0, 0, 0);
        span.states = states;
        self.tables.describe_span(head, self.class, self.array, states);
        drop(grid);
        self.carving = head;
        self.spans += 1;
        self.free_cells += u64::from(shape.cells);
        Ok(())
    }

    /// Addresses of the first and the last state of the span that is carved: their pages may never have been touched.
    pub(crate) fn carving_states(&self) -> [usize; 2] {
        let cells = self.shape().cells;
        let first = self.tables.first_state(self.span(self.carving).states, cells);
        [first, first + cells as usize - 1]
    }

    /// Gives a wholly free span back to the grid, unless its lock cannot be had in a signal handler.
    pub(crate) fn detach_span(&mut self, head: u32, grid: &SharedGrid) {
        let shape = self.shape();
        let Some(mut grid) = grid.lock.lock(Reason::Span) else { return };
        self.unlist(head);
        if self.carving == head {
            self.carving = NONE;
        }
        let states = self.span(head).states;
        for word in 0..shape.cells.div_ceil(64) {
            // SAFETY: S3, the bitmap belongs to the class lock; all cells of the span are free.
            unsafe { *self.tables.bitmap_word(states, word) = 0 };
        }
        self.tables.forget_span(head, shape.slices);
        grid.return_span(head, shape.slices);
        self.blocks.give(states, &mut grid);
        drop(grid);
        self.spans -= 1;
        self.free_cells -= u64::from(shape.cells);
    }

    /// Gives every wholly free span back.
    pub(crate) fn detach_all_free(&mut self, grid: &SharedGrid) {
        let mut head = self.partial;
        while head != NONE {
            let span = self.span(head);
            let next = span.next;
            if span.free == span.carved {
                self.detach_span(head, grid);
            }
            head = next;
        }
        if self.carving != NONE && self.span(self.carving).carved == 0 {
            self.detach_span(self.carving, grid);
        }
    }

    /// The record of one of the class's spans. No two are borrowed at once.
    #[allow(clippy::mut_from_ref)]
    fn span<'a>(&self, head: u32) -> &'a mut Span {
        // SAFETY: S3, the class lock is held, and `head` is the head of one of the class's spans.
        unsafe { &mut *self.tables.span(head) }
    }

    fn list(&mut self, head: u32) {
        let first = self.partial;
        let span = self.span(head);
        span.listed = true;
        (span.next, span.previous) = (first, NONE);
        if first != NONE {
            self.span(first).previous = head;
        }
        self.partial = head;
    }

    fn unlist(&mut self, head: u32) {
        let span = self.span(head);
        if !span.listed {
            return;
        }
        span.listed = false;
        let (next, previous) = (span.next, span.previous);
        if next != NONE {
            self.span(next).previous = previous;
        }
        if previous == NONE {
            self.partial = next;
        } else {
            self.span(previous).next = next;
        }
    }
}
