//! A look at everything in an arena: for tests, and for whoever doubts it.
//!
//! Called while nobody else uses the arena; otherwise it is a picture of many moments, and may count what moves twice or not at
//! all. It does not allocate: who wants to compare sets brings his own.

use super::Arena;
use super::core::{Entry, Owner, TRANSFER};
use super::layout::PAGE_SLICES;
use super::recover::batch_len;
use crate::cell::{CACHED, CENTRAL, LIVE, SAMPLED};
use crate::size_class::{COUNT, SLICE, SLICE_SHIFT};
use core::sync::atomic::Ordering::*;

/// A cell, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// With the program: address and bytes. Large objects too.
    Live(usize, usize),
    /// Free, and in a cache or in somebody's hands, by its state: its address.
    Cached(usize),
    /// An entry of a front cache, a transfer cache, or the deferred cells: the address.
    InCache(usize),
    /// An entry in the record of a thread: the address.
    InHands(usize),
}

/// Sums over an arena. The last three are 0 in a sound one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Cells with the program.
    pub live: u64,
    /// Cells that their state says are in caches.
    pub cached: u64,
    /// Recycled cells in spans, and cells never used.
    pub central: u64,
    /// Entries in caches.
    pub entries: u64,
    /// Large objects.
    pub large: u64,
    /// Pages that somebody is committing or giving back.
    pub busy_pages: u64,
    /// Slices that nobody has, and that are not free; or that two have.
    pub lost_slices: u64,
    /// Counters of the arena that say other than what was counted.
    pub wrong_counters: u64,
    /// Entries in caches whose cell is not CACHED.
    pub wrong_entries: u64,
}

/// What a thread has of an arena at the moment, as its record and the locks say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hands {
    /// Cells of a batch, and whether a cell is in flight.
    pub batch: usize,
    /// As `batch`.
    pub in_flight: bool,
    /// Pages that it is committing or giving back.
    pub pages: u32,
    /// Whether it is growing the arena.
    pub growing: bool,
    /// Locks that it holds.
    pub locks: u32,
}

impl Arena {
    /// What a thread has in its hands, by its id in its pid namespace. `None` if it has no record here, or none any more.
    /// Of a thread that runs this is a picture of several moments.
    pub fn hands(&self, tid: u32) -> Option<Hands> {
        let core = self.core();
        let record = self.threads().find(|r| r.used.load(Acquire) != 0 && r.tid.load(Relaxed) == tid)?;
        let locks = core.pools.iter().map(|pool| &pool.lock).chain([&core.grid.lock]);
        Some(Hands {
            batch: batch_len(record),
            in_flight: record.in_flight.load(Relaxed) != 0,
            pages: record.busy_count.load(Relaxed),
            growing: core.grid.growing.load(Relaxed) as usize == self.index_of(record) + 1,
            locks: locks.filter(|lock| lock.holder() == tid).count() as u32,
        })
    }

    /// Visits every cell that is not free in its span, every large object, and every entry in a cache or in a thread's hands.
    pub fn for_each(&self, mut visit: impl FnMut(Cell)) {
        let mut slice = 0;
        while slice < self.layout.slices {
            slice += match self.owner(slice) {
                Owner::Span { class, head } if head == slice => {
                    self.for_each_of_span(class, head, &mut visit);
                    self.shapes().get(class).map_or(1, |shape| shape.slices as usize).max(1)
                }
                Owner::Large => {
                    let count = self.large_slices(slice).unwrap_or(1);
                    visit(Cell::Live(self.user + (slice << SLICE_SHIFT), count << SLICE_SHIFT));
                    count.max(1)
                }
                _ => 1,
            };
        }
        self.for_each_entry(|entry| visit(Cell::InCache(self.user + entry.offset())));
        for entry in self.in_hands() {
            let offset = entry.large_slice().map_or(entry.offset(), |slice| slice << SLICE_SHIFT);
            visit(Cell::InHands(self.user + offset));
        }
    }

    fn for_each_of_span(&self, class: usize, head: usize, visit: &mut impl FnMut(Cell)) {
        let size = self.cell_size(class) as usize;
        for cell in 0..self.cells_of(class) {
            let entry = self.entry_of(class, head, cell);
            let address = self.user + entry.offset();
            match self.state(entry).map_or(CENTRAL, |state| state.load(Relaxed)) {
                CENTRAL => {}
                CACHED => visit(Cell::Cached(address)),
                _ => visit(Cell::Live(address, size)),
            }
        }
    }

    fn for_each_entry(&self, mut visit: impl FnMut(Entry)) {
        for class in 0..COUNT {
            for block in 0..self.layout.blocks {
                for index in 0..self.front_length(block, class) {
                    visit(Entry(self.front_entry(block, class, index).load(Relaxed)));
                }
            }
            let pool = self.core().pool(class);
            let length = (pool.transfer_len.load(Relaxed) as usize).min(TRANSFER);
            pool.transfer.iter().take(length).for_each(|word| visit(Entry(word.load(Relaxed))));
        }
        let deferred = self.core().deferred.iter().map(|word| Entry(word.load(Relaxed)));
        deferred.filter(|entry| entry.0 != 0).for_each(visit);
    }

    /// Counts everything, and compares it with what the arena's own counters say.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit::default();
        let grid = &self.core().grid;
        let (mut spans, mut span_slices, mut large_slices) = ([0u64; COUNT], 0, 0);
        let (mut free, mut carved_free) = ([0u64; COUNT], [0u64; COUNT]);
        let mut slice = 0;
        let mut free_slices = 0;
        while slice < self.layout.slices {
            let page = slice / PAGE_SLICES;
            slice += match self.owner(slice) {
                Owner::Span { class, head } if head == slice && class < COUNT => {
                    let cells = self.cells_of(class);
                    let carved = self.span(head).carved.load(Relaxed) as usize;
                    let mut recycled = 0;
                    for cell in 0..cells {
                        let state = self.state(self.entry_of(class, head, cell));
                        match state.map_or(CENTRAL, |state| state.load(Relaxed)) {
                            CENTRAL => {
                                audit.central += 1;
                                recycled += u64::from(cell < carved);
                            }
                            CACHED => audit.cached += 1,
                            LIVE | SAMPLED => audit.live += 1,
                            _ => audit.wrong_counters += 1,
                        }
                    }
                    audit.wrong_counters += u64::from(recycled != u64::from(self.span(head).free.load(Relaxed)));
                    spans[class] += 1;
                    free[class] += recycled;
                    carved_free[class] += (cells - carved.min(cells)) as u64;
                    let slices = self.shapes()[class].slices as usize;
                    span_slices += slices as u64;
                    audit.lost_slices += (slice..slice + slices).filter(|slice| self.is_free(*slice)).count() as u64;
                    slices
                }
                Owner::Large => {
                    let count = self.large_slices(slice).unwrap_or(1).max(1);
                    audit.large += 1;
                    large_slices += count as u64;
                    audit.lost_slices += (slice..slice + count).filter(|slice| self.is_free(*slice)).count() as u64;
                    count
                }
                _ if self.is_free(slice) => {
                    free_slices += 1;
                    1
                }
                _ => {
                    let committed = self.page_state(page) == super::grid::COMMITTED;
                    audit.lost_slices += u64::from(committed);
                    1
                }
            };
        }
        self.for_each_entry(|entry| {
            audit.entries += 1;
            let state = self.state(entry).map_or(CENTRAL, |state| state.load(Relaxed));
            audit.wrong_entries += u64::from(state != CACHED);
        });
        audit.busy_pages =
            (0..self.layout.pages).filter(|page| self.page_state(*page) == super::grid::BUSY).count() as u64;
        let mut compare = |counted: u64, said: u64| audit.wrong_counters += u64::from(counted != said);
        for class in 0..COUNT {
            let pool = self.core().pool(class);
            compare(spans[class], pool.spans.load(Relaxed).into());
            compare(free[class], pool.free_cells.load(Relaxed));
            compare(carved_free[class], pool.uncarved.load(Relaxed));
        }
        compare(span_slices, grid.span_slices.load(Relaxed).into());
        compare(large_slices, grid.large_slices.load(Relaxed).into());
        compare(free_slices, grid.free_slices.load(Relaxed).into());
        compare(audit.large, grid.large_count.load(Relaxed).into());
        audit
    }
}

const _: () = assert!(SLICE == 1 << SLICE_SHIFT);
