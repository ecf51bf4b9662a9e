//! The structures of Kamailio 5.6 and 5.7 through which memory is reached, and those that it wants filled: its binary interface.
//!
//! Their sizes are compared with those of the executable's variables before anything is touched.

use crate::figures::Info;
use crate::old::{Free, Malloc};
use core::ffi::{c_char, c_ulong, c_void};

/// `realloc(block, address, size, file, function, line, module)`.
pub(super) type Realloc = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    *const c_char,
    *const c_char,
    u32,
    *const c_char,
) -> *mut c_void;
pub(super) type OnBlock = unsafe extern "C" fn(*mut c_void);
pub(super) type InfoOf = unsafe extern "C" fn(*mut c_void, *mut Info);
pub(super) type ReportOf = unsafe extern "C" fn(*mut c_void, *mut Report);
pub(super) type Available = unsafe extern "C" fn(*mut c_void) -> usize;
pub(super) type Destroy = unsafe extern "C" fn();
pub(super) type GetStats = unsafe extern "C" fn(*mut c_void, *mut *mut c_void);

/// `_pkg_root`. Names as the core's, without their x.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PkgApi {
    pub(super) name: *const c_char,
    pub(super) pool: *mut c_void,
    pub(super) block: *mut c_void,
    pub(super) malloc: Option<Malloc>,
    pub(super) malloc_zeroed: Option<Malloc>,
    pub(super) realloc: Option<Realloc>,
    pub(super) realloc_or_free: Option<Realloc>,
    pub(super) free: Option<Free>,
    pub(super) status: Option<OnBlock>,
    pub(super) info: Option<InfoOf>,
    pub(super) report: Option<ReportOf>,
    pub(super) available: Option<Available>,
    pub(super) sums: Option<OnBlock>,
    pub(super) destroy: Option<Destroy>,
    pub(super) module_stats: Option<GetStats>,
    pub(super) free_module_stats: Option<OnBlock>,
}

/// `_shm_root`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ShmApi {
    pub(super) name: *const c_char,
    pub(super) pool: *mut c_void,
    pub(super) block: *mut c_void,
    pub(super) malloc: Option<Malloc>,
    pub(super) malloc_zeroed: Option<Malloc>,
    pub(super) malloc_unsafe: Option<Malloc>,
    pub(super) realloc: Option<Realloc>,
    pub(super) realloc_or_free: Option<Realloc>,
    pub(super) resize: Option<Realloc>,
    pub(super) free: Option<Free>,
    pub(super) free_unsafe: Option<Free>,
    pub(super) status: Option<OnBlock>,
    pub(super) info: Option<InfoOf>,
    pub(super) report: Option<ReportOf>,
    pub(super) available: Option<Available>,
    pub(super) sums: Option<OnBlock>,
    pub(super) destroy: Option<Destroy>,
    pub(super) module_stats: Option<GetStats>,
    pub(super) free_module_stats: Option<OnBlock>,
    pub(super) lock: Option<OnBlock>,
    pub(super) unlock: Option<OnBlock>,
}

// SAFETY: written once, while the process has one thread; the pointers are the server's own.
unsafe impl Sync for PkgApi {}
// SAFETY: as above.
unsafe impl Sync for ShmApi {}

const _: () = assert!(size_of::<PkgApi>() == 128 && size_of::<ShmApi>() == 168);

/// A block that a report names.
#[repr(C)]
pub(super) struct Extreme {
    pub(super) size: c_ulong,
    pub(super) file: *const c_char,
    pub(super) function: *const c_char,
    pub(super) module: *const c_char,
    pub(super) line: c_ulong,
}

/// A report.
#[repr(C)]
pub(super) struct Report {
    pub(super) total_size: usize,
    pub(super) free_size_stats: usize,
    pub(super) free_size_measured: usize,
    pub(super) used_size_stats: usize,
    pub(super) used_size_measured: usize,
    pub(super) real_used_stats: usize,
    pub(super) max_used_stats: usize,
    pub(super) free_frags: usize,
    pub(super) used_frags: usize,
    pub(super) total_frags: usize,
    pub(super) largest_free: Extreme,
    pub(super) smallest_free: Extreme,
    pub(super) largest_used: Extreme,
    pub(super) smallest_used: Extreme,
}
