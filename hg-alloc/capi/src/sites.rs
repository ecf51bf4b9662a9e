//! Allocations that say where they are made, for samples and reports that name lines of a program.
//!
//! Pointers to the texts are kept, never the texts: they are literals, or as lasting as these. Frees tell it too, for the callback
//! of one that is refused.

use crate::handle::{Arena, get};
use crate::memory::{fail, hg_free, hg_realloc};
use core::cell::Cell;
use core::ffi::{c_char, c_void};
use hg_alloc::shared::Site;

crate::versioned!("hg_malloc_at" "hg_calloc_at" "hg_realloc_at" "hg_aligned_alloc_at" "hg_free_at");

fn site(file: *const c_char, function: *const c_char, line: u32) -> Site {
    Site { file: file.cast(), function: function.cast(), line }
}

/// hg_malloc, told where it is called: file and function are literals, or texts that last as long as the arena, or null. HG_MALLOC
/// fills them in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_malloc_at(
    arena: *mut Arena,
    size: usize,
    file: *const c_char,
    function: *const c_char,
    line: u32,
) -> *mut c_void {
    // SAFETY: C1.
    match unsafe { get(arena) } {
        Some(arena) => arena.malloc_at(size, || site(file, function, line)).cast(),
        None => fail(libc::EINVAL),
    }
}

/// hg_calloc, told where it is called. HG_CALLOC fills that in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_calloc_at(
    arena: *mut Arena,
    count: usize,
    size: usize,
    file: *const c_char,
    function: *const c_char,
    line: u32,
) -> *mut c_void {
    // SAFETY: C1.
    match (unsafe { get(arena) }, count.checked_mul(size)) {
        (Some(arena), Some(bytes)) => {
            let block = arena.malloc_at(bytes, || site(file, function, line));
            if !block.is_null() {
                // SAFETY: the block has so many bytes.
                unsafe { block.write_bytes(0, bytes) };
            }
            block.cast()
        }
        (Some(_), None) => fail(libc::ENOMEM),
        (None, _) => fail(libc::EINVAL),
    }
}

/// hg_realloc, told where it is called. HG_REALLOC fills that in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_realloc_at(
    arena: *mut Arena,
    block: *mut c_void,
    size: usize,
    file: *const c_char,
    function: *const c_char,
    line: u32,
) -> *mut c_void {
    // SAFETY: C1.
    match unsafe { get(arena) } {
        Some(arena) if block.is_null() => arena.malloc_at(size, || site(file, function, line)).cast(),
        // SAFETY: C1.
        _ => calling(site(file, function, line), || unsafe { hg_realloc(arena, block, size) }),
    }
}

/// hg_aligned_alloc, told where it is called. HG_ALIGNED_ALLOC fills that in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_aligned_alloc_at(
    arena: *mut Arena,
    align: usize,
    size: usize,
    file: *const c_char,
    function: *const c_char,
    line: u32,
) -> *mut c_void {
    // SAFETY: C1.
    match unsafe { get(arena) } {
        Some(arena) => arena.aligned_at(align, size, &site(file, function, line)).cast(),
        None => fail(libc::EINVAL),
    }
}

/// hg_free, told where it is called, which the report of a refused free names. HG_FREE fills that in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_free_at(
    arena: *mut Arena,
    block: *mut c_void,
    file: *const c_char,
    function: *const c_char,
    line: u32,
) {
    // SAFETY: C1.
    calling(site(file, function, line), || unsafe { hg_free(arena, block) });
}

thread_local! {
    /// Where the call of this thread is made that a callback may have to name.
    static SITE: Cell<Site> = const { Cell::new(Site::UNKNOWN) };
}

/// Makes a call whose place callbacks can name.
fn calling<R>(site: Site, call: impl FnOnce() -> R) -> R {
    let before = SITE.replace(site);
    let result = call();
    SITE.set(before);
    result
}

/// The place of the call that this thread is in, if it told it.
pub(crate) fn current() -> Site {
    SITE.get()
}
