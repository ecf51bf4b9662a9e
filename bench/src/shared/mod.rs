//! `hg-bench shared`: many processes on one arena, beside a mutex and boundary tags.
//!
//! | module | what |
//! |---|---|
//! | [`load`] | what the processes do and count |
//! | [`tags`] | the baseline |
//! | [`idle`] | what caches keep while processes idle |

pub(crate) mod idle;
pub(crate) mod load;
pub(crate) mod tags;

use std::fmt;
use std::time::Duration;

use hg_alloc::shared::{self, Options};
use serde::Serialize;

use load::{Free, Heap, Measured};
use tags::Tags;

/// Numbers of processes that are compared: throughput of the last with that of the second.
const PROCESSES: [usize; 4] = [1, 2, 8, 32];

/// The bounds that a check asks for.
const PAIR_NS: f64 = 12.0;
const KEPT: f64 = 0.9;

/// Processes that idle: few and many.
const IDLE: [usize; 2] = [2, 54];

/// Bytes of the arena and of the baseline's memory.
const CAP: usize = 256 << 20;

/// Malloc and free pairs on memory that processes share.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Shared {
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Length of one measurement, ms.
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) time: u64,
    /// Exit with status 1 unless a pair is fast enough, and as fast with many processes.
    #[arg(long)]
    pub(crate) check: bool,
}

/// One line of the table: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    allocator: &'static str,
    free: &'static str,
    processes: usize,
    /// CPU time of a pair, ns: the median, and the least, which another load on the machine touches least.
    pair_ns: f64,
    least_ns: f64,
    /// Pairs in a second on the clock, of all processes, in millions.
    throughput: f64,
}

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Result {
    rounds: u32,
    rows: Vec<Row>,
    /// Bytes that caches keep, and with how many idle processes.
    idle: Vec<(usize, u64)>,
}

impl Shared {
    pub(crate) fn run(&self) -> std::result::Result<Result, String> {
        let arena =
            shared::create(&Options::shared("bench", 0, CAP as u64)).map_err(|error| error.label().to_string())?;
        let heaps = [("hg", Heap::Hg(arena)), ("mutex and tags", Heap::Tags(Tags::new(CAP).ok_or("no memory")?))];
        let mut cases = Vec::new();
        for (free, name) in [(Free::Own, "own"), (Free::Cross, "cross"), (Free::Many, "own, 256 at a time")] {
            for (allocator, heap) in heaps {
                cases.extend(PROCESSES.map(|processes| (allocator, heap, free, name, processes)));
            }
        }
        let mut figures: Vec<Vec<Measured>> = vec![Vec::new(); cases.len()];
        for round in 0..self.rounds as usize {
            // The order turns from round to round, so that none always runs behind the same other.
            for index in (0..cases.len()).map(|k| (k + round) % cases.len()) {
                let (_, heap, free, _, processes) = cases[index];
                figures[index].push(load::run(heap, free, processes, Duration::from_millis(self.time))?);
            }
        }
        let rows = cases.iter().zip(&figures).map(|((allocator, _, _, free, processes), figures)| Row {
            allocator,
            free,
            processes: *processes,
            pair_ns: sorted(figures, pair_ns)[figures.len() / 2],
            least_ns: sorted(figures, pair_ns)[0],
            throughput: sorted(figures, |m| m.pairs as f64 * 1e3 / m.wall_ns as f64)[figures.len() / 2],
        });
        let rows = rows.collect();
        let idle = IDLE.iter().map(|count| Ok((*count, idle::cached_bytes(*count)?)));
        Ok(Result { rounds: self.rounds, rows, idle: idle.collect::<std::result::Result<_, String>>()? })
    }
}

fn pair_ns(measured: &Measured) -> f64 {
    measured.cpu_ns as f64 / measured.pairs as f64
}

fn sorted(figures: &[Measured], of: impl Fn(&Measured) -> f64) -> Vec<f64> {
    let mut sorted: Vec<f64> = figures.iter().map(of).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

impl Result {
    /// What is slower, or more, than it may be.
    pub(crate) fn failures(&self) -> Vec<String> {
        let row = |free: &str, processes: usize| {
            self.rows.iter().find(|row| row.allocator == "hg" && row.free == free && row.processes == processes)
        };
        let mut failures = Vec::new();
        if let Some(row) = row("own", 1).filter(|row| row.least_ns > PAIR_NS) {
            failures.push(format!("a pair takes {:.1} ns, of {PAIR_NS} allowed", row.least_ns));
        }
        // Of CPU time, so that another load on the machine does not matter.
        if let (Some(few), Some(many)) = (row("own", 2), row("own", 32))
            && few.least_ns / many.least_ns < KEPT
        {
            failures
                .push(format!("a pair takes {:.1} ns with 2 processes, {:.1} with 32", few.least_ns, many.least_ns));
        }
        if let [(few, few_bytes), (many, many_bytes)] = self.idle.as_slice()
            && many_bytes > few_bytes
        {
            failures.push(format!("caches keep {few_bytes} bytes with {few} processes, {many_bytes} with {many}"));
        }
        failures
    }
}

impl fmt::Display for Result {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n### One arena, many processes: a malloc and a free of {} bytes, {} rounds\n",
            load::BLOCK,
            self.rounds
        )?;
        writeln!(f, "| allocator | frees | processes | CPU ns a pair | least | million pairs a second |")?;
        writeln!(f, "|---|---|---:|---:|---:|---:|")?;
        for Row { allocator, free, processes, pair_ns, least_ns, throughput } in &self.rows {
            writeln!(f, "| {allocator} | {free} | {processes} | {pair_ns:.1} | {least_ns:.1} | {throughput:.1} |")?;
        }
        writeln!(f)?;
        for (processes, bytes) in &self.idle {
            writeln!(f, "{processes} idle processes: {} KiB in caches", bytes >> 10)?;
        }
        Ok(())
    }
}
