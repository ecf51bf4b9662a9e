//! What a growth run measured, and the verdict on it. Field names are a contract.

use std::fmt;

use serde::Serialize;

use super::Growth;
use super::calls::{Call, Cause, cause};
use super::locks::Holds;
use crate::counters::Memory;

/// The longest that a lock may be held, ns.
pub const LIMIT_NS: u64 = 200_000;

/// A hold beyond the limit.
#[derive(Clone, Debug, Serialize)]
pub struct Beyond {
    /// The lock and the reason.
    pub lock: String,
    /// Why it was taken.
    pub reason: &'static str,
    /// How many holds may have been that long, by the buckets.
    pub count: u64,
    /// The longest of them, ns.
    pub max_ns: u64,
    /// Its thread.
    pub max_tid: u32,
    /// Time that the call around it had a CPU, ns; absent if no call is known.
    pub cpu_ns: Option<u64>,
    /// Whether each of them is known to be its holder's time off the CPU.
    pub explained: bool,
}

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
    /// Growths of the arena meanwhile.
    pub grows: u64,
    /// The arena at the end.
    pub memory: Memory,
    /// The stall threshold, µs: longer holds are stalls for hg-top too.
    pub stall_us: u64,
    /// Calls that took longer than the limit on the wall, and of them those that had a CPU for longer than that.
    pub calls: usize,
    /// See `calls`.
    pub calls_on_cpu: usize,
    /// 99.9th percentile of the holds of the grid's lock, at most, ns.
    pub grid_p999_ns: u64,
    /// The same for the locks of all classes.
    pub class_p999_ns: u64,
    /// Holds beyond the limit.
    pub beyond: Vec<Beyond>,
    /// All locks and reasons, the longest holds first.
    pub holds: Vec<Holds>,
}

impl Report {
    /// Sums up a run.
    pub fn new(growth: &Growth, seconds: f64, ops: u64, holds: Vec<Holds>, calls: Vec<Call>) -> Report {
        let p999 = |grid: bool| Holds::sum(holds.iter().filter(|holds| (holds.lock == "grid") == grid)).quantile(0.999);
        let calls_on_cpu = calls.iter().filter(|call| call.cpu_ns > LIMIT_NS).count();
        let beyond = holds
            .iter()
            .filter(|holds| holds.beyond(LIMIT_NS) > 0)
            .map(|holds| Beyond::of(holds, &calls, calls_on_cpu));
        Report {
            mib: growth.mib,
            threads: growth.threads,
            seconds,
            ops,
            grows: 0,
            memory: Memory::default(),
            stall_us: 0,
            calls: calls.len(),
            calls_on_cpu,
            grid_p999_ns: p999(true),
            class_p999_ns: p999(false),
            beyond: beyond.collect(),
            holds,
        }
    }

    /// Adds what the arena says of itself.
    pub fn with_arena(self, memory: Memory, grows: u64, stall_us: u64) -> Report {
        Report { memory, grows, stall_us, ..self }
    }

    /// What is wrong with this run, in words; empty if nothing is.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (what, ns) in [("the grid's lock", self.grid_p999_ns), ("the classes' locks", self.class_p999_ns)] {
            if ns >= LIMIT_NS {
                failures.push(format!("p99.9 of the holds of {what} is {}, not under {}", time(ns), time(LIMIT_NS)));
            }
        }
        let unexplained = self.beyond.iter().filter(|beyond| !beyond.explained);
        failures.extend(unexplained.map(|beyond| format!("a hold may have been too long: {beyond}")));
        if self.grows == 0 {
            failures.push("the arena did not grow".into());
        }
        failures
    }
}

impl Beyond {
    fn of(holds: &Holds, calls: &[Call], calls_on_cpu: usize) -> Beyond {
        let cause = cause(calls, holds.max_tid, holds.max_at_ns, LIMIT_NS);
        let count = holds.beyond(LIMIT_NS);
        // If no call at all had a CPU for that long, no hold had. Else only the longest is known.
        let explained = calls_on_cpu == 0 && cause != Cause::Unknown || count == 1 && matches!(cause, Cause::OffCpu(_));
        let cpu_ns = match cause {
            Cause::OffCpu(ns) | Cause::Busy(ns) => Some(ns),
            Cause::Unknown => None,
        };
        let Holds { lock, reason, max_ns, max_tid, .. } = holds;
        Beyond { lock: lock.clone(), reason, count, max_ns: *max_ns, max_tid: *max_tid, cpu_ns, explained }
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..1000 => format!("{ns}ns"),
        1000..1_000_000 => format!("{:.1}µs", ns as f64 / 1e3),
        _ => format!("{:.1}ms", ns as f64 / 1e6),
    }
}

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beyond { lock, reason, count, max_ns, max_tid, cpu_ns, explained } = self;
        let plural = if *count == 1 { "hold" } else { "holds" };
        write!(f, "{lock} for {reason}: {count} {plural}, the longest {} by thread {max_tid}", time(*max_ns))?;
        match (cpu_ns, explained) {
            (Some(ns), true) => write!(f, ", which had a CPU for {} in that call: preempted or stopped", time(*ns)),
            (Some(ns), false) => write!(f, ", which had a CPU for {} in that call", time(*ns)),
            (None, _) => f.write_str(", in no call that is known"),
        }
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
        self.beyond.iter().try_for_each(|beyond| writeln!(f, "beyond     {beyond}"))?;
        let failures = self.failures();
        failures.iter().try_for_each(|failure| writeln!(f, "FAILED     {failure}"))?;
        f.write_str(if failures.is_empty() { "verdict    sound" } else { "verdict    NOT sound" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hg_probes::page::bucket;

    fn report(lock: &str, list: &[u64], calls: &[Call]) -> Report {
        let mut holds = Holds { lock: lock.into(), reason: "grow", ..Holds::default() };
        for &ns in list {
            holds.count += 1;
            holds.buckets[bucket(ns)] += 1;
            if ns > holds.max_ns {
                (holds.max_ns, holds.max_at_ns, holds.max_tid) = (ns, 5_000_000, 7);
            }
        }
        let growth = Growth { mib: 1024, threads: 4, seed: 1 };
        Report::new(&growth, 1.0, 1, vec![holds], calls.to_vec()).with_arena(Memory::default(), 64, 1000)
    }

    fn call(cpu_ns: u64) -> Call {
        Call { tid: 7, from_ns: 4_000_000, to_ns: 5_100_000, cpu_ns }
    }

    #[test]
    fn short_holds_are_sound() {
        assert_eq!(report("grid", &[100; 5000], &[]).failures(), Vec::<String>::new());
    }

    #[test]
    fn a_percentile_beyond_the_limit_is_told_for_each_kind_of_lock() {
        let list = [vec![100; 500], vec![300_000; 5]].concat();
        let grid = report("grid", &list, &[call(10_000)]).failures();
        assert!(grid[0].starts_with("p99.9 of the holds of the grid's lock is 300.0µs"), "{grid:?}");
        let class = report("class 64", &list, &[call(10_000)]).failures();
        assert!(class[0].starts_with("p99.9 of the holds of the classes' locks is 300.0µs"), "{class:?}");
    }

    #[test]
    fn a_preempted_holder_is_no_failure_and_a_busy_one_is() {
        let list = [vec![100; 5000], vec![900_000]].concat();
        let preempted = report("grid", &list, &[call(30_000)]);
        assert_eq!(preempted.failures(), Vec::<String>::new());
        assert!(
            preempted.to_string().contains("had a CPU for 30.0µs in that call: preempted or stopped"),
            "{preempted}"
        );
        assert_eq!(report("grid", &list, &[call(800_000)]).failures().len(), 1);
        assert_eq!(report("grid", &list, &[]).failures().len(), 1);
    }

    #[test]
    fn several_long_holds_are_explained_only_if_no_call_was_long_on_a_cpu() {
        let list = [vec![100; 5000], vec![900_000, 400_000]].concat();
        assert_eq!(report("grid", &list, &[call(30_000)]).failures(), Vec::<String>::new());
        let other = Call { tid: 8, from_ns: 9_000_000, to_ns: 9_900_000, cpu_ns: 700_000 };
        assert_eq!(report("grid", &list, &[call(30_000), other]).failures().len(), 1);
    }

    #[test]
    fn an_arena_that_did_not_grow_proves_nothing() {
        let none = Report { grows: 0, ..report("grid", &[100], &[]) };
        assert_eq!(none.failures(), ["the arena did not grow"]);
    }
}
