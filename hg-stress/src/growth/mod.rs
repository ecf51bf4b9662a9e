//! Locks while the arena grows: how long is the grid's lock, how long are the classes' locks held?
//!
//! Several threads take, stamp, verify and free blocks of all sizes, twice as many taken as freed, until the live memory
//! wanted is reached. Then the histograms of the stats page are read: what was held beyond the limit, by which thread. Each call
//! of the allocator is also timed from outside, on the wall and on the CPU, which tells a long hold from one whose holder was
//! kept off its CPU, see [`calls`].

pub mod calls;
pub mod locks;
pub mod report;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Instant;

use crate::counters::{self, Memory};
use crate::hoard::{Hoard, Loose};
use crate::mix::Mix;
use crate::rng::Rng;
use calls::{Calls, now_ns};
use locks::Look;
use report::{LIMIT_NS, Report};

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

/// Calls beyond the limit that are noted; a run with more has failed anyway.
const CALLS: usize = 65_536;

impl Growth {
    /// Runs in this process.
    ///
    /// # Errors
    /// In words: too little memory, an allocation failed, a block was torn.
    pub fn run(&self) -> Result<Report, String> {
        let page = hg_alloc::stats_page().ok_or("the allocator has no stats page (no memory, or no memfd)")?;
        let bytes = self.mib << 20;
        counters::fits(page, bytes, &format!("growing to {} MiB", self.mib))?;
        let calls = Calls::with_capacity(CALLS);
        let operations = AtomicU64::new(0);
        let (before, before_ns) = (Look::at(page), now_ns(libc::CLOCK_MONOTONIC));
        let (grows, begin) = (page.header.grows.load(Relaxed), Instant::now());
        let hoards = self.grow(bytes, &calls, &operations)?;
        let seconds = begin.elapsed().as_secs_f64();
        let holds = Look::at(page).since(&before, before_ns);
        let report = Report::new(self, seconds, operations.into_inner(), holds, calls.into_inner()).with_arena(
            Memory::now(page),
            page.header.grows.load(Relaxed) - grows,
            counters::stall_us(page),
        );
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
