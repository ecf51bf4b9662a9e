//! Locks while the arena grows: how long is the grid's lock, how long are the classes' locks held?
//!
//! Several threads take, stamp, verify and free blocks of all sizes, twice as many taken as freed, until the live memory
//! wanted is reached. Then the histograms of the stats page are read. Each call of the allocator is also timed from outside, on
//! the wall and on the CPU, and the allocator tells each hold beyond the limit to the thread that held: which tells a long hold
//! from one whose holder was kept off its CPU, see [`calls`]. What the kernel does not tell apart is compared with a loop that holds
//! nothing, see [`machine`]. For the first that the limit must be the allocator's stall threshold, which
//! it reads from the environment at its start: [`Growth::restart`].

pub mod calls;
pub mod locks;
pub mod machine;
pub mod report;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Instant;

use hg_probes::page::StatsPage;

use crate::counters::{self, Memory};
use crate::hoard::{Hoard, Loose};
use crate::mix::Mix;
use crate::rng::Rng;
use calls::{Calls, now_ns};
use locks::Look;
use machine::Stops;
use report::{LIMIT_NS, Report};

/// How long the machine is watched where a hold needs to be explained, ns.
const WATCH_NS: u64 = 5_000_000_000;

/// What a growth run does.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Growth {
    /// Live memory to grow to, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=4_194_304))]
    pub mib: u64,
    /// Threads that allocate and free.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Growth {
    /// Replaces this process by itself with the limit as the stall threshold, unless it is that already.
    ///
    /// # Errors
    /// In words: the program is not to be found, or the threshold was not taken.
    pub fn restart(page: &StatsPage) -> Result<(), String> {
        const VARIABLE: &str = "HG_LOCK_STALL_US";
        let limit_us = LIMIT_NS / 1000;
        if counters::stall_us(page) == limit_us {
            return Ok(());
        }
        let limit = limit_us.to_string();
        if std::env::var(VARIABLE).is_ok_and(|value| value == limit) {
            return Err(format!("the allocator does not take {VARIABLE}={limit}"));
        }
        let program = std::env::current_exe().map_err(|error| format!("where is this program: {error}"))?;
        let failed = Command::new(program).args(std::env::args_os().skip(1)).env(VARIABLE, limit).exec();
        Err(format!("starting again with {VARIABLE}: {failed}"))
    }

    /// Runs in this process.
    ///
    /// # Errors
    /// In words: too little memory, an allocation failed, a block was torn.
    pub fn run(&self) -> Result<Report, String> {
        let page = hg_alloc::stats_page().ok_or("the allocator has no stats page (no memory, or no memfd)")?;
        Growth::restart(page)?;
        let bytes = self.mib << 20;
        counters::fits(page, bytes, &format!("growing to {} MiB", self.mib))?;
        let calls = Calls::default();
        let operations = AtomicU64::new(0);
        hg_alloc::set_stall_hook(Some(calls::note));
        let (before, before_ns) = (Look::at(page), now_ns(libc::CLOCK_MONOTONIC));
        let (grows, begin) = (page.header.grows.load(Relaxed), Instant::now());
        let cpu_ns = now_ns(libc::CLOCK_PROCESS_CPUTIME_ID);
        let hoards = self.grow(bytes, &calls, &operations)?;
        let seconds = begin.elapsed().as_secs_f64();
        let cpu_seconds = (now_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) as f64 / 1e9;
        let holds = Look::at(page).since(&before, before_ns);
        let report = Report::new(self, seconds, operations.into_inner(), holds, calls)
            .with_arena(Memory::now(page), page.header.grows.load(Relaxed) - grows)
            .with_machine(cpu_seconds, || Stops::watch(LIMIT_NS, WATCH_NS));
        for mut hoard in hoards {
            hoard.release(0).map_err(|torn| torn.to_string())?;
        }
        Ok(report)
    }

    fn grow(&self, bytes: u64, calls: &Calls, operations: &AtomicU64) -> Result<Vec<Hoard>, String> {
        let share = bytes / u64::from(self.threads);
        let failed = AtomicBool::new(false);
        let work = |thread: u32| {
            // The table holds what is taken, freed ones too: twice the share is enough for one freed of two.
            let table =
                Hoard::new(3 * share as usize, thread, 0).map_err(|error| format!("no memory for a table: {error}"));
            let (mut hoard, mut mix) = (table?, Mix::default());
            let mut rng = Rng::new(self.seed, u64::from(thread));
            // SAFETY: gettid has no preconditions.
            let tid = unsafe { libc::gettid() } as u32;
            let (mut live, mut count) = (0, 0);
            while live < share && !failed.load(Relaxed) {
                let size = mix.draw(&mut rng, usize::MAX);
                let block = calls.time(tid, LIMIT_NS, || Loose::allocate(size));
                if !block.is_some_and(|block| hoard.put(block)) {
                    failed.store(true, Relaxed);
                    return Err(format!("an allocation of {size} bytes failed at {} MiB of this thread", live >> 20));
                }
                count += 1;
                live += size.next_multiple_of(16) as u64;
                if count % 2 == 0 {
                    let index = rng.below(hoard.length());
                    if let Some(block) = hoard.withdraw(index).map_err(|torn| torn.to_string())? {
                        live -= block.size();
                        calls.time(tid, LIMIT_NS, || block.free());
                    }
                }
            }
            operations.fetch_add(count + count / 2, Relaxed);
            Ok(hoard)
        };
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread ended early".into())))
                .collect()
        })
    }
}
