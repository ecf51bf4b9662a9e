//! Cells, where the fast paths of `fast.rs` leave off: sizes beyond the table, and what a free's descriptor says.

use crate::arena::Arena;
use crate::cell::{CACHED, Entry, LIVE};
use crate::fast;
use crate::front::{OFFSETS, class_of_offset};
use crate::grid::tables::Descriptor;
use crate::size_class::{MAX_SIZE, SLICE_SHIFT, TABLE_MAX, class_of, divide};
use core::sync::atomic::Ordering::*;

/// Where the array of the class of each small size lies in a block: the size table of the fast path.
pub static ARRAYS: [u32; TABLE_MAX / 16 + 1] = {
    let mut arrays = [0; TABLE_MAX / 16 + 1];
    let mut step = 0;
    while step < arrays.len() {
        arrays[step] = OFFSETS[class_of(step * 16)];
        step += 1;
    }
    arrays
};

impl Arena {
    /// Allocates. Null with ENOMEM if there is no memory. (The process's arena is the only one with these paths.)
    #[inline(always)]
    pub(crate) fn malloc(&'static self, size: usize) -> *mut u8 {
        fast::malloc(size)
    }

    /// Frees. A bad address is refused and counted.
    #[inline(always)]
    pub(crate) fn free(&'static self, address: *mut u8) {
        fast::free(address);
    }

    /// Requests above the table, and all while the arena is not started.
    pub(crate) fn malloc_medium(&'static self, size: usize) -> *mut u8 {
        if size <= MAX_SIZE && self.hot.table_limit.load(Relaxed) != 0 {
            // SAFETY: S5, the arena is started, and the array is that of the class of `size`.
            return unsafe { fast::malloc_from(size, self.fronts.array(class_of(size))) };
        }
        self.malloc_slow(size, Entry::NONE)
    }

    /// malloc of a thread without restartable sequences, whose fast path found an array of zeros: from its slot. `None` if it has
    /// such sequences, or if that needs the slow path.
    #[inline(always)]
    pub(crate) fn malloc_in_slot(&'static self, size: usize) -> Option<*mut u8> {
        if size > MAX_SIZE || self.hot.table_limit.load(Relaxed) == 0 || !self.fronts.by_slot() {
            return None;
        }
        let slot = self.fronts.slot()?;
        let entry = slot.pop_counted(class_of(size))?;
        // SAFETY: S4, the entry stood in a front cache.
        let state = unsafe { entry.state() };
        if state.load(Relaxed) != CACHED {
            return None;
        }
        slot.pop_done(class_of(size));
        state.store(LIVE, Relaxed);
        Some(entry.cell as *mut u8)
    }

    /// free of such a thread, once the cell is marked. False if that needs the slow path.
    #[inline(always)]
    pub(crate) fn free_in_slot(&'static self, entry: Entry) -> bool {
        self.fronts.by_slot() && self.fronts.slot().is_some_and(|slot| slot.push(self.class_at(entry.cell), entry))
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
        let array = self.descriptor(offset).array.load(Relaxed);
        class_of_offset(array.wrapping_sub(self.hot.fronts.load(Relaxed)))
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
