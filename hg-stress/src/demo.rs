//! A workload made to be looked at: the one behind `hg-top demo`.
//!
//! It is throttled to a part of the machine and shows everything hg-top can show within seconds: all sizes, threads that
//! free each other's blocks, waves of growth and shrinking, large objects; and, on purpose, a lock stall now and then and
//! a refused double free every ten seconds. The last two are what a broken program would cause; here they are staged.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::block::{Block, Torn};
use crate::config::{Config, Hold, Pattern, Reserved, Sizes};
use crate::faults::{Fault, Faults};
use crate::rng::Rng;
use crate::stall;
use crate::worker::{Seat, Shared};

/// Period of the waves.
const WAVE: Duration = Duration::from_secs(10);

/// The live bytes of a wave at its crest.
const CREST_BYTES: usize = 160 << 20;

/// How long a staged stall lasts, milliseconds.
const STALL_MS: u64 = 6;

/// Runs the demo's workload for `seconds` (`u64::MAX`: until the process ends). Ends the process with status 1 and a line
/// on stderr if a block is found torn: then hg, not the demo, is broken.
pub fn demo(seconds: u64) {
    let begin = Instant::now();
    let running = || begin.elapsed().as_secs() < seconds;
    let page = hg_alloc::stats_page();
    let faults = page.and_then(|page| Faults::new(page, Sizes::Mixed));
    let reserved = faults.as_ref().map_or_else(Reserved::default, Faults::reserved);
    let config = |sizes, pattern, threads, live_bytes| Config {
        threads,
        seconds,
        sizes,
        hold: Hold::Mixed,
        pattern,
        churn_ms: 0,
        faults: false,
        stall_ms: 0,
        seed: 1,
        live_bytes,
    };
    let loads = [
        Shared::new(config(Sizes::Small, Pattern::Pipeline, 2, 4 << 20), reserved.clone()),
        Shared::new(config(Sizes::Mixed, Pattern::Swap, 2, 16 << 20), reserved.clone()),
        Shared::new(config(Sizes::Mixed, Pattern::Local, 1, 16 << 20), reserved.clone()),
        Shared::new(config(Sizes::Large, Pattern::Local, 1, 48 << 20), reserved.clone()),
    ];
    std::thread::scope(|scope| {
        for shared in &loads {
            for index in 0..shared.config.threads {
                scope.spawn(move || or_die(throttled(shared, index, running)));
            }
        }
        scope.spawn(|| or_die(waves(&reserved, running)));
        if let Some(page) = page {
            // One signal handler and one pair of hammers: stalls are staged by one thread.
            scope.spawn(move || {
                every(Duration::from_secs(1), Duration::from_secs(7), running, || {
                    stall::provoke(page, STALL_MS, || !running());
                });
            });
        }
        if let Some(faults) = &faults {
            let rng = Mutex::new(Rng::new(1, 1));
            scope.spawn(move || {
                every(Duration::from_millis(1500), Duration::from_secs(10), running, || {
                    let mut rng = rng.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    if let Err(unanswered) = faults.inject(Fault::DoubleFree, &mut rng) {
                        eprintln!("hg-stress: {unanswered}");
                    }
                });
            });
        }
    });
}

fn or_die(outcome: Result<(), Torn>) {
    if let Err(torn) = outcome {
        eprintln!("hg-stress: {torn}");
        std::process::exit(1);
    }
}

/// Calls `deed` after `first`, then once in each `period`.
fn every(first: Duration, period: Duration, running: impl Fn() -> bool, deed: impl Fn()) {
    let mut due = Instant::now() + first;
    while running() {
        if Instant::now() >= due {
            deed();
            due = Instant::now() + period;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A worker that rests most of the time.
fn throttled(shared: &Shared, index: usize, running: impl Fn() -> bool) -> Result<(), Torn> {
    let mut seat = Seat::new(index, &shared.config);
    while running() {
        for _ in 0..64 {
            seat.step(shared)?;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    seat.free_all(shared)
}

/// Live memory that rises and falls as a triangle with the period of the waves.
fn waves(reserved: &Reserved, running: impl Fn() -> bool) -> Result<(), Torn> {
    let begin = Instant::now();
    let mut rng = Rng::new(1, 2);
    let mut blocks = Vec::with_capacity(65_536);
    let (mut live, mut generation) = (0, 0);
    while running() {
        let position = begin.elapsed().as_secs_f64() / WAVE.as_secs_f64() % 1.0;
        let height = 1.0 - (2.0 * position - 1.0).abs();
        let target = (CREST_BYTES as f64 * height) as usize;
        // At most a few hundred blocks at a time, so that the wave is a slope and no step.
        for _ in 0..400 {
            if live + (512 << 10) < target && blocks.len() < blocks.capacity() {
                generation += 1;
                let size = reserved.avoid(rng.log_uniform(64, 128 << 10));
                let Some(block) = Block::new(size, 16, u32::MAX - 1, generation, false)? else { break };
                live += block.size();
                blocks.push(block);
            } else if live > target && !blocks.is_empty() {
                let block: Block = blocks.swap_remove(rng.below(blocks.len()));
                live -= block.size();
                block.free()?;
            } else {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    blocks.drain(..).try_for_each(Block::free)
}
