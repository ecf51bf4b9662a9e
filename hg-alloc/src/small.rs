//! Cells: the fast paths of malloc and free of up to 256 KiB.
//!
//! malloc is a table look-up, a pop, and a check of the state byte; free is a descriptor, a check of address and state, and a
//! push. What they cannot do goes to `refill.rs`, `flush.rs`, `large.rs`, or to `safety/look_up.rs`.

use crate::arena::Arena;
use crate::cell::{CACHED, Entry, LIVE};
use crate::front::{OFFSETS, rseq};
use crate::grid::tables::Descriptor;
use crate::size_class::{MAX_SIZE, SLICE_SHIFT, TABLE_MAX, class_of, divide};
use core::sync::atomic::Ordering::*;

/// Where the array of the class of each small size lies in a block: the size table of the fast path.
static ARRAYS: [u32; TABLE_MAX / 16 + 1] = {
    let mut arrays = [0; TABLE_MAX / 16 + 1];
    let mut step = 0;
    while step < arrays.len() {
        arrays[step] = OFFSETS[class_of(step * 16)];
        step += 1;
    }
    arrays
};

impl Arena {
    /// Allocates. Null with ENOMEM if there is no memory.
    #[inline(always)]
    pub(crate) fn malloc(&'static self, size: usize) -> *mut u8 {
        if size < self.hot.table_limit.load(Relaxed) {
            // SAFETY: the limit is at most TABLE_MAX + 1, so the index is in the table.
            let array = unsafe { *ARRAYS.get_unchecked(size.wrapping_add(15) >> 4) };
            // SAFETY: S5, the arena is started, or the limit would have been 0.
            return unsafe { self.malloc_from(array, size) };
        }
        self.malloc_medium(size)
    }

    /// Requests above the table, and all while the arena is not started.
    #[inline(never)]
    fn malloc_medium(&'static self, size: usize) -> *mut u8 {
        if size <= MAX_SIZE && self.hot.table_limit.load(Relaxed) != 0 {
            // SAFETY: the class of a size up to MAX_SIZE is below COUNT.
            let array = unsafe { *OFFSETS.get_unchecked(class_of(size)) };
            // SAFETY: S5, the arena is started.
            return unsafe { self.malloc_from(array, size) };
        }
        self.malloc_slow(size, Entry::NONE)
    }

    /// # Safety
    /// S5: the arena is started, and `array` is that of the class of `size`.
    #[inline(always)]
    unsafe fn malloc_from(&'static self, array: u32, size: usize) -> *mut u8 {
        let (fronts, id) = (self.hot.fronts.load(Relaxed), self.hot.id.load(Relaxed));
        // SAFETY: S5, all values are the started arena's.
        let entry = unsafe { rseq::pop(fronts + array as usize, id, self.hot.sequence.load(Relaxed)) };
        // SAFETY: S4, the entry stood in a front cache, or has the state byte of a failed pop.
        let state = unsafe { entry.state() };
        if state.load(Relaxed) == CACHED {
            state.store(LIVE, Relaxed);
            return entry.cell as *mut u8;
        }
        self.malloc_slow(size, entry)
    }

    /// Frees. A bad address is refused and counted.
    #[inline(always)]
    pub(crate) fn free(&'static self, address: *mut u8) {
        let offset = (address as usize).wrapping_sub(self.hot.base.load(Relaxed));
        if offset < self.hot.limit.load(Relaxed) {
            let descriptor = self.descriptor(offset);
            if let Some(entry) = descriptor.entry_at(address as usize, offset) {
                // SAFETY: S4, the address is the start of a cell in a span.
                let state = unsafe { entry.state() };
                if state.load(Relaxed) == LIVE {
                    state.store(CACHED, Relaxed);
                    let (array, id) = (descriptor.array.load(Relaxed), self.hot.id.load(Relaxed));
                    // SAFETY: S5, memory is accessible, so the arena is started; S1, the cell was the caller's alone.
                    if unsafe { rseq::push(array, id, self.hot.sequence.load(Relaxed), entry) } {
                        return;
                    }
                    return self.flush(entry);
                }
            }
        }
        self.free_slow(address as usize)
    }

    /// The descriptor of the slice that is `offset` bytes into the accessible memory.
    #[inline(always)]
    pub(crate) fn descriptor(&self, offset: usize) -> &Descriptor {
        let at = self.hot.descriptors.load(Relaxed) + (offset >> SLICE_SHIFT) * size_of::<Descriptor>();
        // SAFETY: S4, descriptors of accessible memory are accessible for ever.
        unsafe { &*(at as *const Descriptor) }
    }

    /// The class of the span at an address of accessible memory.
    pub(crate) fn class_at(&self, address: usize) -> usize {
        let offset = address.wrapping_sub(self.hot.base.load(Relaxed));
        let array = self.descriptor(offset).array.load(Relaxed).wrapping_sub(self.hot.fronts.load(Relaxed));
        OFFSETS.partition_point(|offset| (*offset as usize) < array)
    }
}

impl Descriptor {
    /// The cell that starts at an address `offset` bytes into the accessible memory, if one does in this slice.
    #[inline(always)]
    pub(crate) fn entry_at(&self, address: usize, offset: usize) -> Option<Entry> {
        let reciprocal = self.reciprocal.load(Relaxed);
        // A slice of no span has reciprocal 0, which no rest is below, whatever its start says.
        let (cell, rest) = divide(offset.wrapping_sub(self.start.load(Relaxed)) as u64, reciprocal);
        let state = self.first_state.load(Relaxed).wrapping_add(cell as usize);
        (rest < reciprocal).then_some(Entry { cell: address, state })
    }
}
