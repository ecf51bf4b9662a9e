//! OpenSIPS: a variable for each function of its allocators, exported, which core and modules call through.
//!
//! The variables of pkg are set before the command line is read for the second time, those of shm before the configuration is
//! opened. Rewriting them moves all that comes after to hg. Builds with one allocator only have no such variables: there its functions
//! are replaced.

mod calls;
mod exports;
mod facts;
mod inlined;
mod lock;
mod patched;

use crate::domain::{PKG, SHM};
use crate::old::Old;
use crate::once::Once;
use crate::report::report;
use crate::settings::{self, Hook, Size};
use crate::symbols;
use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use exports::{Exports, OldCalls};
use facts::Facts;
use hg_alloc::shared::{Arena, Options, create};

/// Where the text stands in a record of `pt`: behind pid, type and a pointer.
pub(crate) const ROLE_AT: usize = 2 * size_of::<c_int>() + size_of::<*mut c_void>();

static FACTS: Once<Facts> = Once::new();

static EXPORTS: Once<Exports> = Once::new();

/// The functions that the variables held before.
static OLD_CALLS: Once<OldCalls> = Once::new();

/// Whether a domain was tried: an arena that cannot be made is not tried again.
static PKG_TRIED: AtomicBool = AtomicBool::new(false);
static SHM_TRIED: AtomicBool = AtomicBool::new(false);

/// Whether this is an OpenSIPS.
pub(crate) fn is_here() -> bool {
    symbols::find(c"shm_block").is_some() && symbols::find(c"mem_block").is_some()
}

/// Looks for what is needed. False, with a line, if this OpenSIPS is another one than we know.
pub(crate) fn prepare(hook: Hook) -> bool {
    match Facts::find() {
        Ok(facts) => {
            [&PKG, &SHM].iter().for_each(|domain| domain.set_sites(facts.has_sites));
            FACTS.set(facts);
        }
        Err(missing) => return unknown(missing),
    }
    match Exports::find() {
        Ok(exports) => EXPORTS.set(exports),
        Err(missing) => return inlined::install().unwrap_or_else(|| unknown(missing)),
    }
    if hook == Hook::Patch {
        // Nothing is left to be taken over later.
        PKG_TRIED.store(true, Relaxed);
        SHM_TRIED.store(true, Relaxed);
        return patched::install();
    }
    true
}

fn unknown(missing: &CStr) -> bool {
    let missing = missing.to_str().unwrap_or_default();
    report!(Error, "this OpenSIPS's memory interface is not known ({missing}): it keeps its own allocator");
    false
}

/// Takes over what the core has set.
pub(crate) fn moment() {
    let (Some(facts), Some(exports)) = (FACTS.get(), EXPORTS.get()) else { return };
    if exports.is_pkg_up() && !PKG_TRIED.swap(true, Relaxed) {
        take_pkg(facts, exports);
    }
    if exports.is_shm_up() && !SHM_TRIED.swap(true, Relaxed) {
        take_shm(facts, exports);
    }
}

fn pkg_arena(facts: &Facts) -> Option<&'static Arena> {
    let size = settings::size(c"HG_PKG").unwrap_or(Size::of_server(read(facts.pkg_bytes)));
    PKG.announce(create(&Options {
        odd_strides: true,
        grows_inherited: true,
        single_threaded: true,
        ..Options::private("pkg", size.init, size.cap)
    }))
}

fn shm_arena(facts: &Facts) -> Option<&'static Arena> {
    let size = settings::size(c"HG_SHM").unwrap_or(Size::of_server(read(facts.shm_bytes)));
    SHM.announce(create(&settings::shaped(Options {
        odd_strides: true,
        ..Options::shared("shm", size.init, size.cap)
    })))
}

fn read(variable: *mut c_ulong) -> u64 {
    // SAFETY: a variable of the executable, of this type as its size says; the process has one thread.
    unsafe { *variable }
}

fn take_pkg(facts: &Facts, exports: &Exports) {
    let (Some(free), Some(used)) = (exports.pkg_free(), exports.pkg_used()) else { return };
    let Some(arena) = pkg_arena(facts) else { return };
    let (start, block) = exports.pkg_pool();
    OLD_PKG_USED.set(used);
    let mut behind = Old {
        start: start as usize,
        end: start as usize + read(facts.pkg_bytes) as usize,
        block,
        free,
        free_locked: free,
        size_of: None,
        guard: None,
        // SAFETY: the core's function, with its block.
        used: |old| OLD_PKG_USED.get().map_or(0, |used| unsafe { used(old.block) }),
        reserved: 0,
        used_then: 0,
    };
    behind.used_then = behind.live();
    PKG.set(arena, Some(behind));
    exports.set_pkg();
}

fn take_shm(facts: &Facts, exports: &Exports) {
    if exports.is_shm_hp() {
        report!(
            Error,
            "shm: HP_MALLOC keeps statistics that the server reads past its allocator: start it with -s F_MALLOC; it keeps its own allocator there"
        );
        return;
    }
    let Some(old) = exports.shm_calls() else { return };
    let Some(arena) = shm_arena(facts) else { return };
    if !lock::create(arena) {
        report!(Error, "shm: no memory for a lock: the server keeps its own allocator there");
        return;
    }
    let (start, end, block) = exports.shm_pool(read(facts.shm_bytes) as usize);
    OLD_CALLS.set(old);
    let mut behind = Old {
        start,
        end,
        block,
        free: old.free,
        free_locked: old.free_unsafe,
        size_of: Some(old.size_of),
        guard: Some(lock::guard),
        // SAFETY: as above.
        used: |old| OLD_CALLS.get().map_or(0, |calls| unsafe { (calls.used)(old.block) }),
        reserved: 0,
        used_then: 0,
    };
    behind.used_then = behind.live();
    SHM.set(arena, Some(behind));
    calls::set_block(block);
    exports.set_shm();
}

static OLD_PKG_USED: Once<exports::Figure> = Once::new();

/// After a step of maintenance of shared memory.
pub(crate) fn ticked() {
    inlined::ticked();
}

/// The table of processes.
pub(crate) fn table() -> *mut c_void {
    FACTS.get().map_or(core::ptr::null_mut(), Facts::table)
}
