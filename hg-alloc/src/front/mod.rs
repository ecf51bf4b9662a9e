//! Front caches: per CPU and class, a bounded array of free cells, popped and pushed without a lock.
//!
//! # Layout
//! One *block* per CPU (or concurrency id), in it one *array* per class: a [`Head`] of 16 bytes, then entries of 16 bytes.
//! Below block 0 lie two blocks of zeros: a thread that the kernel does not know as restartable has id -1 or -2, finds
//! `top = floor = cap = 0` there, and so an empty array that takes nothing. Nobody tests whether there are restartable
//! sequences. Behind the per-CPU blocks lie the blocks of [`slot`], for such threads.
//!
//! # Invariants
//! - A block has one guard for ever: restartable sequences ([`rseq`]) or a slot lock ([`slot`]), never both (S5).
//! - A sequence commits by one 4-byte store to `top`; whatever interrupts it leaves the array as it was or as it will be.
//! - `floor` and `cap` are written under the class's lock only. `cap = 0, floor = 0` is an array never used;
//!   `cap = 0, floor = MAX` is one that is being drained ([`drain`]).
//! - Each entry's cell is in state CACHED and stands in no other array (S1).

mod current;
pub(crate) mod drain;
pub(crate) mod rseq;
pub(crate) mod slot;

pub(crate) use current::Front;

use crate::size_class::{CLASSES, COUNT};
use crate::sys::rseq::Area;
use crate::sys::{Errno, memory};
use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use hg_probes::page::FRONT_MASK;

/// log2 of the distance of two blocks.
pub(crate) const BLOCK_SHIFT: u32 = 18;
const BLOCK: usize = 1 << BLOCK_SHIFT;

/// Blocks of zeros below block 0, one for each negative id that the kernel and the C library use.
const ZERO_BLOCKS: usize = 2;

/// Bytes of an entry.
pub(crate) const ENTRY: u32 = size_of::<crate::cell::Entry>() as u32;

/// Bytes of cells that an array may hold from the start (2 to 64 cells); its capacity grows from there on demand.
const INITIAL_BYTES: u32 = 64 << 10;

/// What stands before the entries of an array.
#[repr(C)]
pub(crate) struct Head {
    /// Two things that one store has to change. Low half: bytes of entries in the array, which is also the distance of the
    /// topmost entry from the head. High half: how many more pops until one goes to the slow path (see `sample.rs`).
    word: AtomicU32,
    /// A pop needs more than this: 0, or MAX to stop pops.
    pub(crate) floor: AtomicU32,
    /// A push needs less than this: the capacity, bytes of entries.
    pub(crate) cap: AtomicU32,
    _pad: u32,
}

/// One step of a head's countdown.
pub(crate) const COUNTDOWN_ONE: u32 = 1 << 16;

impl Head {
    /// Bytes of entries in the array.
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

    /// Whether a pop finds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.top() <= self.floor.load(Relaxed)
    }

    /// Whether a push finds no room.
    pub(crate) fn is_full(&self) -> bool {
        self.top() >= self.cap.load(Relaxed)
    }
}

/// First words of a block.
#[repr(C, align(64))]
struct BlockHead {
    /// Bytes of cells by which capacities of this block were raised above their initial ones.
    raised_bytes: AtomicU64,
}

/// Where each class's array lies in a block, bytes; a multiple of 64.
pub(crate) static OFFSETS: [u32; COUNT] = {
    let mut offsets = [0; COUNT];
    let mut offset = size_of::<BlockHead>() as u32;
    let mut class = 0;
    while class < COUNT {
        offsets[class] = offset;
        offset += (CLASSES[class].front_max + 1) * ENTRY;
        class += 1;
    }
    assert!(offset as usize <= BLOCK);
    offsets
};

/// Bytes of a block up to the end of its last array.
const ARRAYS_BYTES: usize = OFFSETS[COUNT - 1] as usize + (CLASSES[COUNT - 1].front_max as usize + 1) * ENTRY as usize;

/// All front caches of an arena. Written once, at the arena's start.
pub(crate) struct Fronts {
    blocks: AtomicUsize,
    rseq_blocks: AtomicUsize,
    /// Where a thread finds its id, and its pointer to the current sequence.
    id: AtomicIsize,
    sequence: AtomicIsize,
    /// One more than the highest id seen on a slow path: blocks from there on were never touched.
    used: AtomicUsize,
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
            slots: slot::Slots::new(),
            drain: drain::Turn::new(),
        }
    }

    /// Maps the blocks for ids below `ids`, and those of the slots.
    pub(crate) fn start(&self, area: Area, ids: usize) -> Result<(), Errno> {
        let bytes = (ZERO_BLOCKS + ids + slot::COUNT) * BLOCK;
        let region = memory::reserve(bytes)?;
        memory::commit(region, bytes)?;
        self.blocks.store(region + ZERO_BLOCKS * BLOCK, Relaxed);
        self.rseq_blocks.store(ids, Relaxed);
        self.id.store(area.id, Relaxed);
        self.sequence.store(area.sequence, Relaxed);
        Ok(())
    }

    /// Address of block 0.
    pub(crate) fn address(&self) -> usize {
        self.blocks.load(Relaxed)
    }

    /// Number of blocks guarded by restartable sequences.
    pub(crate) fn rseq_blocks(&self) -> usize {
        self.rseq_blocks.load(Relaxed)
    }

    /// Distance of two blocks, bytes.
    pub(crate) const fn stride() -> usize {
        BLOCK
    }

    /// Bytes of the arrays of all blocks used so far, whether touched or not.
    pub(crate) fn bytes(&self) -> usize {
        let slots = self.used.load(Relaxed).saturating_sub(self.rseq_blocks()).min(slot::COUNT);
        (self.used.load(Relaxed).min(self.rseq_blocks()) + slots) * ARRAYS_BYTES
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

    fn block_head(&self, block: usize) -> &BlockHead {
        // SAFETY: S5, as for `head`.
        unsafe { &*(self.block_address(block) as *const BlockHead) }
    }

    /// Sets the capacity of an array that was never used. Under the class's lock.
    pub(crate) fn open(&self, block: usize, class: usize) {
        let head = self.head(block, class);
        if head.cap.load(Relaxed) == 0 && head.floor.load(Relaxed) == 0 {
            self.mark_used(block);
            head.cap.store(initial_cap(class), Relaxed);
        }
    }

    /// Doubles the capacity of an array that overflowed, within `budget` bytes of cells for the block. Returns whether it
    /// grew. Under the class's lock.
    pub(crate) fn raise(&self, block: usize, class: usize, budget: u64) -> bool {
        let (head, Some(shape)) = (self.head(block, class), CLASSES.get(class)) else { return false };
        let cap = head.cap.load(Relaxed);
        let raised = (cap * 2).min(shape.front_max * ENTRY);
        if cap == 0 || raised <= cap {
            return false;
        }
        let cost = u64::from((raised - cap) / ENTRY) * u64::from(shape.size);
        let spent = &self.block_head(block).raised_bytes;
        if spent.load(Relaxed) + cost > budget {
            return false;
        }
        spent.fetch_add(cost, Relaxed);
        head.cap.store(raised, Relaxed);
        true
    }
}

fn initial_cap(class: usize) -> u32 {
    CLASSES.get(class).map_or(0, |shape| (INITIAL_BYTES / shape.size).clamp(2, 64) * ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_fill_whole_lines_and_no_large_stride_is_a_power_of_two() {
        for (class, shape) in CLASSES.iter().enumerate() {
            let bytes = (shape.front_max + 1) * ENTRY;
            assert!(OFFSETS[class].is_multiple_of(64) && bytes.is_multiple_of(64));
            // Heads at small powers of two still spread over the sets of the L1 cache.
            assert!(!bytes.is_power_of_two() || bytes < 2048, "class {}", shape.size);
            assert!(OFFSETS[class] / 64 <= u32::from(u16::MAX));
            assert!(initial_cap(class) <= shape.front_max * ENTRY);
        }
    }
}
