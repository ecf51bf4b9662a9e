//! What maintenance decided about an arena and why, and each decision as a sentence: the same one on every screen, in text
//! and in JSON.

use std::time::Duration;

use hg_probes::words::{Verdict, Why};

use super::MonotonicNs;
use crate::unit;

/// What maintenance did and decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Its ticks.
    pub ticks: u64,
    /// The last of them; 0 if there was none.
    pub last_tick_at: MonotonicNs,
    /// Decisions ever written.
    pub written: u64,
    /// The last ones, newest first.
    pub decisions: Vec<Decision>,
}

impl Policy {
    /// How long ago the last tick was; `None` if there was none.
    pub fn idle(&self, now: MonotonicNs) -> Option<Duration> {
        (self.last_tick_at > 0).then(|| Duration::from_nanos(now.saturating_sub(self.last_tick_at)))
    }
}

/// One decision; equal ones in a row are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When it was taken last.
    pub at: MonotonicNs,
    /// How many times in a row.
    pub times: u64,
    /// What was decided; `None` for a word this version does not know.
    pub verdict: Option<Verdict>,
    /// Why; `None` as above.
    pub why: Option<Why>,
    /// Bytes that moved, or that it is about.
    pub bytes: u64,
    /// The page in the way, where one was.
    pub page: u32,
    /// Size of the cells in the way, bytes; 0 for a large object.
    pub class: u32,
    /// How many of them.
    pub cells: u64,
    /// What was compared with what, percent.
    pub percent: (u32, u32),
}

impl Decision {
    /// What was decided and why: `keep: page 17 pinned by 1 cell of 4 KiB`.
    pub fn meaning(&self) -> String {
        format!("{}: {}", self.head(), self.reason())
    }

    /// How often and how long ago: `3 ×, 2.0 s ago`.
    pub fn when(&self, now: MonotonicNs) -> String {
        let ago = unit::age(Duration::from_nanos(now.saturating_sub(self.at)));
        match self.times {
            0 | 1 => format!("{ago} ago"),
            times => format!("{} ×, {ago} ago", unit::count(times)),
        }
    }

    /// What moved, if anything did.
    fn head(&self) -> String {
        let would = if self.why == Some(Why::DryRun) { "would " } else { "" };
        let verdict = self.verdict.map_or("unknown verdict", Verdict::label);
        match (self.verdict, self.bytes) {
            (_, 0) => format!("{would}{verdict}"),
            (Some(Verdict::Grow | Verdict::Shrink), bytes) => format!("{would}{verdict} by {}", unit::bytes(bytes)),
            (_, bytes) => format!("{would}{verdict} {}", unit::bytes(bytes)),
        }
    }

    fn reason(&self) -> String {
        let label = self.why.map_or("for a reason this hg-top does not know", Why::label);
        match self.why {
            Some(Why::PinnedByCells) => {
                let size = unit::whole_bytes(self.class.into());
                let plural = if self.cells == 1 { "" } else { "s" };
                format!("page {} pinned by {} cell{plural} of {size}", self.page, unit::count(self.cells))
            }
            Some(Why::PinnedByLarge) => format!("page {} {label}", self.page),
            // 0 is no limit.
            _ if self.percent.1 == 0 && self.percent.0 > 0 => format!("{label}, {}% used", self.percent.0),
            _ if self.percent != (0, 0) => {
                let (usage, limit) = self.percent;
                let relation = if usage >= limit { "over" } else { "under" };
                format!("{label}, {usage}% used is {relation} the {limit}% of the profile")
            }
            _ => label.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn decision(verdict: Verdict, why: Why) -> Decision {
        Decision {
            at: 10 * SECOND,
            times: 1,
            verdict: Some(verdict),
            why: Some(why),
            bytes: 0,
            page: 17,
            class: 4096,
            cells: 1,
            percent: (0, 0),
        }
    }

    #[test]
    fn each_is_a_sentence() {
        let keep = decision(Verdict::Keep, Why::PinnedByCells);
        assert_eq!(keep.meaning(), "keep: page 17 pinned by 1 cell of 4 KiB");
        let many = Decision { cells: 12, class: 640, ..keep };
        assert_eq!(many.meaning(), "keep: page 17 pinned by 12 cells of 640 B");
        assert_eq!(decision(Verdict::Keep, Why::PinnedByLarge).meaning(), "keep: page 17 pinned by a large object");
        let shrink = Decision { bytes: 12 << 20, ..decision(Verdict::Shrink, Why::Idle) };
        assert_eq!(shrink.meaning(), "shrink by 12.0 MiB: free for the decay time");
        let grow = Decision { bytes: 16 << 20, percent: (83, 80), ..decision(Verdict::Grow, Why::Usage) };
        assert_eq!(grow.meaning(), "grow by 16.0 MiB: usage, 83% used is over the 80% of the profile");
        let ahead = Decision { percent: (98, 0), ..grow };
        assert_eq!(ahead.meaning(), "grow by 16.0 MiB: usage, 98% used");
        let dry = Decision { bytes: 16 << 20, ..decision(Verdict::Grow, Why::DryRun) };
        assert_eq!(dry.meaning(), "would grow by 16.0 MiB: dry run");
        let unknown = Decision { verdict: None, why: None, ..keep };
        assert_eq!(unknown.meaning(), "unknown verdict: for a reason this hg-top does not know");
    }

    #[test]
    fn repetitions_and_ages() {
        let keep = decision(Verdict::Keep, Why::AtFloor);
        assert_eq!(keep.when(12 * SECOND), "2.0 s ago");
        assert_eq!(Decision { times: 3, ..keep }.when(12 * SECOND), "3 ×, 2.0 s ago");
        assert_eq!(Decision { times: u64::MAX, at: u64::MAX, ..keep }.when(0), "18.4E ×, 0.0 s ago");
    }

    #[test]
    fn a_policy_that_never_ticked_has_no_age() {
        assert_eq!(Policy::default().idle(SECOND), None);
        let policy = Policy { last_tick_at: SECOND, ..Policy::default() };
        assert_eq!(policy.idle(3 * SECOND), Some(Duration::from_secs(2)));
    }
}
