//! The allocator for those who bring their own interface: the preload library, and tests.
//!
//! A failure is a null pointer, and `errno` says ENOMEM; otherwise no function here changes `errno`.

use crate::PROCESS;

pub use crate::large::MAX_REQUEST;
pub use crate::resize::MIN_ALIGN;

/// Allocates `size` bytes, at least one, at a multiple of 16.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    PROCESS.malloc(size)
}

/// Allocates `size` zeroed bytes.
#[inline]
pub fn calloc(size: usize) -> *mut u8 {
    PROCESS.calloc(size)
}

/// Allocates `size` bytes at a multiple of `align`, which is a power of two.
#[inline]
pub fn aligned(align: usize, size: usize) -> *mut u8 {
    PROCESS.aligned(align, size)
}

/// Frees a block; null is allowed, and any bad address is refused and counted.
#[inline(always)]
pub fn free(address: *mut u8) {
    PROCESS.free(address);
}

/// Resizes a block, in place where possible; a null address allocates. Null: no memory, and the old block stays, or a bad
/// address, refused and counted.
#[inline]
pub fn realloc(address: *mut u8, size: usize) -> *mut u8 {
    PROCESS.realloc(address, size)
}

/// Bytes that may be used in a live block; 0 for null, and for a bad address, refused and counted.
#[inline]
pub fn usable_size(address: *mut u8) -> usize {
    if address.is_null() { 0 } else { PROCESS.usable_size(address as usize).unwrap_or(0) }
}
