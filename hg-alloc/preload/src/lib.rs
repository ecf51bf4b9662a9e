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

// Without std the library has no thread-local storage but the core's, no destructor of it, and needs libc.so.6 alone.
#![cfg_attr(not(test), no_std)]

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

/// Nothing here panics on purpose; where the compiler cannot prove that, the process ends without a word: formatting one
/// would allocate.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

// The precompiled core names the personality of unwinding frames. Nothing unwinds here, so it is never called; a hidden
// symbol of that name keeps the loader from looking for one.
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality,\"ax\",%progbits",
    ".weak rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality,%function",
    "rust_eh_personality:",
    ".4byte 0",
    ".size rust_eh_personality, . - rust_eh_personality",
    ".popsection",
);
