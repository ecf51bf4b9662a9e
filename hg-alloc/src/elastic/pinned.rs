//! Why nothing can be given back: the page nearest to being free, and what keeps it.
//!
//! The grid is read run by run, round after round: each call looks at some runs, where the last one ended. What counts is how
//! many bytes of a page are in use; of the cells there, those count that are not free with their span: live ones, and those
//! that a cache holds. A page that is worse already than the best is not counted to its end. Of what is in use on the best one,
//! the class that has most of the bytes is named, with its own cells: the one whose objects to look for first.
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

/// Places of counts: one for each class, and one for large objects.
const LARGE: usize = CLASSES.len();

/// What keeps a page from being given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    /// The page's place in the grid.
    pub(crate) page: u32,
    /// Bytes in use on it.
    bytes: u32,
    /// Size of the cells that have most of these bytes; 0 for large objects.
    pub(crate) class: u32,
    /// How many of these are there.
    pub(crate) cells: u32,
}

/// How much of one kind is in use on a page.
#[derive(Clone, Copy)]
struct Count {
    bytes: u32,
    cells: u32,
}

const NOTHING: [Count; LARGE + 1] = [Count { bytes: 0, cells: 0 }; LARGE + 1];

/// A search for the page nearest to being free.
pub(crate) struct Search {
    /// The slice to go on with.
    next: u32,
    /// The page that is being counted, bytes in use on it, and these by kind.
    page: u32,
    bytes: u32,
    counts: [Count; LARGE + 1],
    /// The best of this round, and of the last.
    best: Option<Pin>,
    found: Option<Pin>,
}

impl Search {
    pub(crate) const fn new() -> Self {
        Search { next: 0, page: 0, bytes: 0, counts: NOTHING, best: None, found: None }
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
            if page != self.page {
                self.close(page);
            }
            // The part of the run on this page, in slices from the run's head.
            let from = (page * PAGE).saturating_sub(run.head);
            let to = ((page + 1) * PAGE - run.head).min(run.slices);
            match run.kind {
                Kind::Large => {
                    self.add((to - from) * SLICE as u32, 1, LARGE);
                    // The pages inside are all alike: of those after the second, only the last one may have room.
                    page = if page > first { (page + 1).max(end - 1) } else { page + 1 };
                }
                _ => {
                    if self.best.is_none_or(|best| self.bytes < best.bytes)
                        && let Some((index, class)) = class_of(run.head, tables)
                    {
                        let cells = kept_cells(run.head, from, to, class, tables, &mut read);
                        self.add(cells * class.size, cells, index);
                    }
                    page += 1;
                }
            }
        }
        read
    }

    fn add(&mut self, bytes: u32, cells: u32, kind: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(count) = self.counts.get_mut(kind) {
            count.bytes = count.bytes.saturating_add(bytes);
            count.cells = count.cells.saturating_add(cells);
        }
    }

    /// Ends the page that was counted and begins another.
    fn close(&mut self, page: u32) {
        if self.bytes > 0 && self.best.is_none_or(|best| self.bytes < best.bytes) {
            self.best = Some(self.pin());
        }
        (self.page, self.bytes, self.counts) = (page, 0, NOTHING);
    }

    /// The page that was counted. Of two classes with as many bytes the larger one is named: it has fewer objects to look for.
    fn pin(&self) -> Pin {
        let most = self.counts.iter().enumerate().max_by_key(|(_, count)| count.bytes);
        let (kind, count) = most.map_or((LARGE, Count { bytes: 0, cells: 0 }), |(kind, count)| (kind, *count));
        let class = CLASSES.get(kind).map_or(0, |class| class.size);
        Pin { page: self.page, bytes: self.bytes, class, cells: count.cells }
    }
}

/// The class of the span at a slice and its place, if there still is one.
fn class_of(head: u32, tables: &Tables) -> Option<(usize, &'static Class)> {
    let reciprocal = tables.descriptor(head).reciprocal.load(Acquire);
    CLASSES.iter().enumerate().find(|(_, class)| class.reciprocal == reciprocal)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn index(size: u32) -> usize {
        CLASSES.iter().position(|class| class.size == size).expect("a class")
    }

    #[test]
    fn the_class_with_most_bytes_is_named_with_its_own_cells() {
        let mut search = Search::new();
        search.close(20);
        // In several spans, of which none has most cells.
        for cells in [4, 5, 3] {
            search.add(cells * 224, cells, index(224));
        }
        search.add(14 * 32, 14, index(32));
        search.close(21);
        let best = Pin { page: 20, bytes: 12 * 224 + 14 * 32, class: 224, cells: 12 };
        assert_eq!(search.best, Some(best));
        // A page with more in use is no better, one with nothing is free.
        search.add(4096, 1, index(4096));
        search.close(22);
        search.close(23);
        assert_eq!(search.best, Some(best));
        search.add(160, 10, index(16));
        search.add(160, 1, index(160));
        search.close(24);
        assert_eq!(search.best, Some(Pin { page: 23, bytes: 320, class: 160, cells: 1 }));
    }

    #[test]
    fn large_objects_have_no_class() {
        let mut search = Search::new();
        search.add(SLICE as u32, 1, LARGE);
        search.add(512, 2, index(256));
        search.close(1);
        assert_eq!(search.best, Some(Pin { page: 0, bytes: SLICE as u32 + 512, class: 0, cells: 1 }));
    }
}
