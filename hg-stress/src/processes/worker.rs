//! What one process does until it is killed: bursts of mallocs into its own slots, bursts of frees from anybody's, and now and then
//! a bad call.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use hg_alloc::shared::Arena;

use super::board::{self, Board, SLOTS, Slot, Station, at, tide};
use crate::counters;
use crate::rng::Rng;

/// Blocks of one burst: more than a batch has.
const BURST: usize = 80;

/// Larger blocks come in bursts of so many bytes at most.
const BURST_BYTES: usize = 256 << 10;

/// One process.
pub(crate) struct Worker<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) board: &'a Board,
    /// Its number, and how many there are.
    pub(crate) number: usize,
    pub(crate) workers: usize,
    pub(crate) faults: bool,
    pub(crate) seed: u64,
    pub(crate) pid: u32,
}

impl Worker<'_> {
    /// Works for ever.
    pub(crate) fn run(&self) -> ! {
        self.arena.set_role(ROLES[self.number % ROLES.len()]);
        let mut rng = Rng::new(self.seed, self.number as u64);
        let sizes = self.sizes();
        loop {
            let fills = match self.board.tide.load(Relaxed) {
                tide::PARK => 90,
                _ => 5,
            };
            if self.faults && rng.one_in(20) {
                self.fault(&mut rng);
            } else if rng.below(100) < fills {
                self.fill(&mut rng, &sizes);
            } else {
                self.empty(&mut rng);
            }
        }
    }

    fn station(&self) -> &Station {
        &self.board.stations[self.number]
    }

    /// The class that only this process uses, for faults: two apart, so that the load keeps small sizes too.
    fn reserved(worker: usize) -> usize {
        worker * 2 + 1
    }

    /// Sizes of the load: those of classes that no faults need.
    fn sizes(&self) -> Vec<usize> {
        let sizes = counters::class_sizes(self.arena.stats_page());
        let is_reserved = |class| self.faults && (0..self.workers).any(|worker| Self::reserved(worker) == class);
        sizes.into_iter().enumerate().filter(|(class, _)| !is_reserved(*class)).map(|(_, size)| size).collect()
    }

    fn draw(rng: &mut Rng, sizes: &[usize]) -> usize {
        match rng.below(48) {
            0..=1 => rng.log_uniform(300 << 10, 2 << 20),
            2..=4 => sizes[rng.below(sizes.len())],
            // The smaller three quarters: up to 8 KiB.
            _ => sizes[rng.below(sizes.len() * 3 / 4)],
        }
    }

    fn at<R>(&self, place: u32, call: impl FnOnce() -> R) -> R {
        self.station().at.store(place, Release);
        let result = call();
        self.station().at.store(at::OWN, Release);
        let calls = &self.station().calls;
        calls.store(calls.load(Relaxed) + 1, Relaxed);
        result
    }

    fn fill(&self, rng: &mut Rng, sizes: &[usize]) {
        let size = Self::draw(rng, sizes);
        let first = rng.below(SLOTS);
        for index in 0..rng.below(BURST).min(BURST_BYTES / size) + 1 {
            let number = (first + index) % SLOTS;
            let slot = &self.board.slots[self.number][number];
            if slot.block.load(Relaxed) == 0 {
                self.malloc(slot, size, number, if size > 256 << 10 { at::LARGE } else { at::MALLOC });
            }
        }
    }

    fn malloc(&self, slot: &Slot, size: usize, number: usize, place: u32) -> bool {
        let block = self.at(place, || self.arena.malloc_into(size, &slot.block)) as u64;
        if block == 0 {
            self.station().failed.fetch_add(1, Relaxed);
            return false;
        }
        let stamp = board::stamp(self.pid, number);
        board::write(block, size, stamp);
        slot.size.store(size as u64, Relaxed);
        slot.stamp.store(stamp, Release);
        true
    }

    /// Frees what is in a run of slots, half the time those of another process.
    fn empty(&self, rng: &mut Rng) {
        let owner = if rng.one_in(2) { self.number } else { rng.below(self.workers) };
        let first = rng.below(SLOTS);
        for index in 0..rng.below(BURST) + 1 {
            let slot = &self.board.slots[owner][(first + index) % SLOTS];
            if self.free(slot) && owner != self.number {
                self.station().crossed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Frees a slot's block, if this process gets the right to it.
    fn free(&self, slot: &Slot) -> bool {
        let stamp = slot.stamp.load(Acquire);
        if stamp == 0 || slot.stamp.compare_exchange(stamp, 0, AcqRel, Relaxed).is_err() {
            return false;
        }
        let size = slot.size.load(Relaxed) as usize;
        if !board::verify(slot.block.load(Acquire), size, stamp) {
            self.station().torn.fetch_add(1, Relaxed);
        }
        let place = if size > 256 << 10 { at::LARGE } else { at::FREE };
        let freed = self.at(place, || self.arena.free_from(&slot.block));
        if !freed {
            self.station().refused.fetch_add(1, Relaxed);
        }
        freed
    }

    /// Bad frees of a block that nobody else can get: no other process uses its class, and a live neighbour keeps its span there.
    fn fault(&self, rng: &mut Rng) {
        let Station { anchor, bait, .. } = self.station();
        let page = self.arena.stats_page();
        let Some(size) = counters::class_sizes(page).get(Self::reserved(self.number)).copied() else { return };
        if rng.one_in(50) {
            self.free(anchor);
        }
        let has_anchor = anchor.block.load(Relaxed) != 0 || self.malloc(anchor, size, SLOTS, at::MALLOC);
        let has_bait = bait.block.load(Relaxed) != 0 || self.malloc(bait, size, SLOTS + 1, at::MALLOC);
        let (base, slice) = (page.header.base_address.load(Relaxed), page.header.slice_bytes.load(Relaxed));
        let slice_of = |slot: &Slot| (slot.block.load(Relaxed).wrapping_sub(base)) / slice;
        let block = bait.block.load(Relaxed);
        if !has_anchor || !has_bait || slice_of(anchor) != slice_of(bait) {
            self.free(bait);
            return;
        }
        self.bad_free(block + 8);
        self.bad_free(16);
        if self.free(bait) {
            self.bad_free(block);
            self.bad_free(block);
        }
    }

    fn bad_free(&self, address: u64) {
        self.at(at::FAULT, || self.arena.free(std::hint::black_box(address as *mut u8)));
        self.station().faults.fetch_add(1, Relaxed);
    }
}

/// As a server's processes would call themselves.
const ROLES: [&str; 4] = ["receiver udp", "receiver tcp", "timer", "worker"];
