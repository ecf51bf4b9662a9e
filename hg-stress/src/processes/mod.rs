//! `hg-stress processes`: many processes on one shared arena, which are killed at random instants.
//!
//! | module | what |
//! |---|---|
//! | [`board`] | what they share beside the arena: slots with their blocks, and counts |
//! | [`worker`] | what each does |
//! | [`hunt`] | kills, and where they land |
//! | [`census`] | quiet moments: is everything where it must be? |
//! | [`report`] | the outcome |
//! | [`duel`] | two processes free one block at once |
//!
//! The parent is a process of the arena too: it recovers what the dead left, as a server's own parent would, and so do the
//! workers that get a dead owner's lock.

pub(crate) mod board;
pub(crate) mod census;
pub mod duel;
pub(crate) mod hunt;
pub mod report;
pub(crate) mod worker;

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Instant;

use hg_alloc::shared::{self, Arena, Options};

use crate::counters;
use crate::rng::Rng;
use board::{Board, WORKERS, at, tide};
use report::Report;
use worker::Worker;

/// Kills between two censuses.
const KILLS_A_CENSUS: u64 = 500;

/// Kills of one tide: the load grows as long, then it shrinks.
const KILLS_A_TIDE: u64 = 6;

/// The cap: what the workers would like to have is more, so that there is no memory now and then.
const CAP: u64 = 128 << 20;

/// A run in which nothing happens for so long is stuck, s.
const WATCHDOG: u32 = 60;

/// Kills of processes on one arena.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(skip)]
pub struct Processes {
    /// Processes at a time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=WORKERS as i64))]
    pub workers: u32,
    /// Processes to kill, one after the other; each is replaced.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub kills: u64,
    /// Bad frees, which must be refused, as well.
    #[arg(long)]
    pub faults: bool,
    /// Seed of all random choices; what the processes make of them depends on the machine's mood.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Processes {
    /// Runs. An error: it could not begin.
    pub fn run(&self) -> Result<Report, String> {
        let arena = shared::create(&Options::shared("stress", 0, CAP)).map_err(|error| error.label().to_string())?;
        let board = Board::new(arena).ok_or("no memory for the board")?;
        arena.set_role("hunter");
        watch();
        let mut run = Run {
            options: *self,
            arena,
            board,
            rng: Rng::new(self.seed, 0),
            report: Report::new(self.workers as usize),
        };
        let start = Instant::now();
        run.all();
        run.report.seconds = start.elapsed().as_secs_f64();
        run.sum_up();
        // SAFETY: no alarm is set any more.
        unsafe { libc::alarm(0) };
        Ok(run.report)
    }
}

struct Run {
    options: Processes,
    arena: &'static Arena,
    board: &'static Board,
    rng: Rng,
    report: Report,
}

impl Run {
    fn all(&mut self) {
        while self.report.kills < self.options.kills && self.report.failures.is_empty() {
            let mut pids: Vec<i32> = (0..self.options.workers as usize).map(|worker| self.spawn(worker)).collect();
            let end = (self.report.kills + KILLS_A_CENSUS).min(self.options.kills);
            while self.report.kills < end {
                // SAFETY: the handler is installed.
                unsafe { libc::alarm(WATCHDOG) };
                let is_release = (self.report.kills / KILLS_A_TIDE) % 2 == 1;
                self.board.tide.store(if is_release { tide::RELEASE } else { tide::PARK }, Relaxed);
                let kill = hunt::kill_one(self.arena, self.board, &pids, &mut self.rng, &self.report);
                self.report.count(kill);
                self.arena.recover();
                pids[kill.victim] = self.spawn(kill.victim);
            }
            self.report.failures.extend(hunt::all_go_on(self.board, pids.len()).err());
            pids.into_iter().for_each(hunt::end);
            let census = census::take(self.arena, self.board);
            self.report.censuses += 1;
            self.report.blocks += census.blocks;
            self.report.orphans += census.orphans;
            self.report.scribbled += census.scribbled;
            self.report.failures.extend(census.wrong);
        }
        if self.report.failures.is_empty() {
            self.report.failures.extend(census::clear(self.arena, self.board));
        }
    }

    /// Starts a worker in the place of one that is dead.
    fn spawn(&mut self, number: usize) -> i32 {
        let seed = self.rng.draw();
        self.board.stations[number].at.store(at::OWN, Release);
        // SAFETY: this process has one thread, so the child may do what it likes.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: S9 of the allocator does not matter here: a system call without memory. It dies with its parent.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let (arena, board, faults) = (self.arena, self.board, self.options.faults);
                let workers = self.options.workers as usize;
                Worker { arena, board, number, workers, faults, seed, pid: std::process::id() }.run()
            }
            pid => pid,
        }
    }

    fn sum_up(&mut self) {
        let (page, board, report) = (self.arena.stats_page(), self.board, &mut self.report);
        let header = &page.header;
        report.owner_deaths = header.owner_deaths.load(Relaxed);
        report.recovered = header.recovered.load(Relaxed);
        report.calls = board.sum(|station| &station.calls);
        report.crossed = board.sum(|station| &station.crossed);
        report.failed = board.sum(|station| &station.failed);
        report.grows = header.grows.load(Relaxed);
        report.shrinks = header.shrinks.load(Relaxed);
        report.stalls = counters::stalls(page);
        report.faults = board.sum(|station| &station.faults);
        report.refused = counters::Corruptions::now(page).total();
        let (torn, refused) = (board.sum(|station| &station.torn), board.sum(|station| &station.refused));
        if torn > 0 {
            report.failures.push(format!("{torn} blocks did not hold their stamp"));
        }
        if refused > 0 {
            report.failures.push(format!("{refused} live blocks could not be freed"));
        }
        // Who dies in a bad call may have had it refused, and not counted it.
        if !(report.faults..=report.faults + report.kills + report.censuses * report.workers as u64)
            .contains(&report.refused)
        {
            report.failures.push(format!("{} bad calls were made, and {} refused", report.faults, report.refused));
        }
    }
}

/// Ends the run if the alarm is not put off: then the parent itself is stuck.
fn watch() {
    extern "C" fn tell(_signal: i32) {
        const TEXT: &[u8] = b"hg-stress: stuck: the parent made no step for a minute\n";
        // SAFETY: both calls are allowed in a signal handler.
        unsafe {
            libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
            libc::_exit(1);
        }
    }
    // SAFETY: a zeroed sigaction is a valid one, and the handler calls what it may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = tell as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
    }
}
