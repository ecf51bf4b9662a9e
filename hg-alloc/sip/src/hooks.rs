//! The functions of the C library that the library puts itself before, and what happens when it is loaded.
//!
//! Each only passes on to the C library's; on the way it looks whether the server has set up memory meanwhile. In other
//! programs, those that a server executes among them, it only passes on. `fork` also tells who is whose child.

use crate::server;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A function of the next object in the loader's order, looked up at its first use.
struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// # Safety
    /// `F` is a function pointer of the signature that the function has.
    unsafe fn get<F: Copy>(&self) -> F {
        let mut address = self.address.load(Relaxed);
        if address == 0 {
            // SAFETY: the name is a C string.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
            if address == 0 {
                // A C library without these functions cannot have been linked with; there is nothing to pass on to.
                // SAFETY: abort has no preconditions.
                unsafe { libc::abort() };
            }
            self.address.store(address, Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { core::mem::transmute_copy(&address) }
    }
}

type GetOpt = unsafe extern "C" fn(c_int, *const *mut c_char, *const c_char) -> c_int;
type GetOptLong = unsafe extern "C" fn(c_int, *const *mut c_char, *const c_char, *const c_void, *mut c_int) -> c_int;
type FOpen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
type Fork = unsafe extern "C" fn() -> libc::pid_t;

static GETOPT: Next = Next::new(c"getopt");
static GETOPT_LONG: Next = Next::new(c"getopt_long");
static FOPEN: Next = Next::new(c"fopen");
static FOPEN64: Next = Next::new(c"fopen64");
static FORK: Next = Next::new(c"fork");

/// `getopt(3)`.
///
/// # Safety
/// As for `getopt(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getopt(argc: c_int, argv: *const *mut c_char, options: *const c_char) -> c_int {
    server::moment();
    // SAFETY: the signature is that of getopt(3); the arguments are the caller's.
    unsafe { GETOPT.get::<GetOpt>()(argc, argv, options) }
}

/// `getopt_long(3)`.
///
/// # Safety
/// As for `getopt_long(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getopt_long(
    argc: c_int,
    argv: *const *mut c_char,
    options: *const c_char,
    long: *const c_void,
    index: *mut c_int,
) -> c_int {
    server::moment();
    // SAFETY: the signature is that of getopt_long(3); the arguments are the caller's.
    unsafe { GETOPT_LONG.get::<GetOptLong>()(argc, argv, options, long, index) }
}

/// `fopen(3)`.
///
/// # Safety
/// As for `fopen(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void {
    server::moment();
    // SAFETY: the signature is that of fopen(3); the arguments are the caller's.
    unsafe { FOPEN.get::<FOpen>()(path, mode) }
}

/// `fopen64`, the name that programs with large files use.
///
/// # Safety
/// As for `fopen(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void {
    server::moment();
    // SAFETY: the signature is that of fopen(3); the arguments are the caller's.
    unsafe { FOPEN64.get::<FOpen>()(path, mode) }
}

/// `fork(2)`.
///
/// # Safety
/// As for `fork(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    server::moment();
    let given = server::before_fork();
    // SAFETY: the signature is that of fork(2).
    let pid = unsafe { FORK.get::<Fork>()() };
    server::after_fork(pid, given);
    pid
}

extern "C" fn start() {
    server::start();
}

/// Run by the loader before the program's main.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
