//! `hg-stress double-free`: two processes free the same block at the same instant, again and again: one is to be believed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Instant;

use hg_alloc::shared::{self, Arena, Options};
use serde::Serialize;

use super::hunt;
use crate::counters::Corruptions;
use crate::rng::Rng;

/// One try in so many is with a large object.
const LARGE: usize = 16;

/// How often the other one is looked for before the CPU is left to it.
const SPINS: u32 = 20_000;

/// The outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Blocks freed twice.
    pub tries: u64,
    /// Of them, those of which exactly one free was accepted.
    pub one_accepted: u64,
    /// Of them, those whose two frees overlapped in time.
    pub overlapped: u64,
    /// What was not as it must be.
    pub failures: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { tries, one_accepted, overlapped, .. } = self;
        write!(f, "exactly one free accepted: {one_accepted} of {tries}, of which {overlapped} overlapped in time")?;
        self.failures.iter().try_for_each(|failure| write!(f, "\nFAILED: {failure}"))
    }
}

/// What the two share: cache lines of their own, in the arena.
#[repr(C)]
struct Ring {
    /// The block of this round, and the round, which starts it.
    block: AtomicU64,
    round: Line,
    /// The last round that each of the two is ready for, and the last that it is through.
    ready: [Line; 2],
    done: [Line; 2],
    /// When each began and ended its free, CLOCK_MONOTONIC, ns.
    began: [Line; 2],
    ended: [Line; 2],
}

#[repr(C, align(64))]
struct Line(AtomicU64);

/// Runs so many tries. An error: it could not begin.
pub fn run(tries: u64) -> Result<Report, String> {
    let arena = shared::create(&Options::shared("duel", 0, 64 << 20)).map_err(|error| error.label().to_string())?;
    let place = arena.aligned(64, size_of::<Ring>());
    if place.is_null() {
        return Err("no memory for the ring".into());
    }
    // SAFETY: the block is as large and aligned as that, is never freed, and zeros are a ring.
    let ring: &'static Ring = unsafe {
        place.write_bytes(0, size_of::<Ring>());
        &*place.cast()
    };
    super::watch();
    // Both count the time from here.
    now();
    // SAFETY: this process has one thread, so the child may do what it likes.
    let second = match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a system call without memory. The child dies with its parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            for round in 1.. {
                strike(arena, ring, 1, round);
            }
            unreachable!("rounds do not end");
        }
        pid if pid < 0 => return Err(std::io::Error::last_os_error().to_string()),
        pid => pid,
    };
    let mut report = Report { tries, ..Report::default() };
    let mut rng = Rng::new(1, 1);
    for round in 1..=tries {
        if round % 1000 == 1 {
            // SAFETY: the handler is installed.
            unsafe { libc::alarm(super::WATCHDOG) };
        }
        let size = if rng.one_in(LARGE) { 1 << 20 } else { rng.log_uniform(16, 4096) };
        let block = arena.malloc(size);
        if block.is_null() {
            report.failures.push(format!("no memory in round {round}"));
            break;
        }
        ring.block.store(block as u64, Relaxed);
        let before = Corruptions::now(arena.stats_page()).total();
        strike(arena, ring, 0, round);
        wait(&ring.done[1], round);
        let refused = Corruptions::now(arena.stats_page()).total() - before;
        report.one_accepted += u64::from(refused == 1);
        let time = |line: &Line| line.0.load(Relaxed);
        let overlapped = time(&ring.began[0]) < time(&ring.ended[1]) && time(&ring.began[1]) < time(&ring.ended[0]);
        report.overlapped += u64::from(overlapped);
    }
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
    hunt::end(second);
    arena.recover();
    arena.free(place);
    let audit = arena.audit();
    if (audit.live, audit.large, audit.wrong_counters, audit.wrong_entries) != (0, 0, 0, 0)
        || audit.cached != audit.entries
    {
        report.failures.push(format!("the audit is not exact: {audit:?}"));
    }
    if report.one_accepted != tries {
        report.failures.push(format!("{} blocks were not freed once", tries - report.one_accepted));
    }
    Ok(report)
}

/// Frees the block of a round, at the same moment as the other one.
fn strike(arena: &Arena, ring: &Ring, who: usize, round: u64) {
    ring.ready[who].0.store(round, Release);
    if who == 0 {
        wait(&ring.ready[1], round);
        ring.round.0.store(round, Release);
    } else {
        wait(&ring.round, round);
    }
    let block = ring.block.load(Relaxed) as *mut u8;
    // Whoever starts the round is ahead by the time that a cache line takes; each is ahead in half of the rounds.
    if who == 0 {
        (0..round % 64).for_each(|_| std::hint::spin_loop());
    }
    ring.began[who].0.store(now(), Relaxed);
    arena.free(block);
    ring.ended[who].0.store(now(), Relaxed);
    ring.done[who].0.store(round, Release);
}

fn wait(line: &Line, round: u64) {
    let mut spins = 0;
    while line.0.load(Acquire) < round {
        spins += 1;
        match spins % SPINS {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

fn now() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
