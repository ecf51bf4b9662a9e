//! What a growth run measured, and the verdict on it. Field names are a contract.

use std::fmt;

use serde::Serialize;

use super::Growth;
use super::calls::{Calls, Held};
use super::locks::Holds;
use super::machine::Stops;
use crate::counters::Memory;

/// The longest that a lock may be held, ns.
pub const LIMIT_NS: u64 = 200_000;

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Live memory at the end, MiB.
    pub mib: u64,
    /// Threads.
    pub threads: u32,
    /// What growing took.
    pub seconds: f64,
    /// Allocations and frees.
    pub ops: u64,
    /// CPU time of growing.
    pub cpu_seconds: f64,
    /// Growths of the arena meanwhile.
    pub grows: u64,
    /// The arena at the end.
    pub memory: Memory,
    /// Calls that took longer than the limit on the wall, and of them those that had a CPU for longer than that.
    pub calls: usize,
    /// See `calls`.
    pub calls_on_cpu: usize,
    /// 99.9th percentile of the holds of the grid's lock, at most, ns.
    pub grid_p999_ns: u64,
    /// The same for the locks of all classes.
    pub class_p999_ns: u64,
    /// Holds beyond the limit, the longest first.
    pub beyond: Vec<Held>,
    /// Holds beyond the limit that the allocator counted, and that happened in no call of the load: nothing is known of them.
    pub unknown: u64,
    /// What the machine did to a loop that holds nothing; looked at where a holder had a CPU beyond the limit.
    pub machine: Option<Stops>,
    /// All locks and reasons, the longest holds first.
    pub holds: Vec<Holds>,
}

impl Report {
    /// Sums up a run.
    pub fn new(growth: &Growth, seconds: f64, ops: u64, holds: Vec<Holds>, calls: Calls) -> Report {
        let p999 = |grid: bool| Holds::sum(holds.iter().filter(|holds| (holds.lock == "grid") == grid)).quantile(0.999);
        let (long, calls_on_cpu) = calls.long();
        let beyond = calls.into_held();
        let counted: u64 = holds.iter().map(|holds| holds.stalls).sum();
        Report {
            mib: growth.mib,
            threads: growth.threads,
            seconds,
            ops,
            cpu_seconds: 0.0,
            grows: 0,
            memory: Memory::default(),
            calls: long,
            calls_on_cpu,
            grid_p999_ns: p999(true),
            class_p999_ns: p999(false),
            unknown: counted.saturating_sub(beyond.len() as u64),
            beyond,
            machine: None,
            holds,
        }
    }

    /// Adds what the arena says of itself.
    pub fn with_arena(self, memory: Memory, grows: u64) -> Report {
        Report { memory, grows, ..self }
    }

    /// Adds the CPU time of growing, and, where a holder had a CPU beyond the limit, what the machine does.
    pub fn with_machine(self, cpu_seconds: f64, watch: impl FnOnce() -> Stops) -> Report {
        let machine = self.on_cpu().next().is_some().then(watch);
        Report { cpu_seconds, machine, ..self }
    }

    fn on_cpu(&self) -> impl Iterator<Item = &Held> {
        self.beyond.iter().filter(|held| !held.is_off_cpu(LIMIT_NS))
    }

    /// Whether the machine stops CPUs as often and for as long as locks were held by threads that had one.
    fn is_machine(&self) -> bool {
        self.machine.is_some_and(|stops| {
            let longest = self.on_cpu().map(|held| held.cpu_ns).max().unwrap_or(0);
            self.on_cpu().count() as u64 <= stops.expected(self.cpu_seconds) && longest <= LIMIT_NS + stops.longest_ns
        })
    }

    /// What is wrong with this run, in words; empty if nothing is.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (what, ns) in [("the grid's lock", self.grid_p999_ns), ("the classes' locks", self.class_p999_ns)] {
            if ns >= LIMIT_NS {
                failures.push(format!("p99.9 of the holds of {what} is {}, not under {}", time(ns), time(LIMIT_NS)));
            }
        }
        if !self.is_machine() {
            failures.extend(self.on_cpu().map(|held| format!("a hold may have been too long: {held}")));
        }
        if self.unknown > 0 {
            failures.push(format!("{} holds beyond {} in no call of the load", self.unknown, time(LIMIT_NS)));
        }
        if self.grows == 0 {
            failures.push("the arena did not grow".into());
        }
        failures
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..1000 => format!("{ns}ns"),
        1000..1_000_000 => format!("{:.1}µs", ns as f64 / 1e3),
        _ => format!("{:.1}ms", ns as f64 / 1e6),
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { lock, reason, ns, tid, cpu_ns } = self;
        write!(f, "{lock} for {reason}: {} by thread {tid}, ", time(*ns))?;
        write!(f, "which had a CPU for {} in that call by then", time(*cpu_ns))?;
        f.write_str(if self.is_off_cpu(LIMIT_NS) { ": preempted or stopped" } else { "" })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:<8} {:>9} {:>9} {:>9} {:>9} {:>9}  thread",
            "LOCK", "REASON", "COUNT", "p50", "p99", "p99.9", "max"
        )?;
        for holds in self.holds.iter().take(24) {
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| time(holds.quantile(share)));
            let Holds { lock, reason, count, max_ns, max_tid, .. } = holds;
            writeln!(
                f,
                "{lock:<12} {reason:<8} {count:>9} {p50:>9} {p99:>9} {p999:>9} {:>9}  {max_tid}",
                time(*max_ns)
            )?;
        }
        if self.holds.len() > 24 {
            writeln!(f, "({} more that were held less: -O json has them)", self.holds.len() - 24)?;
        }
        let committed = self.memory.committed >> 20;
        writeln!(f, "grown      {} MiB live from {} threads in {:.2} s", self.mib, self.threads, self.seconds)?;
        writeln!(f, "           {} operations, {} growths, {committed} MiB committed", self.ops, self.grows)?;
        writeln!(f, "p99.9      grid {}, classes {}", time(self.grid_p999_ns), time(self.class_p999_ns))?;
        writeln!(f, "calls      {} took over {}, {} of them on a CPU", self.calls, time(LIMIT_NS), self.calls_on_cpu)?;
        self.beyond.iter().try_for_each(|held| writeln!(f, "beyond     {held}"))?;
        if let Some(Stops { cpu_seconds, count, longest_ns }) = self.machine {
            writeln!(
                f,
                "machine    a loop that holds nothing stopped {count} times beyond {} in {cpu_seconds:.1} s on a CPU, for {} at most",
                time(LIMIT_NS),
                time(longest_ns)
            )?;
        }
        let failures = self.failures();
        failures.iter().try_for_each(|failure| writeln!(f, "FAILED     {failure}"))?;
        f.write_str(if failures.is_empty() { "verdict    sound" } else { "verdict    NOT sound" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hg_probes::page::bucket;

    /// A report on holds of a lock, of which those beyond the limit were in calls that had a CPU for `cpu_ns`.
    fn report(lock: &str, list: &[u64], cpu_ns: &[u64]) -> Report {
        let mut holds = Holds { lock: lock.into(), reason: "grow", ..Holds::default() };
        for &ns in list {
            holds.count += 1;
            holds.buckets[bucket(ns)] += 1;
            holds.stalls += u64::from(ns >= LIMIT_NS);
            if ns > holds.max_ns {
                (holds.max_ns, holds.max_at_ns, holds.max_tid) = (ns, 5_000_000, 7);
            }
        }
        let long = list.iter().filter(|&&ns| ns >= LIMIT_NS).zip(cpu_ns);
        let held = |(&ns, &cpu_ns)| Held { lock: lock.into(), reason: "grow", ns, tid: 7, cpu_ns };
        let growth = Growth { mib: 1024, threads: 4, seed: 1 };
        let report = Report::new(&growth, 1.0, 1, vec![holds], Calls::default());
        let beyond: Vec<Held> = long.map(held).collect();
        Report { unknown: report.unknown - beyond.len() as u64, beyond, ..report }.with_arena(Memory::default(), 64)
    }

    #[test]
    fn short_holds_are_sound() {
        assert_eq!(report("grid", &[100; 5000], &[]).failures(), Vec::<String>::new());
    }

    #[test]
    fn a_percentile_beyond_the_limit_is_told_for_each_kind_of_lock() {
        let list = [vec![100; 500], vec![300_000; 5]].concat();
        let grid = report("grid", &list, &[10_000; 5]).failures();
        assert!(grid[0].starts_with("p99.9 of the holds of the grid's lock is 300.0µs"), "{grid:?}");
        let class = report("class 64", &list, &[10_000; 5]).failures();
        assert!(class[0].starts_with("p99.9 of the holds of the classes' locks is 300.0µs"), "{class:?}");
    }

    #[test]
    fn a_preempted_holder_is_no_failure_and_a_busy_one_is() {
        let list = [vec![100; 5000], vec![900_000]].concat();
        let preempted = report("grid", &list, &[30_000]);
        assert_eq!(preempted.failures(), Vec::<String>::new());
        let text = preempted.to_string();
        assert!(text.contains("had a CPU for 30.0µs in that call by then: preempted or stopped"), "{text}");
        assert_eq!(report("grid", &list, &[800_000]).failures().len(), 1);
    }

    #[test]
    fn each_long_hold_needs_an_explanation_of_its_own() {
        let list = [vec![100; 5000], vec![900_000, 400_000]].concat();
        assert_eq!(report("grid", &list, &[30_000, 90_000]).failures(), Vec::<String>::new());
        assert_eq!(report("grid", &list, &[30_000, 300_000]).failures().len(), 1);
        assert_eq!(report("grid", &list, &[30_000]).failures(), ["1 holds beyond 200.0µs in no call of the load"]);
    }

    #[test]
    fn a_busy_holder_is_no_failure_where_the_machine_stops_cpus_as_often() {
        let report = report("grid", &[vec![100; 5000], vec![900_000]].concat(), &[800_000]);
        let with = |count: u64, longest_ns: u64| {
            report.clone().with_machine(2.0, || Stops { cpu_seconds: 10.0, count, longest_ns })
        };
        assert_eq!(with(3, 700_000).failures(), Vec::<String>::new());
        assert!(
            with(3, 700_000)
                .to_string()
                .contains("stopped 3 times beyond 200.0µs in 10.0 s on a CPU, for 700.0µs at most")
        );
        assert_eq!(with(0, 0).failures().len(), 1, "a machine that never stops explains nothing");
        assert_eq!(with(3, 500_000).failures().len(), 1, "nor does one that stops for less");
        let list = [vec![100; 5000], vec![900_000; 3]].concat();
        let three = self::report("grid", &list, &[800_000; 3]);
        let seldom = three.with_machine(2.0, || Stops { cpu_seconds: 10.0, count: 3, longest_ns: 700_000 });
        assert_eq!(seldom.failures().len(), 3, "nor does one that stops more seldom");
    }

    #[test]
    fn an_arena_that_did_not_grow_proves_nothing() {
        let none = Report { grows: 0, ..report("grid", &[100], &[]) };
        assert_eq!(none.failures(), ["the arena did not grow"]);
    }
}
