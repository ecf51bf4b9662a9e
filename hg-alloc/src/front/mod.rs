//! Front caches: per CPU and class, a bounded array of free cells, popped and pushed without a lock.
//!
//! # Layout
//! One *block* per CPU (or concurrency id). It begins with the *small arrays* of all classes, a cache line each: a [`Head`] of
//! 16 bytes and three entries of 16. So a program that does little touches one page of a block, and a cell that goes to and
//! fro one line. An array that overflows or runs dry moves to the *zone* of its class further up, once and for all until a
//! drain; head and entries count in places from the head, so pops and pushes do not know the difference.
//!
//! Below block 0 lie two blocks of zeros: a thread that the kernel does not know as restartable has id -1 or -2, finds
//! `top = floor = cap = 0` there, and so an empty array that takes nothing. Nobody tests whether there are restartable
//! sequences. Behind the per-CPU blocks lie the blocks of [`slot`], for such threads.
//!
//! # Invariants
//! - A block has one guard for ever: restartable sequences ([`rseq`]) or a slot lock ([`slot`]), never both (S5).
//! - A sequence commits by one store to the head; whatever interrupts it leaves the array as it was or as it will be.
//! - `floor` and `cap` are written under the class's lock only. `cap = 0, floor = 0` is an array never used;
//!   `cap = 0, floor = MAX` is one that is being drained ([`drain`]).
//! - The floor of an open array is 0 (small) or the place of its class's zone, and so tells which of the two it is.
//! - Each entry's cell is in state CACHED and stands in no other array (S1).

mod current;
pub(crate) mod drain;
pub(crate) mod rseq;
pub(crate) mod slot;

pub(crate) use current::Front;

use crate::cell::Entry;
use crate::size_class::{CLASSES, COUNT, size_of_class};
use crate::sys::rseq::Area;
use crate::sys::{Errno, memory, pages};
use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use hg_probes::page::{FRONT_MASK, FRONT_UNIT};

/// log2 of the distance of two blocks.
pub(crate) const BLOCK_SHIFT: u32 = 18;
const BLOCK: usize = 1 << BLOCK_SHIFT;

/// Blocks of zeros below block 0, one for each negative id that the kernel and the C library use.
const ZERO_BLOCKS: usize = 2;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: u32 = size_of::<Entry>() as u32;

/// Places that an entry takes.
pub(crate) const ENTRY: u32 = ENTRY_BYTES / FRONT_UNIT;

/// The highest place of a small array.
const SMALL_MAX: u32 = 3 * ENTRY;

/// Bytes of cells that an array may hold when it moves to its zone (at most 64 cells); from there on demand doubles it.
const INITIAL_BYTES: u32 = 64 << 10;

/// What stands before the entries of an array.
#[repr(C)]
pub(crate) struct Head {
    /// Two things that one store has to change. Low half: the place of the topmost entry, in units of 8 bytes from the head;
    /// the entry stands behind it. High half: how many more pops until one goes to the slow path (see `sample.rs`).
    word: AtomicU32,
    /// A pop needs a place higher than this: 0 or the zone's, or MAX to stop pops.
    pub(crate) floor: AtomicU32,
    /// A push needs a place lower than this: the capacity.
    pub(crate) cap: AtomicU32,
    _pad: u32,
}

/// One step of a head's countdown.
pub(crate) const COUNTDOWN_ONE: u32 = 1 << 16;

impl Head {
    /// The place of the topmost entry.
    pub(crate) fn top(&self) -> u32 {
        self.word.load(Relaxed) & FRONT_MASK
    }

    /// Pops until one goes to the slow path.
    pub(crate) fn countdown(&self) -> u16 {
        (self.word.load(Relaxed) / COUNTDOWN_ONE) as u16
    }

    /// Whether the countdown is over.
    pub(crate) fn countdown_over(&self) -> bool {
        self.countdown() == 0
    }

    /// Whether the array was used since it was last zeros.
    pub(crate) fn is_open(&self) -> bool {
        self.cap.load(Relaxed) != 0
    }

    /// Whether the array is open, and no larger than its line.
    fn is_small(&self) -> bool {
        self.is_open() && self.floor.load(Relaxed) == 0
    }

    /// Whether a pop finds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.top() <= self.floor.load(Relaxed)
    }

    /// Whether a push finds no room.
    pub(crate) fn is_full(&self) -> bool {
        self.top() >= self.cap.load(Relaxed)
    }
}

/// First words of a block. Behind the small arrays stand the words that the last epoch of maintenance saw in each head.
#[repr(C, align(64))]
struct BlockHead {
    /// Bytes of cells that the zones of this block may hold: the sum of their capacities.
    zone_cells_bytes: AtomicU64,
    /// Whether an array of this block was used since the block was last given back.
    in_use: AtomicU32,
    /// Bytes of its first page, and of the zones used since then.
    touched: AtomicU32,
}

/// Bytes of a small array with its head.
const LINE: u32 = 64;

/// Where each class's array lies in a block, bytes.
pub(crate) static OFFSETS: [u32; COUNT] = {
    let mut offsets = [0; COUNT];
    let mut class = 0;
    while class < COUNT {
        offsets[class] = size_of::<BlockHead>() as u32 + class as u32 * LINE;
        class += 1;
    }
    offsets
};

/// Where the words lie that the last epoch saw, bytes into a block.
const SEEN: u32 = OFFSETS[COUNT - 1] + LINE;

/// The class of the array that lies so many bytes into a block.
pub(crate) fn class_of_offset(offset: usize) -> usize {
    offset.wrapping_sub(size_of::<BlockHead>()) / LINE as usize
}

/// The place of each class's zone, as its array's head counts.
pub(crate) static ZONES: [u32; COUNT] = {
    let mut zones = [0; COUNT];
    let mut at = memory::BASE_PAGE as u32;
    let mut class = 0;
    assert!(SEEN + COUNT as u32 * 4 <= at);
    while class < COUNT {
        // The first entry stands one entry behind the place.
        zones[class] = (at - OFFSETS[class] - ENTRY_BYTES) / FRONT_UNIT;
        at += zone_bytes(class);
        class += 1;
    }
    assert!(at as usize <= BLOCK && at / FRONT_UNIT <= FRONT_MASK);
    zones
};

/// Bytes of a class's zone; never a power of two, or the zones would meet in the same sets of the L1 cache.
const fn zone_bytes(class: usize) -> u32 {
    (CLASSES[class].front_max + 1) * ENTRY_BYTES
}

/// All front caches of an arena. Written once, at the arena's start.
pub(crate) struct Fronts {
    blocks: AtomicUsize,
    rseq_blocks: AtomicUsize,
    /// Where a thread finds its id, and its pointer to the current sequence.
    id: AtomicIsize,
    sequence: AtomicIsize,
    /// One more than the highest id seen on a slow path: blocks from there on were never touched.
    used: AtomicUsize,
    /// Bytes of first pages and zones in use.
    touched: AtomicUsize,
    slots: slot::Slots,
    drain: drain::Turn,
}

impl Fronts {
    pub(crate) const fn new() -> Self {
        Fronts {
            blocks: AtomicUsize::new(0),
            rseq_blocks: AtomicUsize::new(0),
            id: AtomicIsize::new(0),
            sequence: AtomicIsize::new(0),
            used: AtomicUsize::new(0),
            touched: AtomicUsize::new(0),
            slots: slot::Slots::new(),
            drain: drain::Turn::new(),
        }
    }

    /// Maps the blocks for ids below `ids`, and those of the slots.
    pub(crate) fn start(&self, area: Area, ids: usize) -> Result<(), Errno> {
        let bytes = region_bytes(ids);
        let region = memory::reserve(bytes)?;
        if let Err(errno) = memory::commit(region, bytes) {
            memory::unmap(region, bytes);
            return Err(errno);
        }
        // A huge page for each block that is touched would be a waste. Kernels without them refuse.
        let _ = pages::avoid_huge(region, bytes);
        self.blocks.store(region + ZERO_BLOCKS * BLOCK, Relaxed);
        self.rseq_blocks.store(ids, Relaxed);
        self.id.store(area.id, Relaxed);
        self.sequence.store(area.sequence, Relaxed);
        Ok(())
    }

    /// Unmaps the blocks again, if there are any: the arena's start failed.
    pub(crate) fn end(&self) {
        let blocks = self.blocks.swap(0, Relaxed);
        if blocks != 0 {
            memory::unmap(blocks - ZERO_BLOCKS * BLOCK, region_bytes(self.rseq_blocks()));
        }
    }

    /// Address of block 0.
    pub(crate) fn address(&self) -> usize {
        self.blocks.load(Relaxed)
    }

    /// Number of blocks guarded by restartable sequences.
    pub(crate) fn rseq_blocks(&self) -> usize {
        self.rseq_blocks.load(Relaxed)
    }

    /// Number of blocks that share the budget: the slots where there are no restartable sequences.
    pub(crate) fn blocks_in_use(&self) -> usize {
        match self.rseq_blocks() {
            0 => slot::COUNT,
            blocks => blocks,
        }
    }

    /// Distance of two blocks, bytes.
    pub(crate) const fn stride() -> usize {
        BLOCK
    }

    /// Bytes of the arrays that were used since the last drain.
    pub(crate) fn bytes(&self) -> usize {
        self.touched.load(Relaxed)
    }

    /// Bytes of cells in all arrays, about: they change meanwhile.
    pub(crate) fn cells_bytes(&self) -> u64 {
        let blocks = (0..self.used.load(Relaxed)).filter(|block| self.block_head(*block).in_use.load(Relaxed) != 0);
        let cells = |block: usize, class: usize| {
            let head = self.head(block, class);
            head.top().saturating_sub(head.floor.load(Relaxed)) / ENTRY * size_of_class(class)
        };
        blocks.map(|block| (0..COUNT).map(|class| u64::from(cells(block, class))).sum::<u64>()).sum()
    }

    /// Remembers that a block may hold entries from now on.
    fn mark_used(&self, block: usize) {
        if block >= self.used.load(Relaxed) {
            self.used.fetch_max(block + 1, Relaxed);
        }
    }

    /// The head of a class's array in a block.
    pub(crate) fn head(&self, block: usize, class: usize) -> &Head {
        let offset = OFFSETS.get(class).copied().unwrap_or(OFFSETS[0]) as usize;
        // SAFETY: S5, blocks up to the last slot's are mapped for ever; all callers pass ids of this arena.
        unsafe { &*((self.block_address(block) + offset) as *const Head) }
    }

    /// What a sequence on a class's array needs: the array in block 0, and the two offsets.
    fn place(&self, class: usize) -> (usize, isize, isize) {
        (self.array(class), self.id.load(Relaxed), self.sequence.load(Relaxed))
    }

    /// Address of a class's array in block 0.
    pub(crate) fn array(&self, class: usize) -> usize {
        self.address() + OFFSETS.get(class).copied().unwrap_or(OFFSETS[0]) as usize
    }

    fn block_address(&self, block: usize) -> usize {
        self.address() + block * BLOCK
    }

    /// The word that the last epoch saw in the head of a class's array.
    fn seen(&self, block: usize, class: usize) -> &AtomicU32 {
        let offset = SEEN as usize + class.min(COUNT - 1) * size_of::<AtomicU32>();
        // SAFETY: S5, as for `head`.
        unsafe { &*((self.block_address(block) + offset) as *const AtomicU32) }
    }

    fn block_head(&self, block: usize) -> &BlockHead {
        // SAFETY: S5, as for `head`.
        unsafe { &*(self.block_address(block) as *const BlockHead) }
    }

    /// Sets the capacity of an array that has none: never used, or drained. Under the class's lock.
    pub(crate) fn open(&self, block: usize, class: usize) {
        let head = self.head(block, class);
        if head.is_open() || head.floor.load(Relaxed) == u32::MAX {
            return;
        }
        self.mark_used(block);
        let first = self.block_head(block);
        if first.in_use.swap(1, Relaxed) == 0 {
            self.touch(block, memory::BASE_PAGE as u32);
        }
        if head.floor.load(Relaxed) == 0 {
            return head.cap.store(small_cap(class), Relaxed);
        }
        // Stopped by a drain that could not take it.
        first.zone_cells_bytes.fetch_add(initial_bytes(class), Relaxed);
        head.cap.store(zone(class) + initial_cap(class), Relaxed);
    }

    /// Doubles the capacity of an array in its zone, within `budget` bytes of cells for the block. Under the class's lock.
    fn double(&self, block: usize, class: usize, budget: u64) -> bool {
        let (head, Some(shape)) = (self.head(block, class), CLASSES.get(class)) else { return false };
        let cap = head.cap.load(Relaxed).saturating_sub(zone(class));
        let raised = (cap * 2).min(shape.front_max * ENTRY);
        if raised <= cap {
            return false;
        }
        let cost = u64::from((raised - cap) / ENTRY) * u64::from(shape.size);
        let pays = self.pays(block, cost, budget);
        if pays {
            self.block_head(block).zone_cells_bytes.fetch_add(cost, Relaxed);
            head.cap.store(zone(class) + raised, Relaxed);
        }
        pays
    }

    /// Whether a block's zones may hold so many bytes of cells more.
    fn pays(&self, block: usize, cost: u64, budget: u64) -> bool {
        self.block_head(block).zone_cells_bytes.load(Relaxed) + cost <= budget
    }

    fn touch(&self, block: usize, bytes: u32) {
        self.block_head(block).touched.fetch_add(bytes, Relaxed);
        self.touched.fetch_add(bytes as usize, Relaxed);
    }

    /// Remembers that an array moved to its zone, and sets its capacity there. Under the class's lock.
    fn note_enlarged(&self, block: usize, class: usize) {
        self.touch(block, zone_bytes(class));
        self.block_head(block).zone_cells_bytes.fetch_add(initial_bytes(class), Relaxed);
        self.head(block, class).cap.store(zone(class) + initial_cap(class), Relaxed);
    }
}

/// Bytes of all blocks where so many ids have one.
const fn region_bytes(ids: usize) -> usize {
    (ZERO_BLOCKS + ids + slot::COUNT) * BLOCK
}

/// Where a class's zone begins, bytes into a block; for the class behind the last, where the last zone ends.
fn zone_start(class: usize) -> usize {
    match (OFFSETS.get(class), ZONES.get(class)) {
        (Some(offset), Some(zone)) => (offset + (zone + ENTRY) * FRONT_UNIT) as usize,
        _ => zone_start(COUNT - 1) + zone_bytes(COUNT - 1) as usize,
    }
}

/// The place of a class's zone.
fn zone(class: usize) -> u32 {
    ZONES.get(class).copied().unwrap_or(0)
}

/// Places of a small array: three entries, or two of the largest cells.
fn small_cap(class: usize) -> u32 {
    CLASSES.get(class).map_or(0, |shape| (INITIAL_BYTES / shape.size).clamp(2, SMALL_MAX / ENTRY) * ENTRY)
}

/// Places that a zone's entries may take at first.
fn initial_cap(class: usize) -> u32 {
    CLASSES.get(class).map_or(0, |shape| (INITIAL_BYTES / shape.size).clamp(4, 64) * ENTRY)
}

/// Bytes of the cells that a zone holds at first.
fn initial_bytes(class: usize) -> u64 {
    CLASSES.get(class).map_or(0, |shape| u64::from(initial_cap(class) / ENTRY) * u64::from(shape.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_arrays_fill_a_page_and_zones_lie_apart() {
        assert!(SEEN + COUNT as u32 * 4 <= 4096);
        let mut last = 4096;
        for (class, shape) in CLASSES.iter().enumerate() {
            assert_eq!(class_of_offset(OFFSETS[class] as usize), class);
            assert!(OFFSETS[class].is_multiple_of(LINE));
            let begin = zone_start(class) as u32;
            assert_eq!(begin, last, "class {}", shape.size);
            last = begin + zone_bytes(class);
            // Entries at small powers of two still spread over the sets of the L1 cache.
            assert!(!zone_bytes(class).is_power_of_two() || zone_bytes(class) < 2048, "class {}", shape.size);
            assert!(small_cap(class) <= SMALL_MAX && small_cap(class) < initial_cap(class));
            assert!(initial_cap(class) <= shape.front_max * ENTRY);
        }
        assert_eq!(last as usize, zone_start(COUNT));
        assert!(last as usize <= BLOCK);
    }
}
