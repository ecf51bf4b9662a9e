//! The functions that OpenSIPS gets in place of its allocators', and the variables that they go into.
//!
//! An arena is safe for all processes at once, so the `unsafe` forms differ for blocks of the old pool alone. Shared memory has
//! a second pool of the server's, for its log of allocations, which goes through the same variables: calls for it are passed on.

use super::{FACTS, Facts, OLD_CALLS};
use crate::domain::{Domain, PKG as PRIVATE, SHM as SHARED};
use crate::dump;
use crate::figures::{Figures, Info, blocks};
use core::ffi::{CStr, c_char, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A function, as what a variable holds.
type Code = *const ();

/// pkg's variables.
pub(super) const PKG: [(&CStr, Code); 11] = [
    (c"gen_pkg_malloc", pkg_malloc as Code),
    (c"gen_pkg_realloc", pkg_realloc as Code),
    (c"gen_pkg_free", pkg_free as Code),
    (c"gen_pkg_info", info::<Pkg> as Code),
    (c"gen_pkg_status", status::<Pkg> as Code),
    (c"gen_pkg_get_size", size::<Pkg> as Code),
    (c"gen_pkg_get_used", used::<Pkg> as Code),
    (c"gen_pkg_get_rused", real_used::<Pkg> as Code),
    (c"gen_pkg_get_mused", max_used::<Pkg> as Code),
    (c"gen_pkg_get_free", available::<Pkg> as Code),
    (c"gen_pkg_get_frags", fragments::<Pkg> as Code),
];

/// shm's variables.
pub(super) const SHM: [(&CStr, Code); 15] = [
    (c"gen_shm_malloc", shm_malloc as Code),
    (c"gen_shm_malloc_unsafe", shm_malloc as Code),
    (c"gen_shm_realloc", shm_realloc as Code),
    (c"gen_shm_realloc_unsafe", shm_realloc as Code),
    (c"gen_shm_free", shm_free as Code),
    (c"gen_shm_free_unsafe", shm_free as Code),
    (c"gen_shm_info", info::<Shm> as Code),
    (c"gen_shm_status", status::<Shm> as Code),
    (c"gen_shm_get_size", size::<Shm> as Code),
    (c"gen_shm_get_used", used::<Shm> as Code),
    (c"gen_shm_get_rused", real_used::<Shm> as Code),
    (c"gen_shm_get_mused", max_used::<Shm> as Code),
    (c"gen_shm_get_free", available::<Shm> as Code),
    (c"gen_shm_get_frags", fragments::<Shm> as Code),
    (c"shm_frag_size", frag_size as Code),
];

/// The block that calls for shm name; any other is one that the server manages itself.
static BLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Sets the block of shm. Before the functions are.
pub(super) fn set_block(block: *mut c_void) {
    BLOCK.store(block, Relaxed);
}

pub(super) type Text = *const c_char;

#[inline(always)]
fn check_threshold() {
    if let Some(facts) = FACTS.get() {
        facts.check_pkg_threshold();
    }
}

unsafe extern "C" fn pkg_malloc(
    _block: *mut c_void,
    bytes: usize,
    file: Text,
    function: Text,
    line: u32,
) -> *mut c_void {
    let address = PRIVATE.malloc(bytes, || PRIVATE.site(file, function, line));
    check_threshold();
    address
}

unsafe extern "C" fn pkg_realloc(
    _block: *mut c_void,
    address: *mut c_void,
    bytes: usize,
    file: Text,
    function: Text,
    line: u32,
) -> *mut c_void {
    let moved = PRIVATE.realloc(address, bytes, false, &PRIVATE.site(file, function, line));
    check_threshold();
    moved
}

unsafe extern "C" fn pkg_free(_block: *mut c_void, address: *mut c_void, file: Text, function: Text, line: u32) {
    PRIVATE.free(address, false, || PRIVATE.site(file, function, line));
    check_threshold();
}

unsafe extern "C" fn shm_malloc(
    block: *mut c_void,
    bytes: usize,
    file: Text,
    function: Text,
    line: u32,
) -> *mut c_void {
    if block == BLOCK.load(Relaxed) {
        return SHARED.malloc(bytes, || SHARED.site(file, function, line));
    }
    // SAFETY: the function that belongs to such blocks, with the caller's arguments.
    OLD_CALLS.get().map_or(null_mut(), |old| unsafe { (old.malloc)(block, bytes, file, function, line, null()) })
}

unsafe extern "C" fn shm_realloc(
    block: *mut c_void,
    address: *mut c_void,
    bytes: usize,
    file: Text,
    function: Text,
    line: u32,
) -> *mut c_void {
    if block == BLOCK.load(Relaxed) {
        return SHARED.realloc(address, bytes, false, &SHARED.site(file, function, line));
    }
    // SAFETY: as above.
    OLD_CALLS.get().map_or(null_mut(), |old| unsafe { (old.realloc)(block, address, bytes, file, function, line) })
}

unsafe extern "C" fn shm_free(block: *mut c_void, address: *mut c_void, file: Text, function: Text, line: u32) {
    if block == BLOCK.load(Relaxed) {
        return SHARED.free(address, false, || SHARED.site(file, function, line));
    }
    if let Some(old) = OLD_CALLS.get() {
        // SAFETY: as above.
        unsafe { (old.free)(block, address, file, function, line, null()) };
    }
}

/// Asked before each free, so it is one look-up.
unsafe extern "C" fn frag_size(address: *mut c_void) -> usize {
    SHARED.usable_size(address)
}

/// Which domain a statistic is of.
trait Which {
    const DOMAIN: &'static Domain;
}

struct Pkg;
struct Shm;

impl Which for Pkg {
    const DOMAIN: &'static Domain = &PRIVATE;
}

impl Which for Shm {
    const DOMAIN: &'static Domain = &SHARED;
}

unsafe extern "C" fn info<W: Which>(_block: *mut c_void, info: *mut Info) {
    // SAFETY: the caller gives a structure to be filled.
    unsafe { info.write(Info::of(W::DOMAIN)) };
}

unsafe extern "C" fn status<W: Which>(_block: *mut c_void) {
    if FACTS.get().is_some_and(Facts::is_dump_logged) {
        dump::write(W::DOMAIN, true);
    }
}

unsafe extern "C" fn size<W: Which>(_block: *mut c_void) -> usize {
    Figures::total(W::DOMAIN)
}

unsafe extern "C" fn real_used<W: Which>(_block: *mut c_void) -> usize {
    Figures::real_used(W::DOMAIN)
}

unsafe extern "C" fn used<W: Which>(_block: *mut c_void) -> usize {
    Figures::of(W::DOMAIN).used
}

unsafe extern "C" fn max_used<W: Which>(_block: *mut c_void) -> usize {
    Figures::of(W::DOMAIN).max_used
}

unsafe extern "C" fn available<W: Which>(_block: *mut c_void) -> usize {
    Figures::of(W::DOMAIN).free
}

unsafe extern "C" fn fragments<W: Which>(_block: *mut c_void) -> usize {
    let (used, free) = blocks(W::DOMAIN);
    used + free
}
