//! The outcome of a run, as JSON and as text. Field names are a contract.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// The outcome of a run in threads mode.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Worker threads.
    pub threads: usize,
    /// Length of the load, seconds.
    pub seconds: f64,
    /// Allocations, frees and resizes.
    pub ops: u64,
    /// The same per second.
    pub ops_per_s: f64,
    /// Threads that ended and were replaced.
    pub threads_replaced: u64,
    /// Blocks found torn; a run ends at the first.
    pub torn: Vec<String>,
    /// Allocations that failed.
    pub failed: u64,
    /// Bad frees on purpose.
    pub faults: FaultCount,
    /// Resident memory.
    pub rss: RssReport,
    /// Lock holds and waits over the stall threshold, by the allocator's count.
    pub stalls: u64,
    /// Signals sent to provoke stalls.
    pub stall_tries: u64,
    /// Whether stalls were to be provoked.
    pub stall_wanted: bool,
}

/// Injected faults and what became of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FaultCount {
    /// Injected, by kind of corruption.
    pub injected: BTreeMap<&'static str, u64>,
    /// Refused by the allocator's count, by kind of corruption.
    pub refused: BTreeMap<&'static str, u64>,
    /// Faults that were not answered by exactly one count of their kind, or did damage.
    pub unanswered: Vec<String>,
}

/// Resident memory at five moments, bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RssReport {
    /// After set-up of all threads and tables, before the first operation.
    pub start: u64,
    /// The most seen under load.
    pub peak: u64,
    /// As soon as all blocks were freed.
    pub after_free: u64,
    /// When it was back, or when the wait for that was over.
    pub settled: u64,
    /// How long that took from `after_free` on, milliseconds; absent if it did not come back.
    pub back_ms: Option<u64>,
    /// How long it might have taken, milliseconds: the allocator's decay time and two seconds.
    pub patience_ms: u64,
    /// After the allocator was then asked to give back what is free. No part of the verdict.
    pub after_trim: u64,
    /// Bytes of the allocator's own tables then, by its count: they become resident as they are used.
    pub tables: u64,
}

impl RssReport {
    /// The most that may be resident for memory to count as back: the start and a tenth of it.
    pub fn limit(start: u64) -> u64 {
        start + start / 10
    }
}

impl Report {
    /// What is wrong with this run, in words; empty if nothing is.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        failures.extend(self.torn.iter().cloned());
        failures.extend(self.faults.unanswered.iter().cloned());
        if self.faults.injected != self.faults.refused {
            failures.push("faults injected and faults refused differ".into());
        }
        if self.failed != 0 {
            failures.push(format!("{} allocations failed", self.failed));
        }
        if self.rss.back_ms.is_none() {
            let seconds = self.rss.patience_ms as f64 / 1e3;
            failures.push(format!("resident memory was not back within 10% of its start after {seconds:.1} s"));
        }
        if self.stall_wanted && self.stalls == 0 {
            failures.push(format!("no lock stall came about in {} tries", self.stall_tries));
        }
        failures
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "threads    {} for {:.1} s, {} replaced", self.threads, self.seconds, self.threads_replaced)?;
        writeln!(f, "operations {} ({:.2} M/s)", self.ops, self.ops_per_s / 1e6)?;
        writeln!(f, "torn       {}", self.torn.len())?;
        writeln!(f, "failed     {}", self.failed)?;
        for (kind, injected) in &self.faults.injected {
            let refused = self.faults.refused.get(kind).unwrap_or(&0);
            writeln!(f, "fault      {kind}: {injected} injected, {refused} refused and counted")?;
        }
        writeln!(f, "stalls     {} ({} signals)", self.stalls, self.stall_tries)?;
        let RssReport { start, peak, after_free, settled, back_ms, patience_ms, after_trim, tables } = self.rss;
        let back = match back_ms {
            Some(0) => "back at once".into(),
            Some(ms) => format!("back after {:.1} s", ms as f64 / 1e3),
            None => format!("NOT back after {:.1} s", patience_ms as f64 / 1e3),
        };
        let [start, peak, after_free, settled] = [start, peak, after_free, settled].map(mib);
        writeln!(f, "RSS        start {start}, peak {peak}, after free-all {after_free}, then {settled}: {back}")?;
        writeln!(f, "           after a trim {}, of it tables {}", mib(after_trim), mib(tables))?;
        let failures = self.failures();
        failures.iter().try_for_each(|failure| writeln!(f, "FAILED     {failure}"))?;
        f.write_str(if failures.is_empty() { "verdict    sound" } else { "verdict    NOT sound" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Report {
        Report {
            threads: 8,
            seconds: 1.0,
            ops: 10,
            ops_per_s: 10.0,
            threads_replaced: 0,
            torn: vec![],
            failed: 0,
            faults: FaultCount::default(),
            rss: RssReport { start: 20 << 20, peak: 90 << 20, back_ms: Some(0), ..RssReport::default() },
            stalls: 0,
            stall_tries: 0,
            stall_wanted: false,
        }
    }

    #[test]
    fn a_sound_run_has_no_failures_and_each_defect_is_one() {
        assert_eq!(sound().failures(), Vec::<String>::new());
        let defects: [fn(&mut Report); 6] = [
            |r| r.torn.push("torn".into()),
            |r| r.failed = 1,
            |r| r.faults.unanswered.push("unanswered".into()),
            |r| r.faults.injected.extend([("double free", 1)]),
            |r| r.rss.back_ms = None,
            |r| r.stall_wanted = true,
        ];
        for (index, defect) in defects.iter().enumerate() {
            let mut report = sound();
            defect(&mut report);
            assert_eq!(report.failures().len(), 1, "defect {index}");
        }
    }

    #[test]
    fn a_trim_does_not_make_a_run_sound() {
        let mut report = sound();
        report.rss =
            RssReport { settled: 40 << 20, back_ms: None, patience_ms: 12_000, after_trim: 20 << 20, ..report.rss };
        assert_eq!(report.failures(), ["resident memory was not back within 10% of its start after 12.0 s"]);
        assert!(report.to_string().contains("NOT back after 12.0 s"), "{report}");
    }

    #[test]
    fn the_limit_is_a_tenth_above_the_start_and_no_more() {
        assert_eq!(RssReport::limit(1000), 1100);
        assert_eq!(RssReport::limit(5), 5);
    }
}
