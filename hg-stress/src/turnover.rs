//! Turnover: owners come and go, others free what they leave, and every span must go back, quickly.
//!
//! A generation is a thread that takes 64 times 64 KiB in blocks of 64 bytes and then waits. The main thread frees them, one
//! 64 KiB after the other. Then the clock starts: the owner ends and is joined, and the allocator is told to give back what is
//! free ([`hg_alloc::trim`]). When the clock stops every span of the class must be gone from it and no memory in limbo.
//!
//! The blocks are chained through their own first word, so that no table adds to resident memory. After the first
//! generation spans are recycled ones. It runs in a process that does nothing else, and that lets go of its pages of program
//! text before each generation: they are the page cache's and no business of the allocator. What runs comes back and counts.

use std::alloc::{GlobalAlloc, Layout};
use std::fmt;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hg_probes::page::{ClassStats, StatsPage};
use serde::{Deserialize, Serialize};

use crate::HEAP;
use crate::counters::Memory;
use crate::rss::{self, Rss};

/// The blocks.
const BLOCK: Layout = Layout::new::<[u64; 8]>();

/// Bytes that are freed in one go.
const RUN_BYTES: usize = 64 << 10;

/// Such runs of a generation.
const RUNS: usize = 64;

/// What the machine may take of a retirement, ns: more tells of other programs and not of the allocator.
const DELAY_NS: u64 = 50_000;

/// How many generations may be done again, for each that is asked for.
const REPEATS: u32 = 16;

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
    /// What ending, joining and giving back took, ns.
    pub retire_ns: u64,
    /// How long the two threads were ready meanwhile but had no CPU, by the kernel's count, ns.
    pub delay_ns: u64,
    /// Bytes in limbo afterwards.
    pub limbo: u64,
}

/// The outcome. Field names are a contract.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Spans of the class before the first generation.
    pub spans_before: u64,
    /// Resident bytes then.
    pub start_rss: u64,
    /// The most that ever were, by the kernel's high-water mark.
    pub peak_rss: u64,
    /// Resident bytes at the end.
    pub post_rss: u64,
    /// Generations that were done again because the machine kept a thread off its CPUs while the clock ran.
    pub repeated: u32,
    /// The generations.
    pub generations: Vec<Generation>,
}

/// First word of the command line of the process that only does this.
const CHILD: &str = "__turnover";

/// The process's own program again, to run so many generations and print the report as JSON.
///
/// # Errors
/// In words: the program could not be run, or refused.
pub fn apart(generations: u32) -> Result<Report, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let child = std::process::Command::new(exe).args([CHILD, &generations.to_string()]).output();
    let child = child.map_err(|error| error.to_string())?;
    serde_json::from_slice(&child.stdout).map_err(|_| String::from_utf8_lossy(&child.stderr).trim().to_string())
}

/// Does what [`apart`] asks for if this process was started by it.
pub fn child() -> Option<std::process::ExitCode> {
    let mut words = std::env::args().skip(1);
    if words.next()? != CHILD {
        return None;
    }
    let report = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| "no number".to_string()).and_then(run);
    match report.and_then(|report| serde_json::to_string(&report).map_err(|error| error.to_string())) {
        Ok(json) => println!("{json}"),
        Err(refused) => eprintln!("{refused}"),
    }
    Some(std::process::ExitCode::SUCCESS)
}

/// Runs so many generations in this process.
///
/// # Errors
/// In words: no stats page, no `/proc`, no memory.
pub fn run(generations: u32) -> Result<Report, String> {
    let page = hg_alloc::stats_page().ok_or("the allocator has no stats page (no memory, or no memfd)")?;
    let class = class(page).ok_or("the allocator has no class for 64 bytes")?;
    let rss = Rss::open().map_err(|error| format!("/proc/self/statm: {error}"))?;
    let mut report = Report { generations: Vec::with_capacity(generations as usize), ..Report::default() };
    // A block that lives throughout: what the program itself takes of this class lies with it in a span that counts as there
    // before.
    let anchor = std::hint::black_box(Box::new([0u64; 8]));
    hg_alloc::trim();
    (report.spans_before, report.start_rss) = (class.spans.load(Relaxed), rss.bytes());
    while report.generations.len() < generations as usize {
        let generation = generation(page, class, &rss)?;
        let patient = report.repeated < REPEATS * generations;
        if generation.delay_ns > DELAY_NS && patient && generation.spans_left <= report.spans_before {
            report.repeated += 1;
        } else {
            report.generations.push(generation);
        }
    }
    report.post_rss = rss.bytes();
    drop(anchor);
    report.peak_rss = rss::peak().map_err(|error| format!("/proc/self/status: {error}"))?;
    Ok(report)
}

/// The first block of a chain, as a number: the blocks change hands.
struct Chain(usize);

fn generation(page: &StatsPage, class: &ClassStats, rss: &Rss) -> Result<Generation, String> {
    let [begin, taken, retire] = [(); 3].map(|()| Barrier::new(2));
    std::thread::scope(|scope| {
        let mut heads = [const { Chain(0) }; RUNS];
        let (send, receive) = std::sync::mpsc::sync_channel(RUNS);
        let owner = scope.spawn({
            let (begin, taken, retire) = (&begin, &taken, &retire);
            move || {
                begin.wait();
                (0..RUNS).for_each(|_| _ = send.send(Chain(take_run())));
                taken.wait();
                let delay = run_delay();
                retire.wait();
                run_delay() - delay
            }
        });
        let unmapped = rss::unmap_text();
        begin.wait();
        heads.iter_mut().for_each(|head| *head = receive.recv().unwrap_or(Chain(0)));
        taken.wait();
        let mut generation =
            Generation { spans: class.spans.load(Relaxed), live_rss: rss.bytes(), ..Generation::default() };
        let complete = heads.iter().all(|head| head.0 != 0);
        heads.iter().for_each(|head| free_run(head.0));
        let delay = run_delay();
        let begin = Instant::now();
        retire.wait();
        let joined = owner.join();
        hg_alloc::trim();
        generation.retire_ns = begin.elapsed().as_nanos() as u64;
        generation.delay_ns = run_delay() - delay + joined.as_ref().unwrap_or(&0);
        generation.spans_left = class.spans.load(Relaxed);
        generation.limbo = Memory::now(page).limbo;
        // Told only now: the owner must not be left waiting.
        unmapped.map_err(|error| format!("/proc/self/maps: {error}"))?;
        if complete && joined.is_ok() { Ok(generation) } else { Err("no memory for a generation".into()) }
    })
}

/// How long this thread was ready but had no CPU, ns; 0 where the kernel does not tell.
fn run_delay() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Takes a run of blocks, chained; returns the address of the first, or 0 if there is no memory for one.
fn take_run() -> usize {
    let mut head = 0;
    for _ in 0..RUN_BYTES / BLOCK.size() {
        // SAFETY: the layout has a size.
        let block = unsafe { HEAP.alloc(BLOCK) }.cast::<usize>();
        if block.is_null() {
            free_run(head);
            return 0;
        }
        // SAFETY: the block is fresh, aligned and owned; its first word holds the address of the one before.
        unsafe { block.write(head) };
        head = block as usize;
    }
    head
}

fn free_run(mut head: usize) {
    while head != 0 {
        let block = head as *mut usize;
        // SAFETY: a block of a chain is live and holds the next one's address; the chain was handed over and is freed once.
        unsafe {
            head = block.read();
            HEAP.dealloc(block.cast(), BLOCK);
        }
    }
}

fn class(page: &'static StatsPage) -> Option<&'static ClassStats> {
    page.classes.iter().find(|class| class.size.load(Relaxed) as usize == BLOCK.size())
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
        if self.p99().as_nanos() as u64 >= P99_NS {
            failures.push(format!("retirement took {:?} at p99, not under 1 ms", self.p99()));
        }
        for (what, bytes, limit) in [("peak", self.peak_rss, PEAK_BYTES), ("post", self.post_rss, POST_BYTES)] {
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
        let (start, peak, post) = (mib(self.start_rss), mib(self.peak_rss), mib(self.post_rss));
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
            peak_rss: PEAK_BYTES,
            post_rss: POST_BYTES,
            repeated: 0,
            generations: vec![
                Generation {
                    spans: 130,
                    spans_left: 2,
                    live_rss: PEAK_BYTES,
                    retire_ns: P99_NS - 1,
                    delay_ns: 0,
                    limbo: 0
                };
                8
            ],
        };
        assert_eq!(sound().failures(), Vec::<String>::new());
        let defects: [fn(&mut Report); 5] = [
            |r| r.generations[3].spans_left = 3,
            |r| r.generations[7].limbo = 1,
            |r| r.generations[0].retire_ns = P99_NS,
            |r| r.peak_rss += 1,
            |r| r.post_rss += 1,
        ];
        for (index, defect) in defects.iter().enumerate() {
            let mut report = sound();
            defect(&mut report);
            assert_eq!(report.failures().len(), 1, "defect {index}");
        }
    }

    #[test]
    fn generations_use_spans_and_give_them_back() {
        let report = run(2).expect("memory");
        assert!(report.generations.iter().all(|g| g.spans >= report.spans_before + 64), "{report}");
        assert!(report.generations.iter().all(|g| g.retire_ns > 0 && g.live_rss > 4 << 20), "{report}");
    }
}
