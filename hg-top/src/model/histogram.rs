//! A log2 histogram of durations, as the stats page and the BPF maps keep it, and what can be read off it.

use hg_probes::page::{BUCKETS, bucket_end};

/// Durations counted by powers of two. `max_ns` is exact; percentiles are interpolated inside a bucket, so they are right
/// to within the bucket (a factor of two) and never above `max_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Number of durations.
    pub count: u64,
    /// Their sum, ns.
    pub sum_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// When the longest ended, `CLOCK_MONOTONIC` ns; 0 if not known.
    pub max_at_ns: u64,
    /// Thread of the longest, in its own pid namespace; 0 if not known.
    pub max_tid: u32,
    /// Durations over the stall threshold.
    pub stalls: u64,
    /// Counts per bucket.
    pub buckets: [u64; BUCKETS],
}

impl Histogram {
    /// The duration that `percent` of all durations do not exceed, ns; `None` if there are none.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let total = self.buckets.iter().fold(0_u64, |sum, n| sum.saturating_add(*n));
        if total == 0 {
            return None;
        }
        let wanted = ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total);
        let mut below = 0_u64;
        for (index, &inside) in self.buckets.iter().enumerate() {
            if inside > 0 && below.saturating_add(inside) >= wanted {
                // The first bucket is that of locks nobody had to wait for.
                if index == 0 {
                    return Some(0);
                }
                let start = 1_u64 << index;
                let end = bucket_end(index).min(self.max_ns.max(start));
                let share = (wanted - below) as f64 / inside as f64;
                let inside = start.saturating_add(((end - start) as f64 * share) as u64);
                // A bucket's end belongs to the next one; the maximum itself may be reached.
                let most = self.max_ns.max(start).min(bucket_end(index) - 1);
                return Some(inside.min(most));
            }
            below = below.saturating_add(inside);
        }
        None
    }

    /// What was counted since `earlier`; `None` if the histogram was reset in between. The maximum stays the overall one.
    pub fn since(&self, earlier: &Histogram) -> Option<Histogram> {
        let mut buckets = [0; BUCKETS];
        for (into, (now, then)) in buckets.iter_mut().zip(self.buckets.iter().zip(&earlier.buckets)) {
            *into = now.checked_sub(*then)?;
        }
        Some(Histogram {
            count: self.count.checked_sub(earlier.count)?,
            sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns),
            stalls: self.stalls.checked_sub(earlier.stalls)?,
            buckets,
            ..*self
        })
    }

    /// Adds another histogram's durations.
    pub fn add(&mut self, other: &Histogram) {
        if other.max_ns >= self.max_ns {
            (self.max_ns, self.max_at_ns, self.max_tid) = (other.max_ns, other.max_at_ns, other.max_tid);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.stalls = self.stalls.saturating_add(other.stalls);
        for (into, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *into = into.saturating_add(*from);
        }
    }

    /// The counts in eight groups for a miniature: to 127 ns, then by factors of four to 511 µs, then all longer ones.
    pub fn miniature(&self) -> [u64; 8] {
        let mut groups = [0_u64; 8];
        for (index, &inside) in self.buckets.iter().enumerate() {
            let group = index.saturating_sub(5) / 2;
            let into = &mut groups[group.min(7)];
            *into = into.saturating_add(inside);
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hg_probes::page::bucket;

    fn of(durations: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for &ns in durations {
            histogram.count += 1;
            histogram.sum_ns = histogram.sum_ns.saturating_add(ns);
            histogram.max_ns = histogram.max_ns.max(ns);
            histogram.buckets[bucket(ns)] += 1;
        }
        histogram
    }

    #[test]
    fn percentiles_stay_in_the_bucket_and_below_the_maximum() {
        assert_eq!(Histogram::default().percentile(50.0), None);
        let even = of(&[100; 99]);
        assert!((64..=100).contains(&even.percentile(50.0).unwrap()));
        assert_eq!(even.percentile(100.0), Some(100));
        let mut durations = vec![300; 990];
        durations.extend([50_000; 10]);
        let skewed = of(&durations);
        assert!((256..512).contains(&skewed.percentile(50.0).unwrap()));
        assert!((256..512).contains(&skewed.percentile(99.0).unwrap()));
        assert!((32_768..=50_000).contains(&skewed.percentile(99.5).unwrap()));
        assert_eq!(of(&[0]).percentile(99.0), Some(0));
    }

    #[test]
    fn a_lying_histogram_does_no_harm() {
        let lying = Histogram { buckets: [u64::MAX; BUCKETS], count: u64::MAX, ..Histogram::default() };
        assert!(lying.percentile(99.0).is_some());
        let mut sum = lying;
        sum.add(&lying);
        assert_eq!(sum.count, u64::MAX);
        assert_eq!(lying.miniature()[7], u64::MAX);
        let last = Histogram { buckets: std::array::from_fn(|i| u64::from(i == 31)), max_ns: u64::MAX, ..lying };
        assert!(last.percentile(50.0).unwrap() >= 1 << 31);
    }

    #[test]
    fn differences_notice_a_reset() {
        let earlier = of(&[100, 200]);
        let mut later = earlier;
        later.add(&of(&[5_000]));
        let between = later.since(&earlier).unwrap();
        assert_eq!((between.count, between.sum_ns), (1, 5_000));
        assert!((4_096..=5_000).contains(&between.percentile(50.0).unwrap()));
        assert_eq!(earlier.since(&later), None);
    }

    #[test]
    fn miniature_groups() {
        let groups = of(&[0, 127, 128, 511, 512, 2_000, 600_000, u64::MAX]).miniature();
        assert_eq!(groups.iter().sum::<u64>(), 8);
        assert_eq!((groups[0], groups[1], groups[2], groups[7]), (2, 2, 2, 2));
    }
}
