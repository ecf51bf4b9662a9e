//! malloc, calloc, realloc, free and the aligned forms, with glibc's answers to the edge cases:
//! `malloc(0)` is a unique block, `realloc(p, 0)` frees and returns null, `realloc(NULL, n)` allocates, sizes above
//! PTRDIFF_MAX are refused with ENOMEM, an alignment that is no power of two is EINVAL where the function can say so.

use crate::{out_of_memory, set_errno};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use hg_alloc::raw;

/// `malloc(3)`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "sysv64" fn malloc(size: usize) -> *mut c_void {
    hg_alloc::malloc_body!()
}

/// `free(3)`. A bad address is refused and counted; `errno` is preserved.
///
/// # Safety
/// As for `free(3)`, though most misuse is caught.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn free(address: *mut c_void) {
    hg_alloc::free_body!()
}

/// `cfree`, of old programs.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(address: *mut c_void) {
    raw::free(address.cast());
}

/// `free_sized` of C23.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(address: *mut c_void, _size: usize) {
    raw::free(address.cast());
}

/// `free_aligned_sized` of C23.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(address: *mut c_void, _align: usize, _size: usize) {
    raw::free(address.cast());
}

/// `calloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => raw::calloc(bytes).cast(),
        None => out_of_memory(),
    }
}

/// `realloc(3)`.
///
/// # Safety
/// As for `realloc(3)`, though most misuse is caught.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(address: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 && !address.is_null() {
        raw::free(address.cast());
        return null_mut();
    }
    raw::realloc(address.cast(), size).cast()
}

/// `reallocarray(3)`.
///
/// # Safety
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(address: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(address, bytes) },
        None => out_of_memory(),
    }
}

/// Allocates aligned memory; the alignment is a power of two.
fn aligned(align: usize, size: usize) -> *mut c_void {
    if size > raw::MAX_REQUEST || align > raw::MAX_REQUEST / 2 {
        return out_of_memory();
    }
    raw::aligned(align, size).cast()
}

/// `posix_memalign(3)`: the result is untouched on error, and `errno` too.
///
/// # Safety
/// `result` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    if size > raw::MAX_REQUEST || align > raw::MAX_REQUEST / 2 {
        return libc::ENOMEM;
    }
    let errno = crate::errno();
    let address = raw::aligned(align, size);
    if address.is_null() {
        set_errno(errno);
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *result = address.cast() };
    0
}

/// `aligned_alloc(3)`. Any size is accepted, as by glibc.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    aligned(align, size)
}

/// `memalign(3)`: an alignment that is no power of two is rounded up to one; one that cannot be is EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) if align <= raw::MAX_REQUEST / 2 + 1 => aligned(align, size),
        _ => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

fn page_size() -> usize {
    // SAFETY: no memory is passed.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// `valloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned(page_size(), size)
}

/// `pvalloc(3)`: the size is rounded up to whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(page_size()) {
        Some(bytes) => aligned(page_size(), bytes),
        None => out_of_memory(),
    }
}

/// `malloc_usable_size(3)`: all of it may be used, and realloc copies it.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(address: *mut c_void) -> usize {
    raw::usable_size(address.cast())
}
