//! Where everything of an arena made by handle lies: computed from its cap and the machine's CPUs, the same in every process.
//!
//! ```text
//! tables  | Core (locks, pools) | pages | free bits | descriptors | runs | spans | states | processes | threads | fronts |
//! user    | pages of 2 MiB, in slices of 32 KiB                                                                            |
//! ```
//! Tables and user memory are two mappings, or one with a guard between; user memory may be the caller's. All tables are sparse:
//! what nobody touched takes address space only.

use super::core::Core;
use super::front::{BLOCK, ZERO_BLOCKS};
use super::sample::{SAMPLES, Sample};
use super::span::SpanLinks;
use crate::size_class::SLICE;
use crate::sys::memory::HUGE_PAGE;
use core::sync::atomic::{AtomicU32, AtomicU64};
use hg_probes::directory::{PROCESSES, ProcessRecord, SITES, SiteRecord, THREADS, ThreadRecord};

/// Slices of a page.
pub(super) const PAGE_SLICES: usize = HUGE_PAGE / SLICE;

/// A slice has states for cells of each of these sizes, powers of two, as logarithms. A span uses those of the greatest that is not
/// above its cells' size; so states in use lie close together, and take few cache lines and few pages.
const LEAST_LEVEL: u32 = 4;
const MOST_LEVEL: u32 = 12;

/// States of a slice at all levels up to one.
const fn states_up_to(level: u32) -> usize {
    2 * (SLICE >> LEAST_LEVEL) - (SLICE >> level)
}

/// States before the first that is a cell's, so that no entry is 0, which means none.
const UNUSED_STATES: usize = 64;

/// Offsets of the tables from their start, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Slices and pages of user memory, and blocks of front caches.
    pub(super) slices: usize,
    pub(super) pages: usize,
    pub(super) blocks: usize,
    /// A word for each page: what became of it.
    pub(super) page_words: usize,
    /// A word for each page: which of its slices are free.
    pub(super) free_words: usize,
    /// A word for each slice: what a free has to know.
    pub(super) descriptors: usize,
    /// A word for each slice: the length of the run that begins there.
    pub(super) runs: usize,
    /// A record for each slice: the span that begins there.
    pub(super) spans: usize,
    /// State bytes, level by level.
    pub(super) states: usize,
    pub(super) processes: usize,
    pub(super) threads: usize,
    /// A byte for each page: its tier.
    pub(super) tiers: usize,
    /// Call sites, and the samples that are with the program.
    pub(super) sites: usize,
    pub(super) samples: usize,
    /// The first of the two blocks of zeros; block 0 lies behind them.
    pub(super) fronts: usize,
    /// All of it.
    pub(super) bytes: usize,
}

impl Layout {
    /// For so many bytes of user memory, whole pages, and so many CPUs.
    pub(super) const fn new(cap_bytes: usize, cpus: usize) -> Layout {
        let slices = cap_bytes / SLICE;
        let pages = cap_bytes / HUGE_PAGE;
        let page_words = size_of::<Core>().next_multiple_of(4096);
        let free_words = (page_words + pages * size_of::<AtomicU32>()).next_multiple_of(64);
        let descriptors = (free_words + pages * size_of::<AtomicU64>()).next_multiple_of(4096);
        let runs = descriptors + slices * size_of::<AtomicU64>();
        let spans = (runs + slices * size_of::<AtomicU32>()).next_multiple_of(4096);
        let states = (spans + slices * size_of::<SpanLinks>()).next_multiple_of(4096);
        let processes = (states + UNUSED_STATES + slices * states_up_to(MOST_LEVEL)).next_multiple_of(4096);
        let threads = processes + PROCESSES * size_of::<ProcessRecord>();
        let sites = threads + THREADS * size_of::<ThreadRecord>();
        let samples = sites + SITES * size_of::<SiteRecord>();
        let tiers = samples + SAMPLES * size_of::<Sample>();
        let fronts = (tiers + pages).next_multiple_of(4096);
        let bytes = (fronts + (ZERO_BLOCKS + cpus) * BLOCK).next_multiple_of(HUGE_PAGE);
        Layout {
            slices,
            pages,
            blocks: cpus,
            page_words,
            free_words,
            descriptors,
            runs,
            spans,
            states,
            processes,
            threads,
            sites,
            samples,
            tiers,
            fronts,
            bytes,
        }
    }

    /// Number of state bytes, of all levels.
    pub(super) const fn state_count(&self) -> usize {
        UNUSED_STATES + self.slices * states_up_to(MOST_LEVEL)
    }

    /// Where the states of a span begin, counted from the first state: a multiple of 8.
    pub(super) const fn states_of(&self, head: usize, cell_size: u32) -> usize {
        let level = match cell_size.ilog2() {
            ..LEAST_LEVEL => LEAST_LEVEL,
            MOST_LEVEL.. => MOST_LEVEL,
            level => level,
        };
        let below = if level == LEAST_LEVEL { 0 } else { states_up_to(level - 1) };
        UNUSED_STATES + self.slices * below + head * (SLICE >> level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size_class::CLASSES;

    #[test]
    fn tables_do_not_overlap_and_states_fit_an_entry() {
        let layout = Layout::new(32 << 30, 256);
        let starts = [
            size_of::<Core>(),
            layout.page_words,
            layout.free_words,
            layout.descriptors,
            layout.runs,
            layout.spans,
            layout.states,
            layout.processes,
            layout.threads,
            layout.sites,
            layout.samples,
            layout.fronts,
            layout.bytes,
        ];
        assert!(starts.is_sorted());
        assert!(layout.state_count() <= u32::MAX as usize);
    }

    #[test]
    fn spans_do_not_share_states() {
        let layout = Layout::new(1 << 30, 2);
        for bias in [0, 8] {
            let mut end_of_level = UNUSED_STATES;
            let mut start_of_level = UNUSED_STATES;
            for class in &CLASSES {
                let (size, slices) = (class.size + bias, class.slices as usize);
                let cells = slices * SLICE / size as usize;
                let first = |head| layout.states_of(head, size);
                if first(0) != start_of_level {
                    assert!(first(0) >= end_of_level, "the states of {size} begin among those of smaller cells");
                    start_of_level = first(0);
                }
                assert!(first(0).is_multiple_of(8) && first(slices) - first(0) >= cells, "{size}");
                end_of_level = end_of_level.max(first(layout.slices - slices) + cells);
                assert!(end_of_level <= layout.state_count());
            }
        }
    }
}
