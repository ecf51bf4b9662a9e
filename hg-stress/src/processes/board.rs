//! What all processes of a run share beside the arena's own tables: a table in the arena itself, so that it has the same address
//! everywhere, and slots may stand in it.
//!
//! A slot's block is changed by [`Arena::malloc_into`] and [`Arena::free_from`] alone. Its `stamp` is the right to the block: the
//! slot's home process writes it once the block is stamped all over, and whoever swaps it for 0 may free the block. A process
//! that dies with that right leaves a block without a stamp, which the next census finds and frees.

use std::sync::atomic::{AtomicU32, AtomicU64};

use hg_alloc::shared::Arena;

/// Slots of each process.
pub(crate) const SLOTS: usize = 768;

/// The most processes.
pub(crate) const WORKERS: usize = 64;

/// What a process is at, in its own words.
pub(crate) mod at {
    /// Something of its own: choosing, stamping, verifying.
    pub(crate) const OWN: u32 = 0;
    /// A malloc of a cell.
    pub(crate) const MALLOC: u32 = 1;
    /// A free of a cell.
    pub(crate) const FREE: u32 = 2;
    /// A large object, allocated or freed.
    pub(crate) const LARGE: u32 = 3;
    /// A bad call, on purpose.
    pub(crate) const FAULT: u32 = 4;
}

/// Whether processes fill slots or empty them, mostly.
pub(crate) mod tide {
    /// Fill.
    pub(crate) const PARK: u32 = 0;
    /// Empty.
    pub(crate) const RELEASE: u32 = 1;
}

/// A block and who has the right to it.
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) block: AtomicU64,
    pub(crate) stamp: AtomicU64,
    /// Bytes asked for.
    pub(crate) size: AtomicU64,
}

/// What a process says of itself. Counts go on when it is replaced.
#[repr(C, align(128))]
pub(crate) struct Station {
    /// A constant of [`at`].
    pub(crate) at: AtomicU32,
    /// Calls of malloc and free.
    pub(crate) calls: AtomicU64,
    /// Blocks freed that another process allocated.
    pub(crate) crossed: AtomicU64,
    /// Allocations for which there was no memory.
    pub(crate) failed: AtomicU64,
    /// Blocks that did not hold their stamp.
    pub(crate) torn: AtomicU64,
    /// Slots with a stamp whose block nobody could free.
    pub(crate) refused: AtomicU64,
    /// Bad calls made.
    pub(crate) faults: AtomicU64,
    /// Two blocks of the class that no other process uses, for faults.
    pub(crate) anchor: Slot,
    pub(crate) bait: Slot,
}

/// The table.
#[repr(C)]
pub(crate) struct Board {
    /// A constant of [`tide`].
    pub(crate) tide: AtomicU32,
    pub(crate) stations: [Station; WORKERS],
    pub(crate) slots: [[Slot; SLOTS]; WORKERS],
}

impl Board {
    /// A fresh one in an arena. `None` if that has no room.
    pub(crate) fn new(arena: &Arena) -> Option<&'static Board> {
        let place = arena.aligned(4096, size_of::<Board>());
        if place.is_null() {
            return None;
        }
        // SAFETY: the block is as large and aligned as that, is never freed, and zeros are a board.
        unsafe {
            place.write_bytes(0, size_of::<Board>());
            Some(&*place.cast())
        }
    }

    /// All slots, those for faults too.
    pub(crate) fn all_slots(&self) -> impl Iterator<Item = &Slot> {
        let faulty = self.stations.iter().flat_map(|station| [&station.anchor, &station.bait]);
        self.slots.iter().flatten().chain(faulty)
    }

    /// A count of all stations.
    pub(crate) fn sum(&self, count: impl Fn(&Station) -> &AtomicU64) -> u64 {
        self.stations.iter().map(|station| count(station).load(std::sync::atomic::Ordering::Relaxed)).sum()
    }
}

/// The word that fills a block: who allocated it, and for which slot.
pub(crate) fn stamp(pid: u32, slot: usize) -> u64 {
    u64::from(pid) << 32 | (slot as u64 + 1)
}

/// Where the words lie that are stamped: all of a small block; the ends of a larger one, and one in each 512 bytes.
fn places(size: usize) -> impl Iterator<Item = usize> {
    let words = size / 8;
    let step = if size <= 4096 { 1 } else { 64 };
    let last = words.checked_sub(1);
    (0..words).step_by(step).chain(last)
}

/// Fills a block of at least `size` bytes.
pub(crate) fn write(block: u64, size: usize, stamp: u64) {
    for word in places(size) {
        // SAFETY: the caller has the block, which is aligned to 16.
        unsafe { (block as *mut u64).add(word).write_volatile(stamp) };
    }
}

/// Whether a block is still filled.
pub(crate) fn verify(block: u64, size: usize, stamp: u64) -> bool {
    // SAFETY: as above.
    places(size).all(|word| unsafe { (block as *const u64).add(word).read_volatile() } == stamp)
}
