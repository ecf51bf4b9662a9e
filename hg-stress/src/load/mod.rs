//! A load by script, for people who want to see the allocator react: `grow 512m, hold 5s, release 90%, hold 5s, release all`.
//!
//! Blocks are stamped and verified as everywhere. What is released is chosen at random, so that survivors are scattered. The
//! process does not maintain the allocator itself: `HG_THREAD=1` in its environment does.

pub mod script;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::block::Torn;
use crate::config::Sizes;
use crate::counters::{self, Memory};
use crate::hoard::{self, Hoard};
use crate::mix::Mix;
use crate::rng::Rng;
use crate::rss::Rss;
use script::{Script, Step};

/// How often a step that takes time moves on.
const BEAT: Duration = Duration::from_millis(50);

/// What a load does.
#[derive(Clone, Debug)]
pub struct Load {
    /// The steps.
    pub script: Script,
    /// How many times.
    pub repeat: u32,
    /// Threads that allocate and free.
    pub threads: u32,
    /// Sizes asked for; those of a spike if not given.
    pub sizes: Option<Sizes>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The state after a step. Field names are a contract.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figures {
    /// Milliseconds since the start.
    pub at_ms: u64,
    /// The step.
    pub step: String,
    /// Live bytes.
    pub live: u64,
    /// The arena.
    pub memory: Memory,
    /// Resident bytes.
    pub rss: u64,
}

/// What one thread works with.
struct Worker {
    hoard: Hoard,
    mix: Mix,
    rng: Rng,
}

impl Load {
    /// Runs the script; `tell` is called after each step.
    ///
    /// # Errors
    /// In words: the machine or the arena has too little memory for the script, an allocation failed, or a block was torn.
    pub fn run(&self, tell: impl Fn(Figures)) -> Result<(), String> {
        let page = hg_alloc::stats_page().ok_or("the allocator has no stats page (no memory, or no memfd)")?;
        let peak = self.script.peak(self.repeat);
        counters::fits(page, peak, "the script")?;
        if let Some(Sizes::Fixed(size)) = self.sizes
            && size > hoard::LARGEST
        {
            return Err(format!("blocks of {size} bytes are too large here, the most is {}", hoard::LARGEST));
        }
        let rss = Rss::open().map_err(|error| format!("/proc/self/statm: {error}"))?;
        let share = peak / u64::from(self.threads) + hoard::LARGEST as u64;
        let worker = |thread| {
            let hoard =
                Hoard::new(share as usize, thread, 0).map_err(|error| format!("no memory for a table: {error}"))?;
            Ok(Mutex::new(Worker { hoard, mix: Mix::default(), rng: Rng::new(self.seed, u64::from(thread)) }))
        };
        let workers = (0..self.threads).map(worker).collect::<Result<Vec<_>, String>>()?;
        let begin = Instant::now();
        for _ in 0..self.repeat {
            for &step in &self.script.0 {
                self.step(step, &workers)?;
                let at_ms = begin.elapsed().as_millis() as u64;
                tell(Figures {
                    at_ms,
                    step: step.to_string(),
                    live: live(&workers),
                    memory: Memory::now(page),
                    rss: rss.bytes(),
                });
            }
        }
        // Nothing stays behind unverified.
        self.towards(&workers, 0)
    }

    fn step(&self, step: Step, workers: &[Mutex<Worker>]) -> Result<(), String> {
        let from = live(workers);
        let (to, time) = match step {
            Step::Grow(bytes, time) => (from + bytes, time),
            Step::Release(part, time) => (part.rest(from), time),
            Step::Hold(time) => {
                std::thread::sleep(time);
                return Ok(());
            }
        };
        let begin = Instant::now();
        while begin.elapsed() < time {
            let share = begin.elapsed().as_secs_f64() / time.as_secs_f64();
            let way = (to as f64 - from as f64) * share;
            self.towards(workers, (from as f64 + way) as u64)?;
            std::thread::sleep(BEAT.min(time.saturating_sub(begin.elapsed())));
        }
        self.towards(workers, to)
    }

    /// Brings the live bytes of all threads together to `bytes`, each thread its share.
    fn towards(&self, workers: &[Mutex<Worker>], bytes: u64) -> Result<(), String> {
        let target = bytes / u64::from(self.threads);
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                workers.iter().map(|worker| scope.spawn(move || lock(worker).towards(target, self.sizes))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })
    }
}

impl Worker {
    fn towards(&mut self, target: u64, sizes: Option<Sizes>) -> Result<(), String> {
        while self.hoard.bytes() + 16 <= target {
            let room = (target - self.hoard.bytes()) as usize;
            let size = match sizes {
                Some(sizes) => sizes.draw(&mut self.rng),
                None => self.mix.draw(&mut self.rng, room),
            };
            if sizes.is_some() && size > room {
                break;
            }
            if !self.hoard.take(size.min(room)) {
                return Err(format!("an allocation of {size} bytes failed"));
            }
        }
        if self.hoard.bytes() > target {
            self.hoard.shuffle(&mut self.rng);
            self.hoard.release(target).map_err(|torn: Torn| torn.to_string())?;
        }
        Ok(())
    }
}

fn live(workers: &[Mutex<Worker>]) -> u64 {
    workers.iter().map(|worker| lock(worker).hoard.bytes()).sum()
}

fn lock(worker: &Mutex<Worker>) -> std::sync::MutexGuard<'_, Worker> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| if bytes < 1 << 20 { format!("{}k", bytes >> 10) } else { format!("{}m", bytes >> 20) };
        let time = match self {
            Step::Grow(bytes, time) => {
                write!(f, "grow {}", size(*bytes))?;
                time
            }
            Step::Hold(time) => return write!(f, "hold {time:?}"),
            Step::Release(script::Part::Share(share), time) => {
                write!(f, "release {}%", (share * 1e4).round() / 1e2)?;
                time
            }
            Step::Release(script::Part::Bytes(bytes), time) => {
                write!(f, "release {}", size(*bytes))?;
                time
            }
        };
        if time.is_zero() { Ok(()) } else { write!(f, " over {time:?}") }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { at_ms, step, live, memory, rss } = self;
        let [live, committed, rss] = [*live, memory.committed, *rss].map(|bytes| bytes as f64 / (1 << 20) as f64);
        let seconds = *at_ms as f64 / 1e3;
        write!(f, "{seconds:>8.2} s  {step:<24} live {live:>8.1} MiB, committed {committed:>8.1}, RSS {rss:>8.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(script: &str, sizes: Option<Sizes>) -> Result<Vec<Figures>, String> {
        let load = Load { script: script.parse().expect("a script"), repeat: 2, threads: 2, sizes, seed: 1 };
        let told = Mutex::new(Vec::new());
        load.run(|figures| told.lock().expect("sound").push(figures))?;
        Ok(told.into_inner().expect("sound"))
    }

    #[test]
    fn live_bytes_follow_the_script() {
        let told = figures("grow 8m, release 90%, grow 2m over 120ms, hold 10ms, release all", None).expect("memory");
        let live: Vec<u64> = told.iter().map(|figures| figures.live >> 10).collect();
        let near = |live: u64, wanted: u64| live.abs_diff(wanted) < 1 << 10;
        // A release frees whole blocks, so that more than 90% may go where the last one is large.
        assert!(near(live[0], 8 << 10) && live[1] <= 820 && live[2] <= 820 + (2 << 10) && live[4] == 0, "{live:?}");
        assert!(near(live[5], 8 << 10) && live[9] == 0 && live.len() == 10, "{live:?}");
        assert!(told[2].at_ms - told[1].at_ms >= 120, "{told:?}");
    }

    #[test]
    fn sizes_of_choice_and_too_large_ones() {
        let told = figures("grow 1m", Some(Sizes::Fixed(4096))).expect("memory");
        assert_eq!(told[1].live, 2 << 20);
        assert!(figures("grow 64m", Some(Sizes::Fixed(32 << 20))).expect_err("too large").contains("too large"));
        assert!(figures("grow 4000g", None).expect_err("no machine has that").contains("needs about"));
    }

    #[test]
    fn steps_read_as_they_were_written() {
        for text in ["grow 512m", "hold 5s", "release 90%", "release 64k over 500ms"] {
            assert_eq!(text.parse::<Script>().expect(text).0[0].to_string(), text);
        }
    }
}
