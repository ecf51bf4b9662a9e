//! The ring of decisions in the stats page, written by whoever maintains the arena, one at a time.

use super::policy::Decision;
use crate::stats;
use core::sync::atomic::Ordering::*;
use hg_probes::page::{self, StatsPage};
use hg_probes::words::Verdict;

/// Enters a decision. One that says what the last one said is counted there, and its figures replace the former.
pub(crate) fn record(page: &StatsPage, decision: &Decision, now_ns: u64) {
    let ring = &page.policy;
    let place = |number: u64| ring.decisions.get((number % page::DECISIONS as u64) as usize);
    stats::change(&ring.seq, || {
        let written = ring.written.load(Relaxed);
        let last = written.checked_sub(1).and_then(place).filter(|last| says(last, decision));
        let Some(entry) = last.or_else(|| place(written)) else { return };
        if last.is_some() {
            stats::add(&entry.times, 1);
        } else {
            entry.times.store(1, Relaxed);
            entry.verdict.store(decision.verdict as u32, Relaxed);
            entry.why.store(decision.why as u32, Relaxed);
            entry.page.store(decision.page, Relaxed);
            entry.class.store(decision.class, Relaxed);
            ring.written.store(written.wrapping_add(1), Relaxed);
        }
        entry.at_ns.store(now_ns, Relaxed);
        entry.bytes.store(decision.bytes, Relaxed);
        entry.cells.store(decision.cells, Relaxed);
        entry.percent.store(u64::from(decision.usage) << 32 | u64::from(decision.limit), Relaxed);
    });
}

/// Closes the ring in a forked child, if its parent was writing: what it holds of the last entry is half of it.
pub(crate) fn close(page: &StatsPage) {
    let sequence = page.policy.seq.load(Relaxed);
    page.policy.seq.store(sequence.wrapping_add(sequence % 2), Release);
}

/// Whether an entry says the same. Of what is kept the figures may drift; of what moved, each move is told.
fn says(entry: &page::Decision, decision: &Decision) -> bool {
    entry.verdict.load(Relaxed) == decision.verdict as u32
        && entry.why.load(Relaxed) == decision.why as u32
        && entry.page.load(Relaxed) == decision.page
        && entry.class.load(Relaxed) == decision.class
        && (decision.verdict == Verdict::Keep || entry.bytes.load(Relaxed) == decision.bytes)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use hg_probes::words::Why;
    use std::boxed::Box;

    fn page() -> Box<StatsPage> {
        // SAFETY: a stats page consists of atomic words, which may be zero.
        unsafe { Box::<StatsPage>::new_zeroed().assume_init() }
    }

    fn keep(why: Why, usage: u32) -> Decision {
        Decision { usage, limit: 70, ..Decision::new(Verdict::Keep, why, 0) }
    }

    #[test]
    fn equal_decisions_in_a_row_are_one_with_its_last_figures() {
        let page = page();
        let ring = &page.policy;
        for usage in [40, 41, 42] {
            record(&page, &keep(Why::Usage, usage), u64::from(usage));
        }
        let first = &ring.decisions[0];
        assert_eq!((ring.written.load(Relaxed), first.times.load(Relaxed), first.at_ns.load(Relaxed)), (1, 3, 42));
        assert_eq!(first.percent.load(Relaxed), 42 << 32 | 70);
        record(&page, &keep(Why::Cycles, 71), 50);
        record(&page, &keep(Why::Usage, 60), 51);
        assert_eq!(ring.written.load(Relaxed), 3, "not in a row");
        let grow = |bytes| Decision::new(Verdict::Grow, Why::Usage, bytes);
        record(&page, &grow(16), 52);
        record(&page, &grow(16), 53);
        record(&page, &grow(32), 54);
        assert_eq!(ring.written.load(Relaxed), 5, "each move is told");
        let pinned = |page| Decision { page, class: 64, cells: 1, ..keep(Why::PinnedByCells, 10) };
        record(&page, &pinned(3), 55);
        record(&page, &pinned(4), 56);
        assert_eq!(ring.written.load(Relaxed), 7, "another page is another reason");
        assert_eq!(ring.seq.load(Relaxed), 20);
    }

    #[test]
    fn the_ring_keeps_the_last_ones() {
        let page = page();
        let count = page::DECISIONS as u64 * 2 + 5;
        for bytes in 0..count {
            record(&page, &Decision::new(Verdict::Shrink, Why::Idle, bytes), bytes);
        }
        assert_eq!(page.policy.written.load(Relaxed), count);
        for number in count - page::DECISIONS as u64..count {
            let entry = &page.policy.decisions[(number % page::DECISIONS as u64) as usize];
            assert_eq!((entry.bytes.load(Relaxed), entry.times.load(Relaxed)), (number, 1));
        }
    }

    #[test]
    fn a_ring_that_was_being_written_is_closed() {
        let page = page();
        record(&page, &keep(Why::Usage, 1), 1);
        for sequence in [7, 8] {
            page.policy.seq.store(sequence, Relaxed);
            close(&page);
            assert_eq!(page.policy.seq.load(Relaxed), 8);
        }
    }
}
