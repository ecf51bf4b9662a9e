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

/// Closes the ring in a forked child whose parent was writing: what it holds of the last entry is half of it.
pub(super) fn close(page: &StatsPage) {
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
