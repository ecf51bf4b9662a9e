//! Slack: how much free memory an arena keeps when frees leave it with more.
//!
//! An eighth of what is in use, between 4 and 10 MiB: so a program that ends a phase gives back what the phase took, and one
//! that allocates and frees large objects in turns makes few system calls. Where giving back was regretted, because the same
//! memory was taken again at once and again and again, more is kept: such a program has one large object that comes and goes.
//!
//! No lock: words that slow paths look at, of which a stale value costs a system call.

use super::GRANULE;
use crate::size_class::SLICE_SHIFT;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The least and the most that is kept, slices.
const LEAST: u32 = GRANULE / 4;
const MOST: u32 = GRANULE / 8 * 5;

/// Giving back is regretted if memory is taken again within so many ns.
const REGRET_NS: u64 = 20_000_000;

/// So many regrets, of which no two lie further apart than this, double the slack.
const REGRETS: u32 = 4;
const APART_NS: u64 = 500_000_000;

/// See the module.
pub(crate) struct Slack {
    /// What is kept whatever else is in use, slices.
    slices: AtomicU32,
    /// When memory was last given back because of slack, 0 if it was taken again since.
    given_ns: AtomicU64,
    regrets: AtomicU32,
    regret_ns: AtomicU64,
}

impl Slack {
    pub(super) const fn new() -> Self {
        Slack {
            slices: AtomicU32::new(LEAST),
            given_ns: AtomicU64::new(0),
            regrets: AtomicU32::new(0),
            regret_ns: AtomicU64::new(0),
        }
    }

    /// Whether `dirty` free bytes are more than is kept beside `used` bytes in use. If so, how many slices to keep: fewer than
    /// would do, or every further free would make a system call.
    pub(crate) fn exceeded(&self, dirty: u64, used: u64) -> Option<u32> {
        let limit = ((used >> SLICE_SHIFT) as u32 / 8).clamp(self.slices.load(Relaxed), MOST);
        ((dirty >> SLICE_SHIFT) as u32 > limit).then_some(limit / 2)
    }

    /// Memory was given back because of slack.
    pub(crate) fn given(&self, now_ns: u64) {
        self.given_ns.store(now_ns, Relaxed);
    }

    /// Memory that was given back is taken again.
    pub(super) fn taken_again(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.given_ns.swap(0, Relaxed)) > REGRET_NS {
            return;
        }
        let apart = now_ns.saturating_sub(self.regret_ns.swap(now_ns, Relaxed));
        let regrets = if apart > APART_NS { 1 } else { self.regrets.load(Relaxed) + 1 };
        self.regrets.store(regrets % REGRETS, Relaxed);
        if regrets >= REGRETS {
            self.slices.store((self.slices.load(Relaxed) * 2).min(MOST), Relaxed);
        }
    }

    /// An epoch of maintenance is over: regrets are forgotten by and by.
    pub(crate) fn forget(&self) {
        self.slices.store((self.slices.load(Relaxed) / 2).max(LEAST), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;

    #[test]
    fn slack_follows_use_between_its_bounds() {
        let slack = Slack::new();
        assert_eq!(slack.exceeded(4 * MIB, 0), None);
        assert_eq!(slack.exceeded(4 * MIB + 32768, 0), Some(64));
        assert_eq!(slack.exceeded(8 * MIB, 64 * MIB), None);
        assert_eq!(slack.exceeded(10 * MIB, 1 << 40), None);
        assert_eq!(slack.exceeded(11 * MIB, 1 << 40), Some(160));
    }

    #[test]
    fn regrets_in_a_row_double_it_and_lone_ones_do_not() {
        let slack = Slack::new();
        let mut now = MS;
        for _ in 0..20 {
            slack.given(now);
            slack.taken_again(now + MS);
            slack.taken_again(now + 2 * MS);
            now += 1000 * MS;
        }
        assert_eq!(slack.exceeded(5 * MIB, 0), Some(64), "one regret a second");
        for _ in 0..REGRETS {
            slack.given(now);
            slack.taken_again(now + MS);
            now += 5 * MS;
        }
        assert_eq!(slack.exceeded(5 * MIB, 0), None);
        slack.forget();
        assert_eq!(slack.exceeded(5 * MIB, 0), Some(64));
    }
}
