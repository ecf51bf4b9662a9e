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

/// State bytes that each slice has, where cells are small and where they are not: one for each 16 bytes, and for each 64.
pub(super) const FINE_STATES: usize = SLICE / 16;
pub(super) const COARSE_STATES: usize = SLICE / 64;

/// States before the first that is a cell's, so that no entry is 0, which means none.
const UNUSED_STATES: usize = 64;

/// Cells smaller than this have fine states, bytes.
pub(super) const COARSE_FROM: u32 = 64;

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
    /// Fine and coarse states.
    pub(super) states: usize,
    pub(super) coarse: usize,
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
        let coarse = states + UNUSED_STATES + slices * FINE_STATES;
        let processes = (coarse + slices * COARSE_STATES).next_multiple_of(4096);
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
            coarse,
            processes,
            threads,
            sites,
            samples,
            tiers,
            fronts,
            bytes,
        }
    }

    /// Number of state bytes, fine and coarse together.
    pub(super) const fn state_count(&self) -> usize {
        UNUSED_STATES + self.slices * (FINE_STATES + COARSE_STATES)
    }

    /// Where the states of a span begin, counted from the first state.
    pub(super) const fn states_of(&self, head: usize, cell_size: u32) -> usize {
        let fine = cell_size < COARSE_FROM;
        UNUSED_STATES + if fine { head * FINE_STATES } else { self.slices * FINE_STATES + head * COARSE_STATES }
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
            layout.coarse,
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
    fn every_span_has_room_for_its_states() {
        for bias in [0, 8] {
            for class in &CLASSES {
                let size = class.size + bias;
                let per_slice = if size < COARSE_FROM { FINE_STATES } else { COARSE_STATES };
                assert!(class.slices as usize * SLICE / size as usize <= class.slices as usize * per_slice);
            }
        }
    }
}
