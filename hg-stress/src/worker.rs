//! What one thread does: a step takes, moves, hands over or gives back a block, as its pattern says.
//!
//! A [`Seat`] is what a worker works on, and outlives it: with thread churn the next thread takes over the seat, and so
//! frees blocks that its predecessor allocated. All tables are allocated before the load starts and never grow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::block::{Block, Torn};
use crate::config::{Config, Pattern, Reserved};
use crate::rng::Rng;

/// Blocks that a producer hands over at a time.
const BATCH: usize = 32;

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// The run.
    pub config: Config,
    /// Sizes that only faults may use.
    pub reserved: Reserved,
    /// Pipeline: one queue for each pair of threads.
    queues: Vec<Mutex<VecDeque<Block>>>,
    /// Swap: the table that all swap in.
    table: Vec<Mutex<Option<Block>>>,
    /// Allocations that failed.
    pub failed: AtomicU64,
}

impl Shared {
    /// Tables for a run, allocated in full.
    pub fn new(config: Config, reserved: Reserved) -> Shared {
        let queues = if config.pattern == Pattern::Pipeline { config.threads / 2 } else { 0 };
        let table = if config.pattern == Pattern::Swap { config.slots() * config.threads / 2 } else { 0 };
        Shared {
            queues: (0..queues).map(|_| Mutex::new(touched(config.slots() + BATCH).into())).collect(),
            table: (0..table).map(|_| Mutex::new(None)).collect(),
            failed: AtomicU64::new(0),
            config,
            reserved,
        }
    }

    /// Frees everything in the shared tables; any worker may, all of them at once.
    fn drain(&self) -> Result<(), Torn> {
        for slot in &self.table {
            lock(slot).take().map_or(Ok(()), Block::free)?;
        }
        for queue in &self.queues {
            // The lock is given up between two blocks, so that several workers drain a queue together.
            while let Some(block) = { lock(queue).pop_front() } {
                block.free()?;
            }
        }
        Ok(())
    }
}

/// An empty vector whose memory is resident, so that its first use does not count as growth.
fn touched(capacity: usize) -> Vec<Block> {
    let mut vector: Vec<Block> = Vec::with_capacity(capacity);
    // Not with zeros: the compiler would make that one call for zeroed memory, which touches nothing.
    // SAFETY: the bytes written are the vector's spare capacity.
    unsafe { vector.as_mut_ptr().write_bytes(0xa5, vector.capacity()) };
    std::hint::black_box(vector)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a worker works on.
#[derive(Debug)]
pub struct Seat {
    index: usize,
    rng: Rng,
    generation: u32,
    table: Vec<Option<Block>>,
    batch: Vec<Block>,
    live_bytes: usize,
}

impl Seat {
    /// A seat with empty tables.
    pub fn new(index: usize, config: &Config) -> Seat {
        Seat {
            index,
            rng: Rng::new(config.seed, index as u64),
            generation: 0,
            table: (0..config.slots()).map(|_| None).collect(),
            batch: touched(BATCH),
            live_bytes: 0,
        }
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// One step; returns the allocations and frees it did (a resize is one operation).
    pub fn step(&mut self, shared: &Shared) -> Result<u64, Torn> {
        match shared.config.pattern {
            Pattern::Pipeline if self.index / 2 < shared.queues.len() => {
                let queue = &shared.queues[self.index / 2];
                if self.index.is_multiple_of(2) { self.produce(shared, queue) } else { self.consume(queue) }
            }
            Pattern::Swap => self.swap(shared),
            Pattern::Local | Pattern::Pipeline => self.local(shared),
        }
    }

    /// Frees all that the seat holds, then helps to free what is shared.
    pub fn free_all(&mut self, shared: &Shared) -> Result<(), Torn> {
        self.live_bytes = 0;
        for block in self.batch.drain(..).chain(self.table.iter_mut().filter_map(Option::take)) {
            block.free()?;
        }
        shared.drain()
    }

    fn local(&mut self, shared: &Shared) -> Result<u64, Torn> {
        let slot = shared.config.hold.slot(&mut self.rng, self.table.len());
        match self.table[slot].take() {
            Some(block) if self.rng.one_in(16) => {
                let size = self.draw_size(shared);
                self.live_bytes -= block.size();
                let (block, resized) = block.resize(size)?;
                self.live_bytes += block.size();
                self.table[slot] = Some(block);
                shared.failed.fetch_add(u64::from(!resized), Relaxed);
                Ok(1)
            }
            Some(block) => {
                self.live_bytes -= block.size();
                block.free()?;
                Ok(1)
            }
            None if self.live_bytes < shared.config.live_bytes => {
                let block = self.take(shared)?;
                self.live_bytes += block.as_ref().map_or(0, Block::size);
                self.table[slot] = block;
                Ok(1)
            }
            None => Ok(0),
        }
    }

    fn produce(&mut self, shared: &Shared, queue: &Mutex<VecDeque<Block>>) -> Result<u64, Torn> {
        let mut operations = 0;
        while self.batch.len() < BATCH {
            let Some(block) = self.take(shared)? else { break };
            self.batch.push(block);
            operations += 1;
        }
        let mut queue = lock(queue);
        if queue.len() + self.batch.len() <= shared.config.slots() {
            queue.extend(self.batch.drain(..));
        } else {
            drop(queue);
            std::thread::yield_now();
        }
        Ok(operations)
    }

    fn consume(&mut self, queue: &Mutex<VecDeque<Block>>) -> Result<u64, Torn> {
        {
            let mut queue = lock(queue);
            let count = queue.len().min(BATCH);
            self.batch.extend(queue.drain(..count));
        }
        if self.batch.is_empty() {
            std::thread::yield_now();
        }
        let operations = self.batch.len() as u64;
        self.batch.drain(..).try_for_each(Block::free)?;
        Ok(operations)
    }

    fn swap(&mut self, shared: &Shared) -> Result<u64, Torn> {
        let slot = shared.config.hold.slot(&mut self.rng, shared.table.len());
        let block = self.take(shared)?;
        let taken = std::mem::replace(&mut *lock(&shared.table[slot]), block);
        let operations = 1 + u64::from(taken.is_some());
        taken.map_or(Ok(()), Block::free)?;
        Ok(operations)
    }

    fn draw_size(&mut self, shared: &Shared) -> usize {
        shared.reserved.avoid(shared.config.sizes.draw(&mut self.rng)).max(1)
    }

    fn take(&mut self, shared: &Shared) -> Result<Option<Block>, Torn> {
        let size = self.draw_size(shared);
        // Aligned blocks have power-of-two sizes: rounding to the alignment then never leads into a reserved class.
        let (size, align) = if size <= 65_536 && self.rng.one_in(32) {
            let size = size.next_power_of_two();
            (size, size.min(1 << self.rng.below(13)))
        } else {
            (size, 1 << self.rng.below(5))
        };
        self.generation = self.generation.wrapping_add(1);
        let zeroed = self.rng.one_in(16);
        let block = Block::new(size, align, self.index as u32, self.generation, zeroed)?;
        shared.failed.fetch_add(u64::from(block.is_none()), Relaxed);
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Hold, Sizes};

    fn config(pattern: Pattern) -> Config {
        Config {
            threads: 2,
            seconds: 0,
            sizes: Sizes::Mixed,
            hold: Hold::Mixed,
            pattern,
            churn_ms: 0,
            faults: false,
            stall_ms: 0,
            seed: 1,
            live_bytes: 1 << 20,
        }
    }

    #[test]
    fn every_pattern_does_work_and_frees_all_of_it() {
        for pattern in [Pattern::Local, Pattern::Pipeline, Pattern::Swap] {
            let shared = Shared::new(config(pattern), Reserved::default());
            let mut seats: Vec<_> = (0..2).map(|index| Seat::new(index, &shared.config)).collect();
            let mut operations = 0;
            for _ in 0..2000 {
                for seat in &mut seats {
                    operations += seat.step(&shared).expect("sound");
                }
            }
            assert!(operations > 2000, "{pattern:?}: {operations}");
            for seat in &mut seats {
                seat.free_all(&shared).expect("sound");
            }
            assert!(seats.iter().all(|s| s.batch.is_empty() && s.table.iter().all(Option::is_none)), "{pattern:?}");
            assert!(shared.table.iter().all(|slot| lock(slot).is_none()), "{pattern:?}");
            assert!(shared.queues.iter().all(|queue| lock(queue).is_empty()), "{pattern:?}");
            assert_eq!(shared.failed.load(Relaxed), 0);
        }
    }

    #[test]
    fn a_thread_stays_within_its_live_bytes_and_one_block() {
        let shared = Shared::new(config(Pattern::Local), Reserved::default());
        let mut seat = Seat::new(0, &shared.config);
        for _ in 0..20_000 {
            seat.step(&shared).expect("sound");
            assert!(seat.live_bytes <= shared.config.live_bytes + 2 * (1 << 20));
        }
        seat.free_all(&shared).expect("sound");
    }
}
