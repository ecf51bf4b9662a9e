//! One kind of a server's memory: shared (shm) or private (pkg), on an arena, with the server's own allocator behind it for
//! the blocks that it handed out before.
//!
//! The arena is set before the server gets a function of ours, and never changes; children inherit that. What is not the
//! arena's and lies in the server's own pool goes to the server's own functions. Everything else is the arena's to refuse.

use crate::old::Old;
use crate::once::Once;
use crate::report::{Place, report};
use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use hg_alloc::shared::{Arena, Error, Site};
use hg_probes::directory::{PROCESSES, ProcessRecord};

/// Shortest time between two lines that say there is no memory, seconds.
const QUIET_SECONDS: u64 = 10;

/// See the module. What each call needs comes first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct Domain {
    arena: AtomicPtr<Arena>,
    /// Whether callers tell where they are.
    has_sites: AtomicBool,
    /// What servers and this library call it.
    pub(crate) label: &'static str,
    /// What makes it larger: the server's option and our variable.
    option: &'static str,
    variable: &'static str,
    old: Once<Old>,
    /// When the last line about missing memory was written, seconds of the monotonic clock.
    told: AtomicU64,
}

/// Memory that all processes of the server share.
pub(crate) static SHM: Domain = Domain::new("shm", "-m", "HG_SHM");

/// Memory of each process.
pub(crate) static PKG: Domain = Domain::new("pkg", "-M", "HG_PKG");

impl Domain {
    const fn new(label: &'static str, option: &'static str, variable: &'static str) -> Domain {
        Domain {
            arena: AtomicPtr::new(null_mut()),
            has_sites: AtomicBool::new(false),
            label,
            option,
            variable,
            old: Once::new(),
            told: AtomicU64::new(0),
        }
    }

    /// The arena that was made for the domain, told in a line; or none, and why.
    pub(crate) fn announce(&self, result: Result<&'static Arena, Error>) -> Option<&'static Arena> {
        match result {
            Ok(arena) => {
                report!(Info, "{}: on hg, up to {} bytes", self.label, arena.cap_bytes());
                Some(arena)
            }
            Err(error) => {
                let (label, why, errno) = (self.label, error.label(), error.errno());
                report!(Error, "{label}: no arena ({why}, errno {errno}): the server keeps its own allocator there");
                None
            }
        }
    }

    /// Puts the domain on an arena. `old` is what handed out blocks until now, if something did.
    pub(crate) fn set(&self, arena: &'static Arena, old: Option<Old>) {
        if let Some(old) = old {
            self.old.set(old);
        }
        self.arena.store((&raw const *arena).cast_mut(), Release);
    }

    /// Says whether callers tell where they are. Before the first call.
    pub(crate) fn set_sites(&self, has_sites: bool) {
        self.has_sites.store(has_sites, Relaxed);
    }

    /// Where a call was made. Builds without debugging arguments leave rubbish in their registers.
    #[inline(always)]
    pub(crate) fn site(&self, file: *const c_char, function: *const c_char, line: u32) -> Site {
        if self.has_sites.load(Relaxed) {
            Site { file: file.cast(), function: function.cast(), line }
        } else {
            Site::UNKNOWN
        }
    }

    /// The arena, if the domain is on one.
    #[inline(always)]
    pub(crate) fn arena(&self) -> Option<&'static Arena> {
        // SAFETY: null, or an arena that lives as long as the process.
        unsafe { self.arena.load(Relaxed).as_ref() }
    }

    /// The records of the processes that use the arena.
    pub(crate) fn processes(&self) -> Option<&'static [ProcessRecord]> {
        let first = self.arena()?.stats_page().header.processes_address.load(Relaxed) as *const ProcessRecord;
        // SAFETY: the arena's own directory, which is mapped as long as the arena is.
        (!first.is_null()).then(|| unsafe { core::slice::from_raw_parts(first, PROCESSES) })
    }

    /// What handed out blocks before.
    pub(crate) fn old(&self) -> Option<&Old> {
        self.old.get()
    }

    /// Whether the server's own allocator handed out a block.
    #[inline(always)]
    fn old_of(&self, address: *mut c_void) -> Option<&Old> {
        self.old.get().filter(|old| old.owns(address))
    }

    /// Allocates; null and a line where there is no memory.
    #[inline(always)]
    pub(crate) fn malloc(&self, size: usize, site: impl Fn() -> Site) -> *mut c_void {
        let Some(arena) = self.arena() else { return null_mut() };
        let address = arena.malloc_at(size, &site);
        if address.is_null() {
            self.out_of_memory(size, &site());
        }
        address.cast()
    }

    /// As [`malloc`](Domain::malloc), zeroed.
    pub(crate) fn calloc(&self, size: usize, site: &Site) -> *mut c_void {
        let address = self.malloc(size, || *site);
        if !address.is_null() {
            // SAFETY: a block of `size` bytes that nobody else knows.
            unsafe { address.cast::<u8>().write_bytes(0, size) };
        }
        address
    }

    /// Frees. `is_locked`: the caller holds the server's lock of the memory, see [`Old::free`].
    #[inline(always)]
    pub(crate) fn free(&self, address: *mut c_void, is_locked: bool, site: impl Fn() -> Site) {
        let Some(arena) = self.arena() else { return };
        if arena.owns(address.cast()) {
            return arena.free(address.cast());
        }
        self.free_other(arena, address, is_locked, &site());
    }

    #[cold]
    fn free_other(&self, arena: &Arena, address: *mut c_void, is_locked: bool, site: &Site) {
        match self.old_of(address) {
            Some(old) => old.free(address, is_locked, site),
            // Null is nothing; what is nobody's is refused, counted and told by the arena.
            None if !address.is_null() => arena.free(address.cast()),
            None => {}
        }
    }

    /// Makes a block larger or smaller: null allocates, size 0 frees and gives null, no memory gives null and keeps the block.
    pub(crate) fn realloc(&self, address: *mut c_void, size: usize, is_locked: bool, site: &Site) -> *mut c_void {
        let Some(arena) = self.arena() else { return null_mut() };
        if address.is_null() {
            return self.malloc(size, || *site);
        }
        if size == 0 {
            self.free(address, is_locked, || *site);
            return null_mut();
        }
        let Some(old) = self.old_of(address) else {
            let moved = arena.realloc(address.cast(), size);
            if moved.is_null() {
                self.out_of_memory(size, site);
            }
            return moved.cast();
        };
        // A block of the old pool moves over at the first chance: the pool has nothing more to give.
        let moved = self.malloc(size, || *site);
        if !moved.is_null() {
            // SAFETY: the new block has `size` bytes, and so many can be read from the old one on.
            unsafe {
                core::ptr::copy_nonoverlapping(address.cast::<u8>(), moved.cast(), old.readable(address).min(size))
            };
            old.free(address, is_locked, site);
        }
        moved
    }

    /// Bytes that may be used in a block: one look-up.
    #[inline(always)]
    pub(crate) fn usable_size(&self, address: *mut c_void) -> usize {
        match self.arena() {
            Some(arena) if arena.owns(address.cast()) => arena.usable_size(address.cast()),
            _ => self.old_of(address).map_or(0, |old| old.usable_size(address)),
        }
    }

    #[cold]
    fn out_of_memory(&self, size: usize, site: &Site) {
        let Some(arena) = self.arena() else { return };
        let now = seconds();
        let told = self.told.load(Relaxed);
        // Servers try again and again, and each of their processes: the first line says it all.
        if told != 0 && now < told + QUIET_SECONDS {
            return;
        }
        self.told.store(now, Relaxed);
        let (used, cap) = (arena.used_bytes(), arena.cap_bytes());
        let Domain { label, option, variable, .. } = self;
        let site = Place(site.file, site.line.into());
        report!(
            Error,
            "{label}: no memory for {size} bytes at {site} ({used} of {cap} in use): start the server with a larger {option}, or set {variable}"
        );
    }
}

/// Seconds of the monotonic clock, from 1.
fn seconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the C library writes the one structure given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 + 1
}
