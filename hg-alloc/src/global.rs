//! `#[global_allocator]`: the process's arena for Rust programs.

use crate::PROCESS;
use crate::resize::MIN_ALIGN;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{copy_nonoverlapping, null_mut};

/// The hg allocator as a Rust program's global allocator.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: hg_alloc::HgAlloc = hg_alloc::HgAlloc::new();
///
/// fn main() {
///     let words: Vec<u64> = (0..1000).collect();
///     assert_eq!(words.iter().sum::<u64>(), 499_500);
///     assert!(hg_alloc::stats_page().is_some());
/// }
/// ```
///
/// All values of this type are one allocator: the arena of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct HgAlloc;

impl HgAlloc {
    /// The allocator.
    pub const fn new() -> Self {
        HgAlloc
    }
}

// SAFETY: S8, blocks are apart, as large and as aligned as asked, and stay until freed; no call unwinds.
unsafe impl GlobalAlloc for HgAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            PROCESS.malloc(layout.size())
        } else {
            PROCESS.aligned(layout.align(), layout.size())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, address: *mut u8, _layout: Layout) {
        PROCESS.free(address);
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            return PROCESS.calloc(layout.size());
        }
        let address = PROCESS.aligned(layout.align(), layout.size());
        if !address.is_null() {
            // SAFETY: S8, the block has at least the layout's size.
            unsafe { address.write_bytes(0, layout.size()) };
        }
        address
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            return PROCESS.realloc(address, new_size);
        }
        let new = PROCESS.aligned(layout.align(), new_size);
        if new.is_null() {
            return null_mut();
        }
        // SAFETY: S8, both blocks are live, apart, and have that many bytes.
        unsafe { copy_nonoverlapping(address, new, layout.size().min(new_size)) };
        PROCESS.free(address);
        new
    }
}
