//! How long locks were held while a load ran: the difference of two looks at the histograms of the stats page.

use std::sync::atomic::Ordering::Relaxed;

use hg_probes::page::{BUCKETS, GRID_LOCK, Histogram, MAX_LOCKS, StatsPage, bucket_end};
use hg_probes::words::{LockId, Reason};
use serde::Serialize;

/// Holds of one lock for one reason.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Holds {
    /// The lock, as everywhere: `grid` or `class N`.
    pub lock: String,
    /// Why it was taken.
    pub reason: &'static str,
    /// How often.
    pub count: u64,
    /// The longest ever, ns.
    pub max_ns: u64,
    /// When it ended, `CLOCK_MONOTONIC`, ns.
    pub max_at_ns: u64,
    /// The thread that held it.
    pub max_tid: u32,
    /// Holds over the stall threshold.
    pub stalls: u64,
    /// Counts per bucket: 2^i to 2^(i+1)-1 ns.
    pub buckets: [u64; BUCKETS],
}

/// All locks and reasons.
#[derive(Clone, Debug)]
pub struct Look(Vec<Holds>);

impl Look {
    /// The histograms now.
    pub fn at(page: &StatsPage) -> Look {
        let places = Reason::ALL.iter().flat_map(|&reason| (0..MAX_LOCKS).map(move |lock| (reason, lock)));
        Look(places.map(|(reason, lock)| read(page, reason, lock)).collect())
    }

    /// What came about since `earlier`, where anything did. The longest hold counts only if it is younger than that look.
    pub fn since(self, earlier: &Look, at_ns: u64) -> Vec<Holds> {
        let pairs = self.0.into_iter().zip(&earlier.0);
        let mut holds: Vec<Holds> =
            pairs.map(|(now, before)| now.less(before, at_ns)).filter(|holds| holds.count > 0).collect();
        holds.sort_by_key(|holds| std::cmp::Reverse(holds.max_ns));
        holds
    }
}

fn read(page: &StatsPage, reason: Reason, lock: usize) -> Holds {
    let id = if lock == GRID_LOCK {
        LockId::GRID
    } else {
        LockId::class(page.classes.get(lock).map_or(0, |class| class.size.load(Relaxed)))
    };
    let none = Holds { lock: id.to_string(), reason: reason.label(), ..Holds::default() };
    let stats = page.locks.get(reason as usize).and_then(|locks| locks.get(lock));
    stats.map_or(none.clone(), |stats| Holds { ..from(&stats.hold, none) })
}

fn from(histogram: &Histogram, place: Holds) -> Holds {
    Holds {
        count: histogram.count.load(Relaxed),
        max_ns: histogram.max_ns.load(Relaxed),
        max_at_ns: histogram.max_at_ns.load(Relaxed),
        max_tid: histogram.max_tid.load(Relaxed),
        stalls: u64::from(histogram.stalls.load(Relaxed)),
        buckets: std::array::from_fn(|index| histogram.buckets[index].load(Relaxed)),
        ..place
    }
}

impl Holds {
    fn less(mut self, before: &Holds, at_ns: u64) -> Holds {
        self.count = self.count.saturating_sub(before.count);
        self.stalls = self.stalls.saturating_sub(before.stalls);
        for (bucket, earlier) in self.buckets.iter_mut().zip(before.buckets) {
            *bucket = bucket.saturating_sub(earlier);
        }
        if self.max_at_ns < at_ns {
            (self.max_ns, self.max_at_ns, self.max_tid) = (0, 0, 0);
        }
        self
    }

    /// Several as one; the longest is the longest of all.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Holds>) -> Holds {
        all.fold(Holds::default(), |mut sum, holds| {
            sum.count += holds.count;
            sum.stalls += holds.stalls;
            sum.buckets.iter_mut().zip(holds.buckets).for_each(|(sum, bucket)| *sum += bucket);
            if holds.max_ns > sum.max_ns {
                (sum.max_ns, sum.max_at_ns, sum.max_tid) = (holds.max_ns, holds.max_at_ns, holds.max_tid);
            }
            sum
        })
    }

    /// A duration that at least this share of the holds stayed below or at: the end of their bucket, or the longest if that
    /// is less. ns.
    pub fn quantile(&self, share: f64) -> u64 {
        let total: u64 = self.buckets.iter().sum();
        let wanted = (total as f64 * share).ceil() as u64;
        let mut seen = 0;
        let found = self.buckets.iter().position(|&count| {
            seen += count;
            seen >= wanted
        });
        let end = found.map_or(u64::MAX, |index| bucket_end(index).saturating_sub(1));
        if self.max_ns > 0 { end.min(self.max_ns) } else { end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hg_probes::page::bucket;

    fn holds(list: &[u64]) -> Holds {
        let mut holds = Holds::default();
        for &ns in list {
            holds.count += 1;
            holds.buckets[bucket(ns)] += 1;
            if ns > holds.max_ns {
                (holds.max_ns, holds.max_at_ns, holds.max_tid) = (ns, ns, 7);
            }
        }
        holds
    }

    #[test]
    fn quantiles_are_upper_bounds_and_never_above_the_longest() {
        let mut list = vec![100; 999];
        list.push(5000);
        assert_eq!(holds(&list).quantile(0.999), 127);
        assert_eq!(holds(&list).quantile(1.0), 5000);
        assert_eq!(holds(&[70]).quantile(0.5), 70);
    }

    #[test]
    fn only_what_is_new_counts() {
        let (before, now) = (holds(&[900_000, 100]), holds(&[900_000, 100, 100, 3000]));
        let new = now.less(&before, 1_000_000);
        assert_eq!((new.count, new.max_ns, new.buckets[bucket(3000)], new.buckets[bucket(900_000)]), (2, 0, 1, 0));
        // Without a longest of its own the end of the bucket stands for it.
        assert_eq!(new.quantile(1.0), 4095);
    }

    #[test]
    fn a_sum_has_the_longest_of_all() {
        let sum = Holds::sum([holds(&[10, 20]), holds(&[3000])].iter());
        assert_eq!((sum.count, sum.max_ns, sum.max_tid), (3, 3000, 7));
    }
}
