//! One run in threads mode: set-up, load, free-all, a wait for memory to come back, trim, verdict.
//!
//! The main thread conducts: it moves the phase on, replaces threads (churn), samples RSS, provokes the stalls, and maintains
//! the allocator; the fault threads run beside the workers. RSS is read while the workers stand still, with their stacks
//! and tables in place, so that start and end differ only in what the allocator keeps.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use hg_probes::page::StatsPage;
use hg_probes::words::CorruptionKind;

use crate::block::Torn;
use crate::config::{Config, Reserved};
use crate::counters::{self, Corruptions};
use crate::faults::{Fault, Faults};
use crate::maintain::Host;
use crate::report::{FaultCount, Report, RssReport};
use crate::rng::Rng;
use crate::rss::Rss;
use crate::stall::{self, Provoked};
use crate::worker::{Seat, Shared};

/// Steps between two looks at the phase.
const STEPS: u64 = 256;

/// Threads that inject faults.
const FAULT_THREADS: usize = 3;

/// Pause between two faults of one thread.
const FAULT_PAUSE: Duration = Duration::from_millis(2);

/// Period of the conductor.
const TICK: Duration = Duration::from_millis(5);

/// Phases, in their order.
mod phase {
    pub(super) const SETUP: u32 = 0;
    pub(super) const LOAD: u32 = 1;
    pub(super) const FREE: u32 = 2;
    pub(super) const END: u32 = 3;
}

/// What conductor and threads tell each other.
struct Stage {
    phase: AtomicU32,
    /// Threads that have done what the phase asks for.
    arrived: AtomicU32,
    ops: AtomicU64,
    retire: Vec<AtomicBool>,
    torn: Mutex<Vec<Torn>>,
}

impl Stage {
    fn is(&self, phase: u32) -> bool {
        self.phase.load(Acquire) == phase
    }

    fn torn(&self, torn: Torn) {
        self.torn.lock().unwrap_or_else(PoisonError::into_inner).push(torn);
        // The first torn stamp ends the load: what follows would only blur the evidence.
        let _ = self.phase.compare_exchange(phase::LOAD, phase::FREE, AcqRel, Acquire);
    }

    fn arrive(&self, phase: u32) {
        self.arrived.fetch_add(1, AcqRel);
        while self.is(phase) {
            std::thread::park_timeout(TICK);
        }
    }

    fn await_all(&self, threads: usize) {
        while self.arrived.load(Acquire) < threads as u32 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.arrived.store(0, Release);
    }
}

/// Lets all threads go when the conductor leaves, however it leaves.
struct End<'a>(&'a Stage);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.phase.store(phase::END, Release);
    }
}

/// Why a run could not start.
#[derive(Debug)]
pub enum Refused {
    /// The allocator has no stats page, so nothing can be checked against it.
    NoStatsPage,
    /// There are no size classes left for faults.
    NoFaults,
    /// The kernel gave no thread or no `/proc`.
    Kernel(std::io::Error),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::NoStatsPage => f.write_str("the allocator has no stats page (no memory, or no memfd)"),
            Refused::NoFaults => f.write_str("no size classes are left for faults beside these sizes"),
            Refused::Kernel(error) => write!(f, "the kernel refused a thread or /proc: {error}"),
        }
    }
}

impl std::error::Error for Refused {}

/// Runs the load of `config`.
pub fn threads(config: Config) -> Result<Report, Refused> {
    let page = hg_alloc::stats_page().ok_or(Refused::NoStatsPage)?;
    let rss = Rss::open().map_err(Refused::Kernel)?;
    let faults = config.faults.then(|| Faults::new(page, config.sizes).ok_or(Refused::NoFaults)).transpose()?;
    let shared = Shared::new(config, faults.as_ref().map_or_else(Reserved::default, Faults::reserved));
    let stage = Stage {
        phase: AtomicU32::new(phase::SETUP),
        arrived: AtomicU32::new(0),
        ops: AtomicU64::new(0),
        retire: (0..shared.config.threads).map(|_| AtomicBool::new(false)).collect(),
        torn: Mutex::new(Vec::with_capacity(shared.config.threads)),
    };
    let corruptions = Corruptions::now(page);
    let stalls = counters::stalls(page);
    let mut report = conduct(&stage, &shared, faults.as_ref(), page, &rss).map_err(Refused::Kernel)?;
    let refused = Corruptions::now(page).since(corruptions);
    report.faults.refused = by_label(|kind| refused.of(kind));
    report.stalls = counters::stalls(page) - stalls;
    report.failed = shared.failed.load(Relaxed);
    report.torn = stage.torn.into_inner().unwrap_or_else(PoisonError::into_inner).iter().map(Torn::to_string).collect();
    Ok(report)
}

fn by_label(count: impl Fn(CorruptionKind) -> u64) -> std::collections::BTreeMap<&'static str, u64> {
    CorruptionKind::ALL.iter().map(|&kind| (kind.label(), count(kind))).filter(|&(_, n)| n != 0).collect()
}

fn conduct(
    stage: &Stage,
    shared: &Shared,
    faults: Option<&Faults>,
    page: &'static StatsPage,
    rss: &Rss,
) -> std::io::Result<Report> {
    let config = &shared.config;
    std::thread::scope(|scope| {
        let _end = End(stage);
        let mut workers = Vec::with_capacity(config.threads);
        for index in 0..config.threads {
            workers.push(Some(spawn(scope, stage, shared, Seat::new(index, config))?));
        }
        let injectors = (0..if faults.is_some() { FAULT_THREADS } else { 0 })
            .filter_map(|n| faults.map(|faults| scope.spawn(move || inject(stage, faults, config.seed, n as u64))))
            .collect::<Vec<_>>();
        stage.await_all(config.threads);
        let mut memory = RssReport { start: rss.bytes(), ..RssReport::default() };

        let begin = Instant::now();
        stage.phase.store(phase::LOAD, Release);
        let ended = move || !stage.is(phase::LOAD) || begin.elapsed() >= Duration::from_secs(config.seconds);
        let stalling = config.stall_ms != 0;
        let staller = stalling.then(|| scope.spawn(move || provoke_stalls(page, config.stall_ms, ended)));
        let (mut replaced, mut host) = (0, Host::new());
        while !ended() {
            std::thread::sleep(TICK);
            host.tick();
            memory.peak = memory.peak.max(rss.bytes());
            let due = begin.elapsed().as_millis() as u64 * config.threads as u64 / config.churn_ms.max(1);
            while config.churn_ms != 0 && replaced < due && !ended() {
                let index = replaced as usize % config.threads;
                stage.retire[index].store(true, Release);
                if let Some(seat) = workers[index].take().and_then(|worker| worker.join().ok()) {
                    stage.retire[index].store(false, Release);
                    workers[index] = Some(spawn(scope, stage, shared, seat)?);
                }
                replaced += 1;
            }
        }
        let provoked = staller.and_then(|staller| staller.join().ok()).unwrap_or_default();
        let seconds = begin.elapsed().as_secs_f64();
        memory.peak = memory.peak.max(rss.bytes());
        stage.phase.store(phase::FREE, Release);
        let mut counted = FaultCount::default();
        for injector in injectors {
            injector.join().unwrap_or_default().add_to(&mut counted);
        }
        stage.await_all(config.threads);
        memory.after_free = rss.bytes();
        memory.peak = memory.peak.max(memory.after_free);
        await_return(&mut memory, page, rss, &mut host);
        hg_alloc::trim();
        memory.after_trim = rss.bytes();
        memory.tables = counters::Memory::now(page).tables;

        let ops = stage.ops.load(Acquire);
        Ok(Report {
            threads: config.threads,
            seconds,
            ops,
            ops_per_s: ops as f64 / seconds,
            threads_replaced: replaced,
            torn: Vec::new(),
            failed: 0,
            faults: counted,
            rss: memory,
            stalls: 0,
            stall_tries: provoked.tries,
            stall_wanted: stalling,
        })
    })
}

/// Waits, while the process idles, until memory is back within its limit, for the decay time and two seconds at most.
fn await_return(memory: &mut RssReport, page: &StatsPage, rss: &Rss, host: &mut Host) {
    let patience = counters::decay(page) + Duration::from_secs(2);
    let begin = Instant::now();
    memory.patience_ms = patience.as_millis() as u64;
    memory.settled = memory.after_free;
    while memory.settled > RssReport::limit(memory.start) && begin.elapsed() < patience {
        std::thread::sleep(TICK);
        host.tick();
        memory.settled = rss.bytes();
    }
    let back = memory.settled <= RssReport::limit(memory.start);
    memory.back_ms = back.then(|| begin.elapsed().as_millis() as u64);
}

/// Touches as much of the stack as a worker uses under load: what RSS gains there is not the allocator's.
#[inline(never)]
fn touch_stack() {
    std::hint::black_box(&mut [0u8; 48 << 10]);
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    stage: &'scope Stage,
    shared: &'scope Shared,
    mut seat: Seat,
) -> std::io::Result<ScopedJoinHandle<'scope, Seat>> {
    Builder::new().name("worker".into()).spawn_scoped(scope, move || {
        if stage.is(phase::SETUP) {
            touch_stack();
            stage.arrive(phase::SETUP);
        }
        while stage.is(phase::LOAD) {
            if stage.retire[seat.index()].load(Acquire) {
                return seat;
            }
            let steps = (0..STEPS).try_fold(0, |ops, _| seat.step(shared).map(|n| ops + n));
            steps.map_or_else(|torn| stage.torn(torn), |ops| _ = stage.ops.fetch_add(ops, Relaxed));
        }
        if let Err(torn) = seat.free_all(shared) {
            stage.torn(torn);
        }
        stage.arrive(phase::FREE);
        seat
    })
}

/// What one fault thread did.
#[derive(Default)]
struct Injected {
    faults: Vec<(Fault, u64)>,
    unanswered: Vec<String>,
}

impl Injected {
    fn add_to(self, count: &mut FaultCount) {
        for (fault, number) in self.faults.into_iter().filter(|&(_, number)| number != 0) {
            *count.injected.entry(fault.expected().label()).or_default() += number;
        }
        count.unanswered.extend(self.unanswered);
    }
}

fn inject(stage: &Stage, faults: &Faults, seed: u64, number: u64) -> Injected {
    let mut rng = Rng::new(seed, 1000 + number);
    let mut injected = Injected { faults: Fault::ALL.map(|fault| (fault, 0)).into(), unanswered: Vec::new() };
    while stage.is(phase::SETUP) {
        std::thread::sleep(TICK);
    }
    while stage.is(phase::LOAD) && injected.unanswered.is_empty() {
        let (fault, count) = &mut injected.faults[rng.below(Fault::ALL.len())];
        *count += 1;
        if let Err(unanswered) = faults.inject(*fault, &mut rng) {
            injected.unanswered.push(unanswered.to_string());
        }
        std::thread::sleep(FAULT_PAUSE);
    }
    injected
}

/// Provokes a stall at once, and another about every two seconds.
fn provoke_stalls(page: &StatsPage, ms: u64, ended: impl Fn() -> bool) -> Provoked {
    let mut all = Provoked::default();
    while !ended() {
        let one = stall::provoke(page, ms, &ended);
        all.tries += one.tries;
        all.stalls += one.stalls;
        let begin = Instant::now();
        while !ended() && begin.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(TICK);
        }
    }
    all
}
