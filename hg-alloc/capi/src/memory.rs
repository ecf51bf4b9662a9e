//! malloc and free of an arena, block by block.
//!
//! All of them may be called by any thread, and for shared arenas by any process that uses the arena. A failed allocation is a
//! null pointer and `errno`; whatever else happens, `errno` stays as it was.

use crate::handle::{Arena, get};
use core::ffi::c_void;
use core::ptr::null_mut;

crate::versioned!("hg_malloc" "hg_calloc" "hg_realloc" "hg_free" "hg_aligned_alloc" "hg_usable_size");

/// Sets `errno`, for a function that answers null.
pub(crate) fn fail(errno: i32) -> *mut c_void {
    // SAFETY: the C library's variable of this thread.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

/// Allocates size bytes, at a multiple of 16, or of 8 in an arena of odd strides. Size 0 gives a block too. Null where there is
/// no memory (errno ENOMEM) or no arena (EINVAL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_malloc(arena: *mut Arena, size: usize) -> *mut c_void {
    // SAFETY: C1.
    match unsafe { get(arena) } {
        Some(arena) => arena.malloc(size).cast(),
        None => fail(libc::EINVAL),
    }
}

/// Allocates count times size bytes, all zero. As hg_malloc; a product too large for a number is ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_calloc(arena: *mut Arena, count: usize, size: usize) -> *mut c_void {
    // SAFETY: C1.
    match (unsafe { get(arena) }, count.checked_mul(size)) {
        (Some(arena), Some(bytes)) => arena.calloc(bytes).cast(),
        (Some(_), None) => fail(libc::ENOMEM),
        (None, _) => fail(libc::EINVAL),
    }
}

/// Makes a block larger or smaller, moving it where needed; a null block allocates, size 0 frees and answers null. Null where
/// there is no memory (ENOMEM; the old block stays as it is), no arena, or no such block (EINVAL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_realloc(arena: *mut Arena, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: C1.
    match unsafe { get(arena) } {
        Some(arena) if size == 0 && !block.is_null() => {
            arena.free(block.cast());
            null_mut()
        }
        Some(arena) => arena.realloc(block.cast(), size).cast(),
        None => fail(libc::EINVAL),
    }
}

/// Frees a block, whichever process allocated it. Null is allowed. What is no live block of this arena (freed already, from
/// inside a block, from elsewhere) is refused, counted, told by the corruption callback, and harms nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_free(arena: *mut Arena, block: *mut c_void) {
    // SAFETY: C1.
    if let Some(arena) = unsafe { get(arena) } {
        arena.free(block.cast());
    }
}

/// Allocates size bytes at a multiple of align, a power of two up to 2 MiB; any other is EINVAL. Else as hg_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_aligned_alloc(arena: *mut Arena, align: usize, size: usize) -> *mut c_void {
    // SAFETY: C1.
    match unsafe { get(arena) } {
        Some(arena) => arena.aligned(align, size).cast(),
        None => fail(libc::EINVAL),
    }
}

/// Bytes that may be used in a live block: at least what was asked for. 0 for null, and for what is no live block of this arena
/// (refused and counted as by hg_free).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_usable_size(arena: *mut Arena, block: *mut c_void) -> usize {
    // SAFETY: C1.
    unsafe { get(arena) }.map_or(0, |arena| arena.usable_size(block.cast()))
}
