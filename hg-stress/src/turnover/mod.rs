//! Turnover: owners come and go, others free what they leave, and every span must go back, quickly.
//!
//! A generation is a thread that takes 64 times 64 KiB in blocks of 64 bytes and then waits. The main thread frees them, one
//! 64 KiB after the other. Then the clock starts: the owner ends and is joined, and the allocator is told to give back what is
//! free ([`hg_alloc::trim`]). When the clock stops every span of the class must be gone from it and no memory in limbo.
//!
//! The blocks are chained through their own first word, so that no table adds to resident memory. After the first
//! generation spans are recycled ones. It runs in a process that does nothing else, and that lets go of its pages of program
//! text before blocks are taken and before they are freed: they are the page cache's and no business of the allocator. What runs comes back and counts.

pub mod report;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use hg_probes::page::{ClassStats, StatsPage};

use crate::HEAP;
use crate::counters::Memory;
use crate::growth::calls::now_ns;
use crate::growth::machine::Stops;
use crate::rss::{self, Rss};
use report::{Generation, Report};

/// The blocks.
const BLOCK: Layout = Layout::new::<[u64; 8]>();

/// Bytes that are freed in one go.
const RUN_BYTES: usize = 64 << 10;

/// Such runs of a generation.
const RUNS: usize = 64;

/// What the machine may take of a retirement, ns: time in which neither thread had a CPU, though one of them has work all the
/// time. More tells of other programs and not of the allocator.
const DELAY_NS: u64 = 200_000;

/// How many generations may be done again, for each that is asked for.
const REPEATS: u32 = 16;

/// First word of the command line of the process that only does this.
const CHILD: &str = "__turnover";

/// Runs at most, where one was late and the machine stops its CPUs now and then.
const RUNS_WHILE_STOPPED: u32 = 4;

/// Stops of a loop that holds nothing which count as that, and how long one is watched, ns.
const STOP_NS: u64 = 100_000;
const WATCH_NS: u64 = 2_000_000_000;

/// As [`apart`]; where retirement was late, and the machine stops a loop that does nothing, all of it is done again. What else is
/// wrong with a run stands.
///
/// # Errors
/// Those of [`apart`].
pub fn patient(generations: u32) -> Result<Report, String> {
    let mut report = apart(generations)?;
    for _ in 1..RUNS_WHILE_STOPPED {
        if !report.is_late() || report.failures().len() > 1 || Stops::watch(STOP_NS, WATCH_NS).count == 0 {
            break;
        }
        eprintln!("hg-stress turnover: late, and the machine stops its CPUs: once more");
        report = apart(generations)?;
    }
    Ok(report)
}

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
        if generation.retire_ns.saturating_sub(generation.cpu_ns) > DELAY_NS
            && patient
            && generation.spans_left <= report.spans_before
        {
            report.repeated += 1;
        } else {
            report.generations.push(generation);
        }
    }
    report.post_rss = rss.bytes();
    drop(anchor);
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
                retire.wait();
            }
        });
        let unmapped = rss::unmap_text();
        begin.wait();
        heads.iter_mut().for_each(|head| *head = receive.recv().unwrap_or(Chain(0)));
        taken.wait();
        let mut generation =
            Generation { spans: class.spans.load(Relaxed), live_rss: rss.bytes(), ..Generation::default() };
        let complete = heads.iter().all(|head| head.0 != 0);
        let unmapped = unmapped.and_then(|()| rss::unmap_text());
        heads.iter().for_each(|head| free_run(head.0));
        generation.freed_rss = rss.bytes();
        let cpu = now_ns(libc::CLOCK_PROCESS_CPUTIME_ID);
        let begin = Instant::now();
        retire.wait();
        let joined = owner.join();
        hg_alloc::trim();
        generation.retire_ns = begin.elapsed().as_nanos() as u64;
        generation.cpu_ns = now_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu;
        generation.spans_left = class.spans.load(Relaxed);
        generation.limbo = Memory::now(page).limbo;
        // Told only now: the owner must not be left waiting.
        unmapped.map_err(|error| format!("/proc/self/maps: {error}"))?;
        if complete && joined.is_ok() { Ok(generation) } else { Err("no memory for a generation".into()) }
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_use_spans_and_give_them_back() {
        let report = run(2).expect("memory");
        assert!(report.generations.iter().all(|g| g.spans >= report.spans_before + 64), "{report}");
        assert!(report.generations.iter().all(|g| g.retire_ns > 0 && g.live_rss > 4 << 20), "{report}");
    }
}
