//! Blocks in batches. The arena moves them between its caches many at a time, under one acquisition of a lock.

use crate::handle::{Arena, get};
use core::ffi::c_void;

crate::versioned!("hg_malloc_many" "hg_free_many");

/// Allocates up to count blocks of size bytes into an array, and answers how many these are: fewer than count where memory ran
/// out (errno ENOMEM). 0 for a null arena or array (EINVAL). Places of the array beyond the answer are untouched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_malloc_many(
    arena: *mut Arena,
    size: usize,
    blocks: *mut *mut c_void,
    count: usize,
) -> usize {
    // SAFETY: C1.
    match unsafe { get(arena) } {
        // SAFETY: C1, so many pointers.
        Some(arena) if !blocks.is_null() => unsafe {
            arena.malloc_many(size, core::slice::from_raw_parts_mut(blocks.cast(), count))
        },
        _ => {
            crate::memory::fail(libc::EINVAL);
            0
        }
    }
}

/// Frees the count blocks of an array, each as by hg_free: null pointers are passed over, what is no live block is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_free_many(arena: *mut Arena, blocks: *const *mut c_void, count: usize) {
    // SAFETY: C1.
    if let Some(arena) = unsafe { get(arena) }
        && !blocks.is_null()
    {
        // SAFETY: C1, so many pointers.
        arena.free_many(unsafe { core::slice::from_raw_parts(blocks.cast(), count) });
    }
}
