//! A spike of load and what is left of it: grow, free everything in random order, watch memory come back, again and again.
//!
//! Each round fills hoards of [`Mix`] sizes from several threads, every block stamped over its whole length; then each thread
//! frees its part of every hoard, so that most blocks are freed by another thread than took them. What the allocator
//! does then is read from its stats page and from the kernel. Tables and threads are gone at that time.
//!
//! Whether a thread maintains the arena is the environment's choice and read at start, so each mode is a process of its
//! own, see [`modes`].

pub mod modes;
pub mod report;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use hg_probes::page::StatsPage;

use crate::block::Torn;
use crate::counters::{self, Memory};
use crate::hoard::Hoard;
use crate::mix::Mix;
use crate::rng::Rng;
use crate::rss::Rss;
use modes::Mode;
use report::{Limits, Report, Round};

/// What one spike run does.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Spike {
    /// Live memory at the top of each spike, GiB; may be a fraction.
    #[arg(long, value_name = "GIB", default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
    /// Spikes, one after the other.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Threads that allocate and free.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn gib(word: &str) -> Result<f64, String> {
    let number: f64 = word.parse().map_err(|_| "a number of GiB, like 4 or 0.25".to_string())?;
    let range = 0.015625..=4096.0;
    if range.contains(&number) { Ok(number) } else { Err("from 0.015625 (16 MiB) to 4096 GiB".into()) }
}

/// How often figures are looked at while memory is awaited.
const LOOK: Duration = Duration::from_millis(10);

/// How much longer than the decay time memory is awaited, so that it is known how late it was.
const GRACE: Duration = Duration::from_secs(3);

impl Spike {
    /// Live bytes at the top.
    fn bytes(&self) -> u64 {
        (self.gib * f64::from(1 << 30)) as u64
    }

    /// Runs in this process, whose environment must ask for the mode. `tell` is called after each round.
    ///
    /// # Errors
    /// In words: the machine or the arena has too little memory, or `/proc` is missing.
    pub fn run(&self, mode: Mode, tell: impl Fn(&Round)) -> Result<Report, String> {
        let page = hg_alloc::stats_page().ok_or("the allocator has no stats page (no memory, or no memfd)")?;
        counters::fits(page, self.bytes(), &format!("a spike of {} GiB", self.gib))?;
        let rss = Rss::open().map_err(|error| format!("/proc/self/statm: {error}"))?;
        // Threads once before the first figure: their stacks stay with the C library.
        self.crew(|_| Ok(())).map_err(|torn| torn.to_string())?;
        let (rounds, failures) = (Vec::with_capacity(self.rounds as usize), Vec::with_capacity(64));
        // What is committed then is what the program's own blocks need, or the floor.
        hg_alloc::trim();
        let start = Memory::now(page);
        let mut report = Report {
            maintained: mode == Mode::Thread,
            gib: self.gib,
            threads: self.threads,
            limits: Limits::new(mode == Mode::Thread, start, rss.bytes(), counters::decay(page)),
            start,
            rounds,
            failures,
        };
        for number in 1..=self.rounds {
            let round = self.round(number, page, &rss, &report);
            match round {
                Ok(round) => {
                    tell(&round);
                    report.rounds.push(round);
                }
                Err(failure) => {
                    report.failures.push(format!("round {number}: {failure}"));
                    break;
                }
            }
        }
        if counters::maintained(page) != report.maintained {
            report.failures.push(format!("{}: the stats page tells otherwise", mode.flag()));
        }
        report.judge();
        Ok(report)
    }

    fn round(&self, number: u32, page: &StatsPage, rss: &Rss, report: &Report) -> Result<Round, String> {
        let share = self.bytes() / u64::from(self.threads);
        let hoard = |owner| Hoard::new(share as usize, owner, number).map(Mutex::new);
        let hoards = (0..self.threads).map(hoard).collect::<Result<Vec<_>, _>>();
        let hoards = hoards.map_err(|error| format!("no memory for a table: {error}"))?;
        let short = AtomicBool::new(false);
        let begin = Instant::now();
        self.crew(|thread| {
            let mut hoard = hoards[thread as usize].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut rng = Rng::new(self.seed, u64::from(number) << 16 | u64::from(thread));
            let mut mix = Mix::default();
            while hoard.bytes() < share && !short.load(Relaxed) {
                let size = mix.draw(&mut rng, (share - hoard.bytes()) as usize);
                if !hoard.take(size) {
                    short.store(true, Relaxed);
                }
            }
            hoard.shuffle(&mut rng);
            Ok(())
        })
        .map_err(|torn| torn.to_string())?;
        let grown = begin.elapsed();
        let hoards: Vec<Hoard> = hoards
            .into_iter()
            .map(|hoard| hoard.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
            .collect();
        let live: u64 = hoards.iter().map(Hoard::bytes).sum();
        let top = (Memory::now(page), rss.bytes());

        let begin = Instant::now();
        self.crew(|thread| {
            for (owner, hoard) in (0..).zip(&hoards) {
                let first = ((thread + owner) % self.threads) as usize;
                (first..hoard.length()).step_by(self.threads as usize).try_for_each(|index| hoard.free(index))?;
            }
            Ok(())
        })
        .map_err(|torn| torn.to_string())?;
        let freed = begin.elapsed();
        drop(hoards);
        let begin = Instant::now();
        let mut round = Round {
            number,
            live,
            peak_committed: top.0.committed,
            peak_rss: top.1,
            grow_ms: grown.as_millis() as u64,
            free_ms: freed.as_millis() as u64,
            freed: Memory::now(page),
            freed_rss: rss.bytes(),
            ..Round::default()
        };
        self.settle(&mut round, report, page, rss, begin);
        if short.into_inner() {
            return Err(format!("an allocation failed at {} MiB live", live >> 20));
        }
        Ok(round)
    }

    /// Waits while the process idles: until memory is back with a thread; without one there is nothing to wait for.
    fn settle(&self, round: &mut Round, report: &Report, page: &StatsPage, rss: &Rss, begin: Instant) {
        let patience = if report.maintained { counters::decay(page) + GRACE } else { Duration::ZERO };
        loop {
            (round.settled, round.settled_rss) = (Memory::now(page), rss.bytes());
            if report.limits.back(round) {
                round.back_ms = Some(begin.elapsed().as_millis() as u64);
                return;
            }
            if begin.elapsed() >= patience {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// All threads at once; they are gone at the end. The first torn block is told.
    fn crew(&self, work: impl Fn(u32) -> Result<(), Torn> + Sync) -> Result<(), Torn> {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spike(gib: f64) -> Spike {
        Spike { gib, rounds: 1, threads: 3, seed: 1 }
    }

    #[test]
    fn fractions_of_a_gib_and_their_bounds() {
        assert_eq!(gib("0.25"), Ok(0.25));
        for bad in ["", "x", "0", "0.001", "-1", "5000", "NaN", "inf"] {
            assert!(gib(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn more_than_the_machine_has_is_refused_in_words() {
        let refusal = spike(4096.0).run(Mode::NoThread, |_| ()).expect_err("no machine has that");
        assert!(
            refusal.starts_with("a spike of 4096 GiB needs about 4718592 MiB, but the machine has only"),
            "{refusal}"
        );
    }
}
