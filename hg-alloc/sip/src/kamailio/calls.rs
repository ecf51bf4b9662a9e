//! The functions that Kamailio gets in place of its allocator's: one set for each domain.
//!
//! An arena is safe for all processes at once, so the forms for a caller who holds the server's lock differ for blocks of the
//! old pool alone. The lock itself stays the server's.

use super::layout::{PkgApi, ShmApi};
use super::{OLD_PKG, OLD_SHM, stats};
use crate::domain::{Domain, PKG, SHM};
use crate::tend;
use core::ffi::{c_char, c_void};

/// The structure for a pkg that replaces `old`.
pub(super) fn pkg(old: &PkgApi) -> PkgApi {
    PkgApi {
        name: c"hg".as_ptr(),
        malloc: Some(malloc::<Pkg>),
        malloc_zeroed: Some(malloc_zeroed::<Pkg>),
        realloc: Some(realloc::<Pkg>),
        realloc_or_free: Some(realloc_or_free::<Pkg>),
        free: Some(free::<Pkg>),
        status: Some(stats::status::<Pkg>),
        info: Some(stats::info::<Pkg>),
        report: Some(stats::report::<Pkg>),
        available: Some(stats::available::<Pkg>),
        sums: Some(stats::sums::<Pkg>),
        destroy: Some(destroy_pkg),
        module_stats: Some(stats::no_module_stats),
        free_module_stats: Some(stats::free_no_module_stats),
        ..*old
    }
}

/// The structure for a shm that replaces `old`, whose lock stays.
pub(super) fn shm(old: &ShmApi) -> ShmApi {
    ShmApi {
        name: c"hg".as_ptr(),
        malloc: Some(malloc::<Shm>),
        malloc_zeroed: Some(malloc_zeroed::<Shm>),
        malloc_unsafe: Some(malloc::<Shm>),
        realloc: Some(realloc::<Shm>),
        realloc_or_free: Some(realloc_or_free::<Shm>),
        resize: Some(resize),
        free: Some(free::<Shm>),
        free_unsafe: Some(free_unsafe),
        status: Some(stats::status::<Shm>),
        info: Some(stats::info::<Shm>),
        report: Some(stats::report::<Shm>),
        available: Some(stats::available::<Shm>),
        sums: Some(stats::sums::<Shm>),
        destroy: Some(destroy_shm),
        module_stats: Some(stats::no_module_stats),
        free_module_stats: Some(stats::free_no_module_stats),
        ..*old
    }
}

/// Which domain a set of functions is for.
pub(super) trait Which {
    const DOMAIN: &'static Domain;
}

pub(super) struct Pkg;
pub(super) struct Shm;

impl Which for Pkg {
    const DOMAIN: &'static Domain = &PKG;
}

impl Which for Shm {
    const DOMAIN: &'static Domain = &SHM;
}

type Text = *const c_char;

unsafe extern "C" fn malloc<W: Which>(
    _block: *mut c_void,
    size: usize,
    file: Text,
    function: Text,
    line: u32,
    _module: Text,
) -> *mut c_void {
    W::DOMAIN.malloc(size, || W::DOMAIN.site(file, function, line))
}

unsafe extern "C" fn malloc_zeroed<W: Which>(
    _block: *mut c_void,
    size: usize,
    file: Text,
    function: Text,
    line: u32,
    _module: Text,
) -> *mut c_void {
    W::DOMAIN.calloc(size, &W::DOMAIN.site(file, function, line))
}

unsafe extern "C" fn free<W: Which>(
    _block: *mut c_void,
    address: *mut c_void,
    file: Text,
    function: Text,
    line: u32,
    _module: Text,
) {
    W::DOMAIN.free(address, false, || W::DOMAIN.site(file, function, line));
}

unsafe extern "C" fn free_unsafe(
    _block: *mut c_void,
    address: *mut c_void,
    file: Text,
    function: Text,
    line: u32,
    _module: Text,
) {
    SHM.free(address, true, || SHM.site(file, function, line));
}

unsafe extern "C" fn realloc<W: Which>(
    _block: *mut c_void,
    address: *mut c_void,
    size: usize,
    file: Text,
    function: Text,
    line: u32,
    _module: Text,
) -> *mut c_void {
    W::DOMAIN.realloc(address, size, false, &W::DOMAIN.site(file, function, line))
}

/// As realloc, but the old block is freed even if there is no memory for the new one.
unsafe extern "C" fn realloc_or_free<W: Which>(
    _block: *mut c_void,
    address: *mut c_void,
    size: usize,
    file: Text,
    function: Text,
    line: u32,
    _module: Text,
) -> *mut c_void {
    let site = &W::DOMAIN.site(file, function, line);
    let moved = W::DOMAIN.realloc(address, size, false, site);
    if moved.is_null() && size != 0 {
        W::DOMAIN.free(address, false, || *site);
    }
    moved
}

/// A block of another size in place of one whose contents nobody wants any more.
unsafe extern "C" fn resize(
    _block: *mut c_void,
    address: *mut c_void,
    size: usize,
    file: Text,
    function: Text,
    line: u32,
    _module: Text,
) -> *mut c_void {
    let site = || SHM.site(file, function, line);
    SHM.free(address, false, site);
    SHM.malloc(size, site)
}

/// The core is about to unmap the pool.
unsafe extern "C" fn destroy_shm() {
    tend::stop();
    if let Some(destroy) = OLD_SHM.get().and_then(|old| old.destroy) {
        // SAFETY: the core's function, at the moment at which the core would call it.
        unsafe { destroy() };
    }
}

unsafe extern "C" fn destroy_pkg() {
    if let Some(destroy) = OLD_PKG.get().and_then(|old| old.destroy) {
        // SAFETY: as above.
        unsafe { destroy() };
    }
}
