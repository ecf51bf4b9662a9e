//! What the fast paths read, computed once for each process: absolute addresses and the shape of each class, side by side.
//!
//! It lies in the handle, in the process's own memory, where no other process writes.

use super::core::Entry;
use super::fill;
use super::front::{self, BLOCK, ZERO_BLOCKS};
use super::layout::Layout;
use crate::size_class::{CLASSES, COUNT, MAX_SIZE, ODD_CLASSES, SLICE_SHIFT, TABLE_MAX, class_of, divide};
use crate::sys::{rseq, thread};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use hg_probes::directory::ThreadRecord;

/// See the module. What each call reads comes first, in two cache lines.
#[repr(C, align(128))]
pub(super) struct Hot {
    /// First address of user memory, and bytes of its address space.
    pub(super) user: usize,
    cap_bytes: usize,
    /// Whether other processes use the arena.
    pub(super) is_shared: bool,
    /// Whether no two calls are ever in it at the same time.
    pub(super) is_single: bool,
    /// Offset of the thread's word for its record, of its id that indexes front caches, and of its pointer to the current
    /// sequence.
    record: isize,
    pub(super) id: isize,
    pub(super) sequence: isize,
    descriptors: usize,
    slices: usize,
    states: usize,
    state_count: usize,
    /// What cells are larger by than those of the process's own arena, bytes.
    bias: usize,
    /// In an arena that one thread uses: bytes that may be allocated until an allocation is a sample.
    pub(super) sample_left: AtomicU64,
    /// Classes of small sizes, in steps of 8 bytes.
    small: [u8; TABLE_MAX / 8 + 1],
    classes: [Shape; COUNT],
}

/// A class, as the fast paths want it.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Shape {
    reciprocal: u64,
    /// The class's array in block 0 of the front caches.
    pub(super) array: usize,
}

/// A cell of a span.
pub(super) struct Found<'a> {
    pub(super) class: usize,
    pub(super) shape: &'a Shape,
    pub(super) entry: Entry,
    pub(super) state: &'static AtomicU8,
}

impl Hot {
    /// For tables that begin at an address.
    #[allow(clippy::too_many_arguments, reason = "the parts of one structure")]
    pub(super) fn new(
        index: usize,
        tables: usize,
        user: usize,
        cap_bytes: usize,
        layout: &Layout,
        flags: u32,
        area: rseq::Area,
    ) -> Hot {
        let odd = flags & fill::ODD != 0;
        let block_0 = tables + layout.fronts + ZERO_BLOCKS * BLOCK;
        let classes = if odd { &ODD_CLASSES } else { &CLASSES };
        let bias = if odd { 8 } else { 0 };
        let shape = |class: usize| Shape {
            reciprocal: classes.get(class).map_or(0, |shape| shape.reciprocal),
            array: block_0 + front::OFFSETS.get(class).copied().unwrap_or(0) as usize,
        };
        Hot {
            user,
            cap_bytes,
            is_shared: flags & fill::SHARED != 0,
            is_single: flags & fill::SINGLE != 0,
            record: thread::record_offset(index),
            id: area.id,
            sequence: area.sequence,
            descriptors: tables + layout.descriptors,
            slices: layout.slices,
            states: tables + layout.states,
            state_count: layout.state_count(),
            bias,
            sample_left: AtomicU64::new(0),
            small: core::array::from_fn(|step| class_of((step * 8).saturating_sub(bias)) as u8),
            classes: core::array::from_fn(shape),
        }
    }

    /// The calling thread's record, if it has one already.
    #[inline(always)]
    pub(super) fn record(&self) -> Option<&'static ThreadRecord> {
        // SAFETY: S13, the word is null or the address of the thread's record, which is mapped for ever.
        unsafe { (thread::word_at(self.record) as *const ThreadRecord).as_ref() }
    }

    /// Whether an address lies in user memory.
    #[inline(always)]
    pub(super) fn owns(&self, address: usize) -> bool {
        address.wrapping_sub(self.user) < self.cap_bytes
    }

    /// The class that serves a request, if one does.
    #[inline(always)]
    pub(super) fn class_of(&self, size: usize) -> Option<usize> {
        if size <= TABLE_MAX {
            return self.small.get(size.div_ceil(8)).map(|class| (*class).into());
        }
        let size = size - self.bias;
        (size <= MAX_SIZE).then(|| class_of(size))
    }

    #[inline(always)]
    pub(super) fn shape(&self, class: usize) -> &Shape {
        self.classes.get(class).unwrap_or(&Shape::NONE)
    }

    /// The cell that begins at an address, if one does.
    #[inline(always)]
    pub(super) fn find(&self, address: usize) -> Option<Found<'_>> {
        let offset = address.wrapping_sub(self.user);
        let slice = offset >> SLICE_SHIFT;
        if slice >= self.slices {
            return None;
        }
        // SAFETY: S12, there is a word for each slice.
        let word = unsafe { &*((self.descriptors + slice * size_of::<AtomicU64>()) as *const AtomicU64) };
        let word = word.load(Relaxed);
        // What is no span has a class that is none. See `Owner::word`.
        let class = usize::from((word as u8).wrapping_sub(1));
        let shape = self.classes.get(class)?;
        let head = (word as u32 >> 8) as usize;
        let (cell, rest) = divide(offset.wrapping_sub(head << SLICE_SHIFT) as u64, shape.reciprocal);
        // Behind the last cell of a span are states that are never LIVE: one for each cell that had room in its slices.
        let index = (word >> 32) as usize + cell as usize;
        if rest >= shape.reciprocal || index >= self.state_count {
            return None;
        }
        let entry = Entry::new(offset, index);
        // SAFETY: S12, there are so many states.
        let state = unsafe { &*((self.states + index) as *const AtomicU8) };
        Some(Found { class, shape, entry, state })
    }

    /// Where the state of an entry's cell is, and the cell, if both lie inside. None has state 0.
    #[inline(always)]
    pub(super) fn cell(&self, entry: Entry) -> Option<(usize, usize)> {
        if entry.state().wrapping_sub(1) >= self.state_count - 1 || entry.offset() >= self.cap_bytes {
            return None;
        }
        Some((self.states + entry.state(), self.user + entry.offset()))
    }
}

impl Shape {
    /// That of a class that does not exist.
    const NONE: Shape = Shape { reciprocal: 0, array: 0 };
}
