//! What the machine does to a loop that holds nothing: how often a CPU stops for long in the middle of it, and the kernel counts the
//! time as the thread's own. A hypervisor that finds memory for the guest or serves its devices does that, and so do interrupts.
//! A long hold is no fault of the allocator's where that happens as often.

use std::sync::Barrier;
use std::thread;

use serde::Serialize;

use super::calls::now_ns;

/// Stops of all CPUs, while each ran such a loop.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Stops {
    /// CPU time of all loops.
    pub cpu_seconds: f64,
    /// Stops beyond the limit.
    pub count: u64,
    /// The longest stop, ns.
    pub longest_ns: u64,
}

impl Stops {
    /// Runs a loop on each CPU for so many ns.
    pub fn watch(limit_ns: u64, span_ns: u64) -> Stops {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let start = Barrier::new(cpus);
        let watch = || {
            start.wait();
            watch_one(limit_ns, span_ns)
        };
        thread::scope(|scope| {
            let loops: Vec<_> = (0..cpus).map(|_| scope.spawn(watch)).collect();
            loops.into_iter().filter_map(|one| one.join().ok()).fold(Stops::default(), Stops::with)
        })
    }

    fn with(self, other: Stops) -> Stops {
        Stops {
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            count: self.count + other.count,
            longest_ns: self.longest_ns.max(other.longest_ns),
        }
    }

    /// Stops that are to be expected in so many seconds of CPU time, rounded up.
    pub fn expected(&self, cpu_seconds: f64) -> u64 {
        if self.count == 0 { 0 } else { (self.count as f64 / self.cpu_seconds * cpu_seconds).ceil() as u64 }
    }
}

fn watch_one(limit_ns: u64, span_ns: u64) -> Stops {
    let cpu = || now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    let (end_ns, first) = (now_ns(libc::CLOCK_MONOTONIC) + span_ns, cpu());
    let (mut stops, mut before) = (Stops::default(), first);
    while now_ns(libc::CLOCK_MONOTONIC) < end_ns {
        let now = cpu();
        stops.longest_ns = stops.longest_ns.max(now - before);
        stops.count += u64::from(now - before > limit_ns);
        before = now;
    }
    Stops { cpu_seconds: (before - first) as f64 / 1e9, ..stops }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_watched_on_each_cpu() {
        let stops = Stops::watch(u64::MAX, 50_000_000);
        assert!(stops.count == 0 && stops.longest_ns > 0 && stops.cpu_seconds > 0.0, "{stops:?}");
        assert!(Stops::watch(0, 10_000_000).count > 10, "each turn takes some time");
    }

    #[test]
    fn stops_are_expected_as_often_as_they_were_seen() {
        let stops = Stops { cpu_seconds: 10.0, count: 5, longest_ns: 300_000 };
        assert_eq!((stops.expected(1.0), stops.expected(4.0)), (1, 2));
        assert_eq!(Stops { count: 0, ..stops }.expected(100.0), 0);
    }
}
