//! Why nothing can be given back: the page nearest to being free, and what keeps it.
//!
//! The grid is read run by run, round after round: each call looks at some runs, where the last one ended. What counts is how
//! many bytes of a page are in use; of the cells there, those count that are not free with their span: live ones, and those
//! that a cache holds. A page that is worse already than the best is not counted to its end.
//!
//! Runs are copied under the grid lock, some dozens in a hold. Cells are counted without a lock from descriptors and states,
//! which are atomic and stay accessible (S4); a span that goes away meanwhile makes a report wrong by its cells, and no more.
//! Belongs to whoever maintains the arena.

use crate::grid::SharedGrid;
use crate::grid::tables::{Kind, PAGE_SLICES, STATES_MARGIN, Tables};
use crate::grid::walk::Stretch;
use crate::size_class::{CLASSES, Class, SLICE};
use core::sync::atomic::{AtomicU8, Ordering::*};

/// Runs that one hold of the lock copies, and holds of one call.
const RUNS: usize = 32;
const HOLDS: u32 = 64;

/// States that one call reads: some 50 µs.
const STATES: u32 = 128 << 10;

/// Slices of a page.
const PAGE: u32 = PAGE_SLICES as u32;

/// What keeps a page from being given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    /// The page's place in the grid.
    pub(crate) page: u32,
    /// Bytes in use on it.
    pub(crate) bytes: u32,
    /// Cells there, or large objects.
    pub(crate) cells: u32,
    /// Size of those cells of which there are most, bytes; 0 for a large object.
    pub(crate) class: u32,
    /// How many those are.
    most: u32,
}

/// A search for the page nearest to being free.
pub(crate) struct Search {
    /// The slice to go on with.
    next: u32,
    /// The page that is being counted.
    current: Pin,
    /// The best of this round, and of the last.
    best: Option<Pin>,
    found: Option<Pin>,
}

impl Search {
    pub(crate) const fn new() -> Self {
        let current = Pin { page: 0, bytes: 0, cells: 0, class: 0, most: 0 };
        Search { next: 0, current, best: None, found: None }
    }

    /// Goes on with the search, and returns what the last whole round found, or this one so far.
    pub(crate) fn look(&mut self, grid: &SharedGrid, tables: &Tables) -> Option<Pin> {
        let mut states = STATES;
        for _ in 0..HOLDS {
            let mut runs = [Stretch::NONE; RUNS];
            let copied = grid.copy_runs(self.next, &mut runs);
            for run in runs.iter().take(copied) {
                if states < STATES_MARGIN as u32 {
                    return self.found.or(self.best);
                }
                states -= self.count(run, tables).min(states);
                self.next = run.head + run.slices;
            }
            if copied == 0 {
                self.close(0);
                self.next = 0;
                self.found = self.best.take();
                break;
            }
        }
        self.found.or(self.best)
    }

    /// Counts a run on each page that it touches. Returns how many states were read.
    fn count(&mut self, run: &Stretch, tables: &Tables) -> u32 {
        let (first, end) = (run.head / PAGE, (run.head + run.slices).div_ceil(PAGE));
        let mut read = 0;
        let mut page = first;
        while page < end && matches!(run.kind, Kind::Span | Kind::Large) {
            if page != self.current.page {
                self.close(page);
            }
            // The part of the run on this page, in slices from the run's head.
            let from = (page * PAGE).saturating_sub(run.head);
            let to = ((page + 1) * PAGE - run.head).min(run.slices);
            match run.kind {
                Kind::Large => {
                    self.add((to - from) * SLICE as u32, 1, 0);
                    // The pages inside are all alike: of those after the second, only the last one may have room.
                    page = if page > first { (page + 1).max(end - 1) } else { page + 1 };
                }
                _ => {
                    if self.best.is_none_or(|best| self.current.bytes < best.bytes)
                        && let Some(class) = class_of(run.head, tables)
                    {
                        let cells = kept_cells(run.head, from, to, class, tables, &mut read);
                        self.add(cells * class.size, cells, class.size);
                    }
                    page += 1;
                }
            }
        }
        read
    }

    fn add(&mut self, bytes: u32, cells: u32, class: u32) {
        let current = &mut self.current;
        current.bytes = current.bytes.saturating_add(bytes);
        current.cells = current.cells.saturating_add(cells);
        if cells > current.most {
            (current.most, current.class) = (cells, class);
        }
    }

    /// Ends the page that was counted and begins another.
    fn close(&mut self, page: u32) {
        let counted = core::mem::replace(&mut self.current, Pin { page, ..Search::new().current });
        if counted.cells > 0 && self.best.is_none_or(|best| counted.bytes < best.bytes) {
            self.best = Some(counted);
        }
    }
}

/// The class of the span at a slice, if there still is one.
fn class_of(head: u32, tables: &Tables) -> Option<&'static Class> {
    let reciprocal = tables.descriptor(head).reciprocal.load(Acquire);
    CLASSES.iter().find(|class| class.reciprocal == reciprocal)
}

/// How many of a span's cells in its slices `from..to` are not free with the span.
fn kept_cells(head: u32, from: u32, to: u32, class: &Class, tables: &Tables, read: &mut u32) -> u32 {
    let states = tables.descriptor(head).first_state.load(Relaxed);
    if states == 0 {
        // The span went back to the system, and its descriptor with it.
        return 0;
    }
    let first = from * SLICE as u32 / class.size;
    let end = (to * SLICE as u32).div_ceil(class.size).min(class.cells);
    *read += end.saturating_sub(first);
    let kept = |cell: &u32| {
        // SAFETY: S4, the descriptor belonged to a span of this class a moment ago, and states stay accessible with a margin
        // behind the last of as many as a span can have. Whoever uses them by now, they are atomic bytes.
        let state = unsafe { &*((states + *cell as usize) as *const AtomicU8) };
        state.load(Relaxed) != crate::cell::CENTRAL
    };
    (first..end).filter(kept).count() as u32
}
