//! The head of an arena's tables: what all its processes share and what stands under which lock.
//!
//! All zero is its state before the start, and every word is an atomic, as others write at the same time. Words under a lock are
//! changed through its [`Guard`](super::lock::Guard) alone, which can undo that; those without a lock say so.

use super::lock::Lock;
use crate::elastic::policy::Policy;
use crate::size_class::COUNT;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// First word of the tables: `hg.arena` in ASCII, little endian.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"hg.arena");

/// Version of the tables' layout.
pub(super) const VERSION: u32 = 1;

/// What two builds of one version may still differ in: how large their structures are.
pub(super) const FINGERPRINT: u64 = (size_of::<Core>() as u64) << 32 | (size_of::<Turn>() as u64) << 16 | COUNT as u64;

/// Entries of a transfer cache.
pub(super) const TRANSFER: usize = 256;

/// See the module.
#[repr(C)]
pub(super) struct Core {
    /// [`MAGIC`], written last at the start.
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    /// CPUs that the layout was made for.
    pub(super) cpus: AtomicU32,
    pub(super) cap_bytes: AtomicU64,
    /// Where tables and user memory lie, in every process.
    pub(super) tables: AtomicU64,
    pub(super) user: AtomicU64,
    pub(super) stats: AtomicU64,
    /// Process that made the arena, in its own pid namespace.
    pub(super) creator: AtomicU32,
    /// What the arena was asked to be, see `create.rs`.
    pub(super) flags: AtomicU32,
    /// [`FINGERPRINT`] of who made it.
    pub(super) fingerprint: AtomicU64,
    /// Bytes of cells that the arrays of all front caches may hold. No lock.
    pub(super) front_bytes: AtomicU64,
    /// Somebody died with a lock: what else he had is to be looked for. No lock.
    pub(super) somebody_died: AtomicU32,
    /// Whether somebody has a limit of the system in the way, until when growth is not tried again, and why. No lock.
    pub(super) blocked_until_ns: AtomicU64,
    pub(super) blocked_cause: AtomicU32,
    /// Pages that are to stay committed.
    pub(super) floor_pages: AtomicU32,
    /// The most that may be committed.
    pub(super) ceiling_pages: AtomicU32,
    /// Idle decay of the arena, and when its epoch began. Who maintains it writes them.
    pub(super) epoch_ns: AtomicU64,
    pub(super) epoch_began_ns: AtomicU64,
    /// Fewest free slices since then. No lock: approximate.
    pub(super) low_water: AtomicU32,

    /// Until when growths pass the hugetlb pool by. No lock.
    pub(super) pool_empty_until_ns: AtomicU64,
    /// State of the draws between two samples. No lock.
    pub(super) random: AtomicU64,
    /// Entries of cells that a signal handler could not put back. No lock: a place belongs to who put an entry there.
    pub(super) deferred: [AtomicU64; 64],

    /// The grid: pages, runs of slices, large objects, and who has which record of the directory.
    pub(super) grid: Grid,
    /// Held by who maintains the arena.
    pub(super) turn: Turn,
    pub(super) pools: [Pool; COUNT],
}

/// What stands under the grid lock, beside the tables of pages, free bits, descriptors and runs.
#[repr(C, align(128))]
pub(super) struct Grid {
    pub(super) lock: Lock,
    pub(super) committed_pages: AtomicU32,
    pub(super) busy_pages: AtomicU32,
    pub(super) free_slices: AtomicU32,
    pub(super) span_slices: AtomicU32,
    pub(super) large_slices: AtomicU32,
    pub(super) large_count: AtomicU32,
    /// Records of threads that are in use or were.
    pub(super) threads: AtomicU32,
    /// Record, plus one, of the thread that is growing the arena; 0 for none.
    pub(super) growing: AtomicU32,
    /// No page below this has a free slice. Only a hint, never too high.
    pub(super) first_free: AtomicU32,
    pub(super) _pad: AtomicU32,
    pub(super) large_allocs: AtomicU64,
    pub(super) large_frees: AtomicU64,
}

/// What stands under a class's lock, beside the records of its spans and the states CENTRAL.
#[repr(C, align(128))]
pub(super) struct Pool {
    pub(super) lock: Lock,
    /// Entries of the transfer cache; those above are rubbish.
    pub(super) transfer_len: AtomicU32,
    /// Slice, plus one, of the first span with recycled cells; 0 for none.
    pub(super) partial: AtomicU32,
    /// Slice, plus one, of the span that is being carved.
    pub(super) carving: AtomicU32,
    pub(super) spans: AtomicU32,
    /// Slice, plus one, of a span on its way from the grid, and of one on its way back.
    pub(super) taking: AtomicU32,
    pub(super) returning: AtomicU32,
    /// Record, plus one, of the thread that stopped the class's front caches.
    pub(super) stopped_by: AtomicU32,
    /// Calls that the last epoch of maintenance saw.
    pub(super) seen: AtomicU32,
    /// Recycled cells in spans, and cells never used.
    pub(super) free_cells: AtomicU64,
    pub(super) uncarved: AtomicU64,
    pub(super) transfer: [AtomicU64; TRANSFER],
}

/// The right to maintain the arena, and what its holder remembers.
#[repr(C, align(64))]
pub(super) struct Turn {
    pub(super) mutex: super::mutex::Mutex,
    /// Written at the start, then by who has the turn.
    pub(super) policy: UnsafeCell<Option<Policy>>,
}

// SAFETY: S14, the policy is touched by who starts the arena, then by who has the turn.
unsafe impl Sync for Turn {}

impl Core {
    /// The pool of a class.
    #[inline]
    pub(super) fn pool(&self, class: usize) -> &Pool {
        self.pools.get(class).unwrap_or(&self.pools[0])
    }
}

impl Pool {
    /// Whether somebody stopped the class's front caches.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped_by.load(Relaxed) != 0
    }
}

/// What a descriptor says of the slice it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// Nobody, or the inside of a large object.
    Nobody,
    /// The span of a class that begins at a slice.
    Span { class: usize, head: usize },
    /// A large object that begins here.
    Large,
}

/// The low byte of a descriptor: 0 for nobody, a class plus one, or this.
const LARGE: u64 = 0xff;

impl Owner {
    /// From the descriptor's word: class, first slice, and above them the first cell's state, for the fast path. Checked by who
    /// uses it.
    #[inline(always)]
    pub(super) fn from_word(word: u64) -> Owner {
        match word & 0xff {
            0 => Owner::Nobody,
            LARGE => Owner::Large,
            class => Owner::Span { class: class as usize - 1, head: (word as u32 >> 8) as usize },
        }
    }

    /// The descriptor's word; a span's first cell has the `first_state`-th state.
    pub(super) fn word(self, first_state: usize) -> u64 {
        match self {
            Owner::Nobody => 0,
            Owner::Span { class, head } => (class as u64 + 1) | (head as u64) << 8 | (first_state as u64) << 32,
            Owner::Large => LARGE,
        }
    }
}

/// An entry: where a cell is, and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(pub(super) u64);

impl Entry {
    /// Of the cell so many bytes into user memory, whose state is the `state`-th.
    #[inline(always)]
    pub(super) fn new(offset: usize, state: usize) -> Entry {
        Entry((state as u64) << 32 | (offset >> 3) as u64)
    }

    /// Marks a large object in a thread's record, which begins at a slice.
    pub(super) fn large(slice: usize) -> Entry {
        Entry(u64::MAX << 32 | slice as u64)
    }

    /// The slice of a large object, if it is one.
    pub(super) fn large_slice(self) -> Option<usize> {
        (self.0 >> 32 == u64::from(u32::MAX)).then_some(self.0 as u32 as usize)
    }

    /// Bytes into user memory.
    #[inline(always)]
    pub(super) fn offset(self) -> usize {
        (self.0 as u32 as usize) << 3
    }

    /// The number of the state.
    #[inline(always)]
    pub(super) fn state(self) -> usize {
        (self.0 >> 32) as usize
    }
}
