//! Sampled allocations: one in so many bytes is told to whoever listens, and so is its free.
//!
//! Each front cache counts the pops of a class down, in the upper half of the word that the pop stores anyway; the one that
//! finds the countdown over takes the slow path. A sample at refills instead would be biased: a program that allocates and
//! frees in turns never refills. While a tracer listens to `sample_alloc` that allocation is a sample, marked in its state
//! byte, so that its free takes the slow path too; otherwise the countdown is set anew and nothing else happens.
//!
//! The intervals are drawn evenly from 1 to twice the mean, so a program's own rhythm does not fall into step with them.

use crate::sys::{clock, memory};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::{emit, listening};

/// Live samples that can be remembered: sets of [`WAYS`], found by a hash of the address.
const SETS: usize = 512;
const WAYS: usize = 8;

/// Pops between two looks at the tracer while nobody listens, for the largest and the smallest cells.
const IDLE: core::ops::RangeInclusive<usize> = 64..=MAX_COUNTDOWN;
const MAX_COUNTDOWN: usize = 0x7fff;

/// The samples of an arena. No lock: a place belongs to who put a nonzero address there.
pub(crate) struct Sampler {
    /// Mean bytes between two samples.
    interval: AtomicUsize,
    random: AtomicU64,
    live: AtomicU32,
    /// Bytes of large objects until the next sample of one.
    large_left: AtomicUsize,
    /// Address of the places, mapped for them: 0 if that could not be had, and before the start.
    places: AtomicUsize,
}

struct Place {
    address: AtomicUsize,
    bytes: AtomicUsize,
    since_ns: AtomicU64,
}

impl Place {
    const fn new() -> Self {
        Place { address: AtomicUsize::new(0), bytes: AtomicUsize::new(0), since_ns: AtomicU64::new(0) }
    }
}

impl Sampler {
    pub(crate) const fn new() -> Self {
        Sampler {
            interval: AtomicUsize::new(0),
            random: AtomicU64::new(0),
            live: AtomicU32::new(0),
            large_left: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
        }
    }

    /// Sets the mean number of bytes between two samples.
    pub(crate) fn start(&self, interval: usize) {
        self.interval.store(interval, Relaxed);
        self.random.store(clock::now_ns() | 1, Relaxed);
        let places = memory::map_zero(SETS * size_of::<[Place; WAYS]>()).unwrap_or(0);
        // An arena whose start is tried again has them already.
        if self.places.compare_exchange(0, places, Relaxed, Relaxed).is_err() {
            memory::unmap(places, SETS * size_of::<[Place; WAYS]>());
        }
        self.large_left.store(interval, Relaxed);
    }

    /// Allocations of a class until its next sample, or until it is looked again whether anybody listens; at least 1.
    pub(crate) fn countdown(&self, cell_size: usize) -> u16 {
        let mean = self.interval.load(Relaxed) / cell_size.max(1);
        if !listening::sample_alloc() {
            return mean.saturating_mul(4).clamp(*IDLE.start(), *IDLE.end()) as u16;
        }
        let twice = mean.clamp(1, MAX_COUNTDOWN / 2) * 2;
        (1 + self.draw() as usize % twice) as u16
    }

    /// Bytes that one sample of a class stands for.
    pub(crate) fn weight(&self, cell_size: usize) -> u64 {
        let mean = (self.interval.load(Relaxed) / cell_size.max(1)).clamp(1, MAX_COUNTDOWN / 2);
        // The mean of an even draw from 1 to 2 * mean is mean + 1/2.
        (cell_size * (2 * mean + 1) / 2) as u64
    }

    /// Remembers and tells a sample. False if nobody listens or there is no place for it.
    pub(crate) fn take(&self, arena: u32, address: usize, bytes: usize, weight: u64) -> bool {
        if !listening::sample_alloc() {
            return false;
        }
        let free =
            self.set(address).iter().find(|place| place.address.compare_exchange(0, address, Acquire, Relaxed).is_ok());
        let Some(place) = free else { return false };
        place.bytes.store(bytes, Relaxed);
        place.since_ns.store(clock::now_ns(), Relaxed);
        self.live.fetch_add(1, Relaxed);
        emit::sample_alloc(|| args::sample_alloc { arena, address, bytes, weight });
        true
    }

    /// Whether a large object is a sample: the one that crosses the interval. Tells and remembers it.
    pub(crate) fn take_large(&self, arena: u32, address: usize, bytes: usize) {
        if !listening::sample_alloc() {
            return;
        }
        let interval = self.interval.load(Relaxed);
        let left = self.large_left.load(Relaxed);
        if left > bytes {
            self.large_left.store(left - bytes, Relaxed);
            return;
        }
        self.large_left.store(interval, Relaxed);
        self.take(arena, address, bytes, bytes.max(interval) as u64);
    }

    /// Forgets and tells the free of a sample, if there is one at this address.
    pub(crate) fn give(&self, arena: u32, address: usize) {
        if self.live.load(Relaxed) == 0 {
            return;
        }
        let Some(place) = self.set(address).iter().find(|place| place.address.load(Relaxed) == address) else { return };
        let (bytes, since_ns) = (place.bytes.load(Relaxed), place.since_ns.load(Relaxed));
        place.address.store(0, Release);
        self.live.fetch_sub(1, Relaxed);
        let age_ns = clock::now_ns().saturating_sub(since_ns);
        emit::sample_free(|| args::sample_free { arena, address, bytes, age_ns });
    }

    fn set(&self, address: usize) -> &[Place; WAYS] {
        static NOWHERE: [Place; WAYS] = [const { Place::new() }; WAYS];
        let hash = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        match self.places.load(Relaxed) {
            0 => &NOWHERE,
            // SAFETY: S6, the mapping has SETS sets, reads as zero at first, and stays.
            places => unsafe { &*(places as *const [Place; WAYS]).add(hash % SETS) },
        }
    }

    /// A pseudo-random number (xorshift; Marsaglia 2003). Two threads at once may draw the same.
    fn draw(&self) -> u64 {
        let mut random = self.random.load(Relaxed);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.store(random, Relaxed);
        random >> 16
    }
}
