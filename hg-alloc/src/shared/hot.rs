//! What the fast paths read, computed once for each process: absolute addresses and the shape of each class, side by side.
//!
//! It lies in the handle, in the process's own memory, where no other process writes.

use super::core::{Entry, Owner};
use super::front::{self, BLOCK, ZERO_BLOCKS};
use super::layout::{COARSE_FROM, COARSE_STATES, FINE_STATES, Layout};
use crate::size_class::{CLASSES, COUNT, MAX_SIZE, ODD_CLASSES, SLICE_SHIFT, TABLE_MAX, class_of, divide, log2};
use crate::sys::{rseq, thread};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use hg_probes::directory::ThreadRecord;

/// See the module.
pub(super) struct Hot {
    /// First address of user memory.
    pub(super) user: usize,
    /// Offset of the thread's word for its record, of its id that indexes front caches, and of its pointer to the current
    /// sequence.
    record: isize,
    pub(super) id: isize,
    pub(super) sequence: isize,
    descriptors: usize,
    slices: usize,
    states: usize,
    state_count: usize,
    cap_bytes: usize,
    /// What cells are larger by than those of the process's own arena, bytes.
    bias: usize,
    classes: [Shape; COUNT],
}

/// A class, as the fast paths want it.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Shape {
    reciprocal: u64,
    /// The class's array in block 0 of the front caches.
    pub(super) array: usize,
    cells: u32,
    /// The state of the first cell of a span at slice 0, and by how many bits a slice's number is shifted.
    first_state: u32,
    shift: u32,
}

/// Classes of the small sizes, in steps of 16 bytes.
static SMALL: [u8; TABLE_MAX / 16 + 1] = {
    let mut classes = [0; TABLE_MAX / 16 + 1];
    let mut step = 0;
    while step < classes.len() {
        classes[step] = class_of(step * 16) as u8;
        step += 1;
    }
    classes
};

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
        odd: bool,
        area: rseq::Area,
    ) -> Hot {
        let block_0 = tables + layout.fronts + ZERO_BLOCKS * BLOCK;
        let classes = if odd { &ODD_CLASSES } else { &CLASSES };
        let shape = |class: usize| {
            let Some(shape) = classes.get(class) else { return Shape::NONE };
            let fine = shape.size < COARSE_FROM;
            Shape {
                reciprocal: shape.reciprocal,
                array: block_0 + front::OFFSETS.get(class).copied().unwrap_or(0) as usize,
                cells: shape.cells,
                first_state: layout.states_of(0, shape.size) as u32,
                shift: log2(if fine { FINE_STATES } else { COARSE_STATES }),
            }
        };
        Hot {
            user,
            record: thread::record_offset(index),
            id: area.id,
            sequence: area.sequence,
            descriptors: tables + layout.descriptors,
            slices: layout.slices,
            states: tables + layout.states,
            state_count: layout.state_count(),
            cap_bytes,
            bias: if odd { 8 } else { 0 },
            classes: core::array::from_fn(shape),
        }
    }

    /// The calling thread's record, if it has one already.
    #[inline(always)]
    pub(super) fn record(&self) -> Option<&'static ThreadRecord> {
        // SAFETY: S13, the word is null or the address of the thread's record, which is mapped for ever.
        unsafe { (thread::word_at(self.record) as *const ThreadRecord).as_ref() }
    }

    /// The class that serves a request, if one does.
    #[inline(always)]
    pub(super) fn class_of(&self, size: usize) -> Option<usize> {
        let size = size.saturating_sub(self.bias);
        match SMALL.get(size.div_ceil(16)) {
            Some(class) => Some((*class).into()),
            None => (size <= MAX_SIZE).then(|| class_of(size)),
        }
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
        let Owner::Span { class, head } = Owner::from_word(word.load(Relaxed)) else { return None };
        let shape = self.classes.get(class)?;
        let (cell, rest) = divide(offset.wrapping_sub(head << SLICE_SHIFT) as u64, shape.reciprocal);
        let index = shape.first_state as usize + (head << shape.shift) + cell as usize;
        if rest >= shape.reciprocal || cell >= u64::from(shape.cells) || index >= self.state_count {
            return None;
        }
        let entry = Entry::new(offset, index);
        // SAFETY: S12, there are so many states.
        let state = unsafe { &*((self.states + index) as *const AtomicU8) };
        Some(Found { class, shape, entry, state })
    }

    /// The state and the address of an entry's cell, if both lie inside.
    #[inline(always)]
    pub(super) fn cell(&self, entry: Entry) -> Option<(&'static AtomicU8, usize)> {
        if entry.offset() >= self.cap_bytes || entry.state() >= self.state_count {
            return None;
        }
        // SAFETY: S12, there are so many states.
        let state = unsafe { &*((self.states + entry.state()) as *const AtomicU8) };
        Some((state, self.user + entry.offset()))
    }
}

impl Shape {
    /// That of a class that does not exist.
    const NONE: Shape = Shape { reciprocal: 0, array: 0, cells: 0, first_state: 0, shift: 0 };
}
