//! What a turnover run measured, and the verdict on it. Field names are a contract.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bounds of the check, ns and bytes.
const P99_NS: u64 = 1_000_000;
const PEAK_BYTES: u64 = 7 << 20;
const POST_BYTES: u64 = (7 << 20) / 2;

/// One generation.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Generation {
    /// Spans of the class while its blocks were live.
    pub spans: u64,
    /// Spans left when all was given back.
    pub spans_left: u64,
    /// Resident bytes while the blocks were live.
    pub live_rss: u64,
    /// Resident bytes when they were freed, but nothing was given back yet.
    pub freed_rss: u64,
    /// What ending, joining and giving back took, ns.
    pub retire_ns: u64,
    /// CPU time of the process meanwhile, ns.
    pub cpu_ns: u64,
    /// Bytes in limbo afterwards.
    pub limbo: u64,
}

/// The outcome.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Spans of the class before the first generation.
    pub spans_before: u64,
    /// Resident bytes then.
    pub start_rss: u64,
    /// Resident bytes at the end.
    pub post_rss: u64,
    /// Generations that were done again because the machine kept a thread off its CPUs while the clock ran.
    pub repeated: u32,
    /// The generations.
    pub generations: Vec<Generation>,
}

impl Report {
    /// The longest retirement: with 8 of them the 99th percentile is the maximum.
    fn p99(&self) -> Duration {
        Duration::from_nanos(self.generations.iter().map(|g| g.retire_ns).max().unwrap_or(0))
    }

    fn p50(&self) -> Duration {
        let mut sorted: Vec<u64> = self.generations.iter().map(|g| g.retire_ns).collect();
        sorted.sort_unstable();
        Duration::from_nanos(sorted.get(sorted.len() / 2).copied().unwrap_or(0))
    }

    /// Whether retirement took too long.
    pub fn is_late(&self) -> bool {
        self.p99().as_nanos() as u64 >= P99_NS
    }

    /// The most that was resident. The kernel's own high-water mark is no help here: it is off by a quarter of a MiB.
    fn peak(&self) -> u64 {
        self.generations.iter().map(|g| g.live_rss.max(g.freed_rss)).max().unwrap_or(0)
    }

    /// What is wrong with this run, in words; empty if nothing is.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (number, g) in (1..).zip(&self.generations) {
            if g.spans_left > self.spans_before {
                let (left, all) = (g.spans_left - self.spans_before, g.spans - self.spans_before);
                failures.push(format!("generation {number}: {left} of {all} spans were not reclaimed"));
            }
            if g.limbo != 0 {
                failures.push(format!("generation {number}: {} B are in limbo", g.limbo));
            }
        }
        if self.is_late() {
            failures.push(format!("retirement took {:?} at p99, not under 1 ms", self.p99()));
        }
        for (what, bytes, limit) in [("peak", self.peak(), PEAK_BYTES), ("post", self.post_rss, POST_BYTES)] {
            if bytes > limit {
                failures.push(format!("{what} RSS is {}, more than {}", mib(bytes), mib(limit)));
            }
        }
        failures
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / (1 << 20) as f64)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, g) in (1..).zip(&self.generations) {
            let (spans, time) = (g.spans.saturating_sub(self.spans_before), Duration::from_nanos(g.retire_ns));
            let left = g.spans_left.saturating_sub(self.spans_before);
            writeln!(
                f,
                "generation {number:<3} {spans} spans, {left} left, RSS {}, retired in {time:?}",
                mib(g.live_rss)
            )?;
        }
        write!(f, "retirement p50 {:?}, p99 {:?}", self.p50(), self.p99())?;
        writeln!(f, " ({} generations done again: the machine was busy)", self.repeated)?;
        let (start, peak, post) = (mib(self.start_rss), mib(self.peak()), mib(self.post_rss));
        writeln!(f, "RSS        start {start}, peak {peak}, post {post}")?;
        let failures = self.failures();
        failures.iter().try_for_each(|failure| writeln!(f, "FAILED     {failure}"))?;
        f.write_str(if failures.is_empty() { "verdict    sound" } else { "verdict    NOT sound" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_one_failure() {
        let sound = || Report {
            spans_before: 2,
            start_rss: 2 << 20,
            post_rss: POST_BYTES,
            repeated: 0,
            generations: vec![
                Generation {
                    spans: 130,
                    spans_left: 2,
                    live_rss: PEAK_BYTES,
                    retire_ns: P99_NS - 1,
                    ..Generation::default()
                };
                8
            ],
        };
        assert_eq!(sound().failures(), Vec::<String>::new());
        let defects: [fn(&mut Report); 5] = [
            |r| r.generations[3].spans_left = 3,
            |r| r.generations[7].limbo = 1,
            |r| r.generations[0].retire_ns = P99_NS,
            |r| r.generations[1].freed_rss = PEAK_BYTES + 1,
            |r| r.post_rss += 1,
        ];
        for (index, defect) in defects.iter().enumerate() {
            let mut report = sound();
            defect(&mut report);
            assert_eq!(report.failures().len(), 1, "defect {index}");
        }
    }
}
