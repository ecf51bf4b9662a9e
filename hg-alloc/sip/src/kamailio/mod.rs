//! Kamailio: two exported structures of function pointers, which core and modules call through.
//!
//! `_pkg_root` is filled at the start, `_shm_root` when the first module is loaded. Rewriting them once they are filled moves all
//! that comes after to hg. The core tests whether an address lies in the pool that it mapped for shm, so the arena lies in
//! that pool: in one block that the core's own allocator hands out for it.

mod calls;
mod layout;
mod patched;
mod stats;

use crate::domain::{PKG, SHM};
use crate::figures::Info;
use crate::old::Old;
use crate::once::Once;
use crate::report::report;
use crate::settings::{self, Hook, Size};
use crate::symbols;
use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use hg_alloc::shared::{Arena, Options, create};
use layout::{PkgApi, ShmApi};

/// Added to the pool: the arena's pages are aligned to 2 MiB, and the core's allocator has blocks of its own there.
const POOL_EXTRA: u64 = 5 << 20;

/// And a part of it for those of its allocators that hand out no block of nearly all of their memory.
const POOL_PART: u64 = 24;

/// Arenas consist of pages of this size, bytes, at multiples of it.
const PAGE: usize = 2 << 20;

/// Left to the core's allocator.
const POOL_REST: usize = 256 << 10;

/// Cut from both ends of a block of the core's allocator: some write there while it is free, and an arena expects zeros.
const BLOCK_EDGE: usize = 4096;

/// Where the text stands in a record of `pt`: behind pid, socket, index, status and rank.
pub(crate) const ROLE_AT: usize = 5 * size_of::<c_int>();

/// What Kamailio exports.
struct Exports {
    pkg: *mut PkgApi,
    shm: *mut ShmApi,
    pkg_bytes: *mut c_ulong,
    shm_bytes: *mut c_ulong,
    processes: Option<*mut *mut c_void>,
}

static EXPORTS: Once<Exports> = Once::new();

/// The structures as the core filled them.
static OLD_PKG: Once<PkgApi> = Once::new();
static OLD_SHM: Once<ShmApi> = Once::new();

/// Whether a domain was tried: an arena that cannot be made is not tried again.
static PKG_TRIED: AtomicBool = AtomicBool::new(false);
static SHM_TRIED: AtomicBool = AtomicBool::new(false);

/// The size of shm that the operator asked for, and what it was made.
static ASKED: AtomicU64 = AtomicU64::new(0);
static MADE: AtomicU64 = AtomicU64::new(0);

/// Whether this is a Kamailio.
pub(crate) fn is_here() -> bool {
    symbols::find(c"_shm_root").is_some() && symbols::find(c"_pkg_root").is_some()
}

/// Looks for what is needed. False, with a line, if this Kamailio is another one than we know.
pub(crate) fn prepare(hook: Hook) -> bool {
    let found = (
        symbols::variable::<PkgApi>(c"_pkg_root"),
        symbols::variable::<ShmApi>(c"_shm_root"),
        symbols::variable::<c_ulong>(c"pkg_mem_size"),
        symbols::variable::<c_ulong>(c"shm_mem_size"),
    );
    let (Some(pkg), Some(shm), Some(pkg_bytes), Some(shm_bytes)) = found else {
        let size = |name| symbols::find(name).map_or(0, |symbol| symbol.size);
        let (pkg, shm) = (size(c"_pkg_root"), size(c"_shm_root"));
        report!(
            Error,
            "this Kamailio's memory interface is not known (_pkg_root {pkg} bytes, _shm_root {shm}; known: 128 and 168, as of 5.6 and 5.7): it keeps its own allocator"
        );
        return false;
    };
    let processes = symbols::variable(c"pt");
    let flags = symbols::find(c"ver_flags").map_or("", |flags| symbols::text(flags.pointer()));
    [&PKG, &SHM].iter().for_each(|domain| domain.set_sites(flags.contains("DBG_SR_MEMORY")));
    EXPORTS.set(Exports { pkg, shm, pkg_bytes, shm_bytes, processes });
    if hook == Hook::Patch {
        // Nothing is left to be taken over later.
        PKG_TRIED.store(true, Relaxed);
        SHM_TRIED.store(true, Relaxed);
        return patched::install();
    }
    true
}

/// Takes over what the core has filled.
pub(crate) fn moment() {
    let Some(exports) = EXPORTS.get() else { return };
    // SAFETY: variables of the executable, of these types as their sizes say; the process has one thread.
    let (is_pkg_up, is_shm_up) = unsafe { ((*exports.pkg).malloc.is_some(), (*exports.shm).malloc.is_some()) };
    if is_pkg_up && !PKG_TRIED.swap(true, Relaxed) {
        take_pkg(exports);
    }
    if is_shm_up && !SHM_TRIED.swap(true, Relaxed) {
        take_shm(exports);
    }
    if is_pkg_up && !is_shm_up {
        enlarge_pool(exports);
    }
}

/// Makes the pool that the core is going to map large enough for an arena of the size that is asked for.
fn enlarge_pool(exports: &Exports) {
    // SAFETY: as in `moment`.
    let bytes = unsafe { *exports.shm_bytes };
    if bytes == 0 || bytes == MADE.load(Relaxed) {
        return;
    }
    ASKED.store(bytes, Relaxed);
    let cap = settings::size(c"HG_SHM").map_or(bytes, |size| size.cap);
    let made = cap + cap / POOL_PART + POOL_EXTRA;
    MADE.store(made, Relaxed);
    // SAFETY: as in `moment`.
    unsafe { *exports.shm_bytes = made };
}

fn pkg_arena(exports: &Exports) -> Option<&'static Arena> {
    // SAFETY: as in `moment`.
    let asked = unsafe { *exports.pkg_bytes };
    let size = settings::size(c"HG_PKG").unwrap_or(Size::of_server(asked));
    PKG.announce(create(&Options {
        odd_strides: true,
        grows_inherited: true,
        single_threaded: true,
        ..Options::private("pkg", size.init, size.cap)
    }))
}

/// An arena in memory that the core mapped: as much of it as is asked for.
fn shm_arena(exports: &Exports, memory: *mut u8, bytes: usize) -> Option<&'static Arena> {
    // The configuration may have changed the size after all.
    // SAFETY: as in `moment`.
    let made = unsafe { *exports.shm_bytes };
    let asked = if made == MADE.load(Relaxed) { ASKED.load(Relaxed) } else { made };
    let size = settings::size(c"HG_SHM").unwrap_or(Size::of_server(asked));
    let unaligned = (memory as usize).next_multiple_of(PAGE) - memory as usize;
    let bytes = bytes.min(unaligned + (size.cap as usize).next_multiple_of(PAGE));
    let init = size.init.min((bytes.saturating_sub(unaligned) & !(PAGE - 1)) as u64);
    let options = settings::shaped(Options {
        odd_strides: true,
        memory: Some((memory, bytes)),
        ..Options::shared("shm", init, size.cap)
    });
    if options.huge {
        align_pages(memory as usize + unaligned, bytes.saturating_sub(unaligned) & !(PAGE - 1));
    }
    SHM.announce(create(&options))
}

/// Puts new shared memory in the place of whole pages of the core's mapping, which begins anywhere: the kernel makes huge pages
/// only where addresses agree with offsets. A refusal leaves the memory as it was.
fn align_pages(first: usize, bytes: usize) {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: the pages lie in a block that the core's allocator gave us, in which nobody wrote yet, and no worker was forked.
    unsafe { libc::mmap(first as *mut c_void, bytes, access, kind, -1, 0) };
}

fn take_pkg(exports: &Exports) {
    // SAFETY: as in `moment`; the core filled the structure.
    let old = unsafe { *exports.pkg };
    let Some(free) = old.free else { return };
    let Some(arena) = pkg_arena(exports) else { return };
    OLD_PKG.set(old);
    // SAFETY: as in `moment`.
    let bytes = unsafe { *exports.pkg_bytes } as usize;
    let mut behind = Old {
        start: old.pool as usize,
        end: old.pool as usize + bytes,
        block: old.block,
        free,
        free_locked: free,
        size_of: None,
        guard: None,
        used: |old| used(OLD_PKG.get().and_then(|api| api.info), old.block),
        reserved: 0,
        used_then: 0,
    };
    behind.used_then = behind.live();
    PKG.set(arena, Some(behind));
    // SAFETY: as in `moment`: nobody is inside the functions that are replaced.
    unsafe { *exports.pkg = calls::pkg(&old) };
}

fn take_shm(exports: &Exports) {
    // SAFETY: as in `moment`; the core filled the structure.
    let old = unsafe { *exports.shm };
    let (Some(malloc), Some(free), Some(free_unsafe), Some(available)) =
        (old.malloc, old.free, old.free_unsafe, old.available)
    else {
        return;
    };
    // SAFETY: the core's functions, with its block, as the core would call them.
    let room = unsafe { available(old.block) }.saturating_sub(POOL_REST);
    let (mut bytes, mut memory) = (room, core::ptr::null_mut::<c_void>());
    // Some look for a block among those that are surely large enough, which a block of nearly all memory is not.
    while memory.is_null() && bytes > room / 2 {
        // SAFETY: as above.
        memory = unsafe { malloc(old.block, bytes, c"hg".as_ptr(), c"hg".as_ptr(), 0, c"hg".as_ptr()) };
        if memory.is_null() {
            bytes -= room / 64;
        }
    }
    if memory.is_null() {
        report!(
            Error,
            "shm: the server's pool has no room for an arena ({room} bytes free): it keeps its own allocator there"
        );
        return;
    }
    let inside = memory.cast::<u8>().wrapping_add(BLOCK_EDGE);
    let Some(arena) = shm_arena(exports, inside, bytes - 2 * BLOCK_EDGE) else {
        // SAFETY: as above.
        unsafe { free(old.block, memory, c"hg".as_ptr(), c"hg".as_ptr(), 0, c"hg".as_ptr()) };
        return;
    };
    OLD_SHM.set(old);
    // SAFETY: as in `moment`.
    let pool = unsafe { *exports.shm_bytes } as usize;
    let mut behind = Old {
        start: old.pool as usize,
        end: old.pool as usize + pool,
        block: old.block,
        free,
        free_locked: free_unsafe,
        size_of: None,
        guard: None,
        used: |old| used(OLD_SHM.get().and_then(|api| api.info), old.block),
        reserved: bytes,
        used_then: 0,
    };
    behind.used_then = behind.live();
    SHM.set(arena, Some(behind));
    // SAFETY: as in `moment`.
    unsafe { *exports.shm = calls::shm(&old) };
}

/// Bytes that the core's allocator has handed out.
fn used(info: Option<layout::InfoOf>, block: *mut c_void) -> usize {
    let mut figures = Info::default();
    if let Some(info) = info {
        // SAFETY: the core's function, with its block; it fills the structure.
        unsafe { info(block, &mut figures) };
    }
    figures.used_size
}

/// The table of processes.
pub(crate) fn table() -> *mut c_void {
    // SAFETY: a variable of the executable; null until the core sets it, then a block of shared memory.
    EXPORTS.get().and_then(|exports| exports.processes).map_or(core::ptr::null_mut(), |table| unsafe { *table })
}
