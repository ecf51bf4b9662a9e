//! malloc and free of a private arena that one thread at a time uses: plain loads and stores on block 0 of the front caches.
//!
//! Nothing stands in the thread's record meanwhile: nobody can come by who would look, not even a forked child. Whatever is not
//! the common case goes the way of all arenas, whose sequences find id 0 and need not restart.
//!
//! Lock: none. Callers: malloc and free (`paths.rs`).

use super::Arena;
use super::core::Entry;
use super::front::Array;
use super::hot::Found;
use super::sample::Site;
use crate::cell::{CACHED, LIVE};
use core::sync::atomic::{AtomicU8, Ordering::*};

impl Arena {
    #[inline(always)]
    pub(super) fn malloc_single(&self, class: usize, size: usize, site: impl Fn() -> Site) -> *mut u8 {
        let left = self.hot.sample_left.load(Relaxed);
        if left > size as u64 {
            // SAFETY: S13, the class's array in block 0.
            let array = unsafe { Array::at(self.hot.shape(class).array) };
            let entry = Entry(array.top_entry());
            if let Some((state, address)) = self.hot.cell(entry) {
                array.pop();
                // Not looked at before: the load would wait for a line that the store need not wait for. Whoever wrote over the
                // array is found out by the second free of a cell that it holds twice.
                // SAFETY: S12, the address of a state.
                unsafe { &*(state as *const AtomicU8) }.store(LIVE, Relaxed);
                self.hot.sample_left.store(left - size as u64, Relaxed);
                return address as *mut u8;
            }
        }
        self.malloc_single_slow(class, size, &site())
    }

    /// A first call in this process, a sample, an empty array, or one that holds what it must not.
    #[cold]
    #[inline(never)]
    fn malloc_single_slow(&self, class: usize, size: usize, site: &Site) -> *mut u8 {
        let Some(record) = self.record() else { return self.malloc_cell(class, size, || *site, None) };
        // The count goes on where the common case left it.
        record.sample_left.store(self.hot.sample_left.load(Relaxed), Relaxed);
        let address = self.malloc_cell(class, size, || *site, None);
        self.hot.sample_left.store(record.sample_left.load(Relaxed), Relaxed);
        address
    }

    #[inline(always)]
    pub(super) fn free_single(&self, address: *mut u8) {
        let Some(Found { shape, entry, state, .. }) = self.hot.find(address as usize) else {
            return self.free_cell(address);
        };
        // SAFETY: S13, the class's array in block 0.
        let array = unsafe { Array::at(shape.array) };
        if state.load(Relaxed) != LIVE || !array.push(entry.0) {
            return self.free_cell(address);
        }
        state.store(CACHED, Relaxed);
    }
}
