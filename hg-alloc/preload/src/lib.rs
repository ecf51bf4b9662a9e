//! `libhg_preload.so`: the malloc family of glibc and the C++ operators, on the hg allocator.
//!
//! Used as `LD_PRELOAD=libhg_preload.so program`. Everything here is the C side of the interface: argument checks, `errno`,
//! edge cases. Where standards leave a choice, what glibc does is done, since that is what programs were tested with.
//!
//! | file | what |
//! |---|---|
//! | `family.rs` | malloc, calloc, realloc, free and the aligned forms |
//! | `operators.rs` | operator new and delete in all forms |
//! | `inspect.rs` | mallinfo, mallopt, malloc_trim, malloc_info and their like |
//! | `vfork.rs` | vfork, so that a child that allocates does it on a registered thread |

pub mod family;
pub mod inspect;
pub mod operators;
pub mod vfork;

/// Sets `errno` and returns null.
#[cold]
fn out_of_memory() -> *mut core::ffi::c_void {
    set_errno(libc::ENOMEM);
    core::ptr::null_mut()
}

fn errno() -> i32 {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: i32) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = value }
}
