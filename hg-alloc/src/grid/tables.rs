//! The tables of an arena: where they lie, and what a slice's records say.
//!
//! ```text
//! descriptors   32 bytes a slice   read by every free
//! runs          16 bytes a slice   what the grid knows of it; under the grid lock
//! spans         28 bytes a slice   what its class knows of it; under the class lock
//! tiers         1 byte a page      what backs it, for readers; atomic
//! backed        1 byte a page      how many of its slices are committed; under the grid lock
//! chunks        32 bytes a chunk   which blocks of 16 KiB of states are used
//! states        bitmap and state bytes of spans, in blocks of 64 bytes
//! user memory   slices
//! ```
//! One reservation holds all eight, user memory last and apart from the rest by a guard of inaccessible pages, so that
//! nothing an overrun of a user block can reach is ever followed (S4).
//!
//! A [`Run`] that is not the head (or, for free runs, the tail) of a run has kind None.

use super::runs::Pool;
use super::states::CHUNK;
use crate::size_class::{CLASSES, SLICE, SLICE_SHIFT};
use crate::sys::{Errno, memory, pages};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::*};
use hg_probes::grid::{DescriptorRecord, RunRecord, SpanRecord};
pub(crate) use hg_probes::words::RunKind as Kind;

/// Inaccessible bytes between the tables and user memory.
const GUARD: usize = memory::HUGE_PAGE;

/// Slices of a page of the grid.
pub(crate) const PAGE_SLICES: usize = memory::HUGE_PAGE >> SLICE_SHIFT;

/// Bytes of accessible memory that always follow the last block of states: as many as a span can have cells.
pub(crate) const STATES_MARGIN: usize = 4096;

/// What every free reads of a slice. Reciprocal 0: the slice belongs to no span.
#[repr(C, align(32))]
pub(crate) struct Descriptor {
    /// Reciprocal of the class's cell size; 0 makes every check fail.
    pub(crate) reciprocal: AtomicU64,
    /// Where the span starts, bytes from the start of user memory.
    pub(crate) start: AtomicUsize,
    /// Address of the state byte of the span's first cell.
    pub(crate) first_state: AtomicUsize,
    /// The class's array in block 0 of the front caches.
    pub(crate) array: AtomicUsize,
}

/// What the grid knows of a slice. Owned by the grid lock.
#[repr(C)]
pub(crate) struct Run {
    pub(crate) kind: Kind,
    pub(crate) pool: Pool,
    /// Slices of the run, at its head and at a free run's tail.
    pub(crate) length: u32,
    /// Links of a free run's bin.
    pub(crate) next: u32,
    pub(crate) previous: u32,
}

/// What a class knows of one of its spans, at the span's head. Owned by the class lock.
#[repr(C)]
pub(crate) struct Span {
    /// Links of the class's list of spans with recycled cells.
    pub(crate) next: u32,
    pub(crate) previous: u32,
    /// Whether the span stands in that list.
    pub(crate) listed: bool,
    /// Recycled cells: bits set in the bitmap.
    pub(crate) free: u32,
    /// Cells carved so far; those behind were never used.
    pub(crate) carved: u32,
    /// The span's block of states, in units of 64 bytes.
    pub(crate) states: u32,
    /// No word of the bitmap before this one has a bit set.
    pub(crate) hint: u32,
}

/// What is known of a chunk of states. Owned by the lock of the class that has it, else by the grid lock.
#[repr(C)]
pub(crate) struct Chunk {
    /// Blocks in use, a bit each.
    pub(crate) used: u128,
    /// Links of the class's list of chunks with a free block, or of the grid's list of free ones.
    pub(crate) next: u32,
    pub(crate) previous: u32,
}

/// Readers of the stats page know the records by these shapes.
const _: () = {
    assert!(size_of::<Descriptor>() == size_of::<DescriptorRecord>());
    assert!(offset_of!(Descriptor, array) == offset_of!(DescriptorRecord, array));
    assert!(size_of::<Run>() == size_of::<RunRecord>());
    assert!(
        offset_of!(Run, kind) == offset_of!(RunRecord, kind) && offset_of!(Run, pool) == offset_of!(RunRecord, pool)
    );
    assert!(offset_of!(Run, length) == offset_of!(RunRecord, length));
    assert!(size_of::<Span>() == size_of::<SpanRecord>());
    assert!(offset_of!(Span, free) == offset_of!(SpanRecord, free));
    assert!(offset_of!(Span, carved) == offset_of!(SpanRecord, carved));
    assert!(offset_of!(Span, states) == offset_of!(SpanRecord, states));
};

/// Bytes of the tables for one slice, its states aside.
pub(crate) const SLICE_BYTES: usize = size_of::<Descriptor>() + size_of::<Run>() + size_of::<Span>();

/// No slice.
pub(crate) const NONE: u32 = u32::MAX;

/// Where everything lies. Plain addresses, fixed at the start.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) descriptors: usize,
    pub(crate) runs: usize,
    pub(crate) spans: usize,
    /// A byte of `hg_probes::grid::tier_byte` for each page.
    pub(crate) tiers: usize,
    backed: usize,
    chunks: usize,
    pub(crate) states: usize,
    /// First address of user memory.
    pub(crate) base: usize,
    /// Slices of the cap.
    pub(crate) cap: u32,
}

impl Tables {
    pub(crate) const fn new() -> Self {
        Tables { descriptors: 0, runs: 0, spans: 0, tiers: 0, backed: 0, chunks: 0, states: 0, base: 0, cap: 0 }
    }

    /// Bytes of the parts before user memory, in their order: descriptors, runs, spans, tiers, what backs them, chunks, states.
    fn parts(cap: usize) -> [usize; 7] {
        let part = |bytes: usize| bytes.next_multiple_of(memory::HUGE_PAGE) + memory::HUGE_PAGE;
        let states = part(states_of(cap));
        [
            part(cap * size_of::<Descriptor>()),
            part((cap + 1) * size_of::<Run>()),
            part(cap * size_of::<Span>()),
            part(cap / PAGE_SLICES + 1),
            part(cap / PAGE_SLICES + 1),
            part(states / CHUNK * size_of::<Chunk>()),
            states,
        ]
    }

    /// Bytes of address space for `cap` slices and their tables.
    pub(super) fn bytes(cap: u32) -> usize {
        Self::parts(cap as usize).iter().sum::<usize>() + GUARD + ((cap as usize) << SLICE_SHIFT)
    }

    /// Where everything lies for `cap` slices, from an address on.
    pub(super) fn lay_out(start: usize, cap: u32) -> Tables {
        let mut next = start;
        let [descriptors, runs, spans, tiers, backed, chunks, states] = Self::parts(cap as usize).map(|bytes| {
            next += bytes;
            next - bytes
        });
        Tables { descriptors, runs, spans, tiers, backed, chunks, states, base: next + GUARD, cap }
    }

    /// What the first `slices` slices need of each part and of user memory: first and last address. Tables have a page to spare,
    /// because the records behind the top are looked at.
    pub(super) fn extents(&self, slices: u32) -> [(usize, usize); 8] {
        let (count, states) = (slices as usize, states_of(slices as usize));
        let table = |start: usize, bytes: usize| {
            (start, (start + bytes).next_multiple_of(memory::BASE_PAGE) + memory::BASE_PAGE)
        };
        [
            table(self.descriptors, count * size_of::<Descriptor>()),
            table(self.runs, (count + 1) * size_of::<Run>()),
            table(self.spans, count * size_of::<Span>()),
            table(self.tiers, count / PAGE_SLICES + 1),
            table(self.backed, count / PAGE_SLICES + 1),
            table(self.chunks, states / CHUNK * size_of::<Chunk>()),
            table(self.states, states),
            (self.base, self.address(slices)),
        ]
    }

    /// Tables are touched here and there: a huge page for each touch would be a waste. Kernels without them refuse.
    pub(super) fn avoid_huge(&self) {
        let _ = pages::avoid_huge(self.descriptors, self.base - self.descriptors);
    }

    /// Makes the records of slices `from..to` accessible, and those of one slice more: the run behind the top is looked at.
    pub(super) fn commit_slices(&self, from: u32, to: u32) -> Result<usize, Errno> {
        let mut committed = 0;
        for (table, size) in self.records() {
            let start = table + (from as usize * size) / memory::BASE_PAGE * memory::BASE_PAGE;
            let end = (table + (to as usize + 1) * size).next_multiple_of(memory::BASE_PAGE);
            memory::commit(start, end - start)?;
            committed += end - start;
        }
        for table in [self.tiers, self.backed] {
            let start = (table + from as usize / PAGE_SLICES) / memory::BASE_PAGE * memory::BASE_PAGE;
            let end = (table + to as usize / PAGE_SLICES + 1).next_multiple_of(memory::BASE_PAGE);
            memory::commit(start, end - start)?;
            committed += end - start;
        }
        self.touch_records(from, to);
        Ok(committed)
    }

    /// Makes the pages of records be there before anybody holds a lock to write them: a fault takes 50 µs where a hypervisor has to
    /// find memory too. Of the first growth, which a small program may never fill, only where the new run's ends are written.
    fn touch_records(&self, from: u32, to: u32) {
        let touch = |table: usize, size: usize, from: u32, to: u32| {
            let start = (table + from as usize * size) / memory::BASE_PAGE * memory::BASE_PAGE;
            let end = (table + to as usize * size).next_multiple_of(memory::BASE_PAGE);
            // A refusal costs time under the lock only.
            let _ = memory::populate(start, end - start);
        };
        if from > 0 {
            return self.records().into_iter().for_each(|(table, size)| touch(table, size, from, to));
        }
        for slice in [from, to - 1] {
            touch(self.runs, size_of::<Run>(), slice, slice + 1);
        }
    }

    /// Gives back whole pages of the records of a run on its way to the system, its first and last slice aside. Zeros say
    /// what is true of them: no span, not the head of a run.
    pub(super) fn give_back_records(&self, head: u32, length: u32) {
        for (table, size) in self.records() {
            let start = (table + (head as usize + 1) * size).next_multiple_of(memory::BASE_PAGE);
            let end = (table + (head + length - 1) as usize * size) / memory::BASE_PAGE * memory::BASE_PAGE;
            if start < end {
                // A refusal costs memory only.
                let _ = memory::give_back(start, end - start);
            }
        }
    }

    fn records(&self) -> [(usize, usize); 3] {
        [(self.descriptors, size_of::<Descriptor>()), (self.runs, size_of::<Run>()), (self.spans, size_of::<Span>())]
    }

    /// Makes `bytes` of states from `from` on accessible, which are reserved.
    pub(super) fn commit_states(&self, from: usize, bytes: usize) -> Result<(), Errno> {
        let record = |bytes: usize| self.chunks + bytes / CHUNK * size_of::<Chunk>();
        let start = record(from) / memory::BASE_PAGE * memory::BASE_PAGE;
        memory::commit(start, record(from + bytes).next_multiple_of(memory::BASE_PAGE) - start)?;
        memory::commit(self.states + from, bytes)
    }

    /// The record of a chunk of accessible states.
    pub(super) fn chunk(&self, number: u32) -> *mut Chunk {
        (self.chunks + number as usize * size_of::<Chunk>()) as *mut Chunk
    }

    /// First address of a slice.
    #[inline]
    pub(crate) fn address(&self, slice: u32) -> usize {
        self.base + ((slice as usize) << SLICE_SHIFT)
    }

    /// The slice that holds an address of user memory.
    #[inline]
    pub(crate) fn slice_of(&self, address: usize) -> u32 {
        ((address - self.base) >> SLICE_SHIFT) as u32
    }

    /// The first slice from `slice` on whose address is a multiple of `align` slices.
    pub(super) fn align_slice(&self, slice: u32, align: u32) -> u32 {
        if align <= 1 {
            return slice;
        }
        let aligned = self.address(slice).next_multiple_of((align as usize) << SLICE_SHIFT);
        self.slice_of(aligned)
    }

    /// The byte that tells readers what backs a page below the top.
    pub(crate) fn tier_byte(&self, page: usize) -> &AtomicU8 {
        // SAFETY: S4, the bytes of pages below the top are accessible for ever.
        unsafe { &*((self.tiers + page) as *const AtomicU8) }
    }

    /// How many slices of a page below the top are committed. Under the grid lock.
    pub(crate) fn backed(&self, page: usize) -> &AtomicU8 {
        // SAFETY: S4, bytes of pages below the top are accessible; only this byte is looked at.
        unsafe { &*((self.backed + page) as *const AtomicU8) }
    }

    /// The run record of a slice below the top (or at it). Under the grid lock.
    #[inline]
    pub(crate) fn run(&self, slice: u32) -> *mut Run {
        (self.runs + slice as usize * size_of::<Run>()) as *mut Run
    }

    /// The span record of a span's head. Under the class lock.
    #[inline]
    pub(crate) fn span(&self, head: u32) -> *mut Span {
        (self.spans + head as usize * size_of::<Span>()) as *mut Span
    }

    /// The descriptor of a slice below the top.
    #[inline]
    pub(crate) fn descriptor(&self, slice: u32) -> &Descriptor {
        // SAFETY: S4, descriptors of slices below the top are accessible for ever, and all words are atomic.
        unsafe { &*((self.descriptors + slice as usize * size_of::<Descriptor>()) as *const Descriptor) }
    }

    /// Kind of a slice. Under the grid lock.
    pub(crate) fn kind(&self, slice: u32) -> Kind {
        // SAFETY: S3, records up to the top are accessible, and the grid lock is held.
        unsafe { (*self.run(slice)).kind }
    }

    /// Length of the run that a head or tail names. Under the grid lock.
    pub(crate) fn length(&self, slice: u32) -> u32 {
        // SAFETY: S3, as in `kind`.
        unsafe { (*self.run(slice)).length }
    }

    /// Makes a slice the head of a run. Under the grid lock.
    pub(crate) fn set_run(&self, slice: u32, kind: Kind, length: u32) {
        // SAFETY: S3, as in `kind`.
        unsafe {
            (*self.run(slice)).kind = kind;
            (*self.run(slice)).length = length;
        }
    }

    /// The free run that starts at a slice, if one does. Under the grid lock.
    pub(crate) fn free_run(&self, slice: u32, top: u32) -> Option<(Pool, u32)> {
        if slice >= top || self.kind(slice) != Kind::Free {
            return None;
        }
        // SAFETY: S3, as in `kind`.
        unsafe { Some(((*self.run(slice)).pool, (*self.run(slice)).length)) }
    }

    /// Describes the slices of a new span, so that frees find its cells. Under the class and grid locks.
    pub(crate) fn describe_span(&self, head: u32, class: usize, array: usize, states: u32) {
        let Some(shape) = CLASSES.get(class) else { return };
        for index in 0..shape.slices {
            let descriptor = self.descriptor(head + index);
            descriptor.start.store((head as usize) << SLICE_SHIFT, Relaxed);
            descriptor.first_state.store(self.first_state(states, shape.cells), Relaxed);
            descriptor.array.store(array, Relaxed);
            descriptor.reciprocal.store(shape.reciprocal, Release);
        }
    }

    /// Makes every free into a former span fail its check.
    pub(crate) fn forget_span(&self, head: u32, slices: u32) {
        for index in 0..slices {
            self.descriptor(head + index).reciprocal.store(0, Relaxed);
        }
    }

    /// The bitmap of a span's recycled cells, under its class lock.
    pub(crate) fn bitmap_word(&self, states: u32, word: u32) -> *mut u64 {
        (self.states + states as usize * 64 + word as usize * 8) as *mut u64
    }

    /// Address of the state byte of a span's first cell.
    pub(crate) fn first_state(&self, states: u32, cells: u32) -> usize {
        self.states + states as usize * 64 + bitmap_bytes(cells)
    }
}

/// Bytes of states for so many slices: a byte of state and a bit of bitmap for each 16 bytes, and what rounding adds, a third
/// at most.
pub(super) const fn states_of(slices: usize) -> usize {
    slices * (SLICE / 16 * 3 / 2)
}

/// Bytes of a span's bitmap, whole cache lines.
pub(crate) const fn bitmap_bytes(cells: u32) -> usize {
    (cells as usize).div_ceil(512) * 64
}

/// Bytes of a span's block of states: bitmap, one byte per cell, and one for the unused rest of the span.
pub(crate) const fn states_bytes(cells: u32) -> usize {
    bitmap_bytes(cells) + (cells as usize + 1).next_multiple_of(64)
}
