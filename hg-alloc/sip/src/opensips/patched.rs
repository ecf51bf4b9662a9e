//! The other way to take over OpenSIPS: its functions that set up memory are replaced before they run, so that no block
//! ever comes from its own allocators.

use super::{EXPORTS, Exports, FACTS, calls, pkg_arena, shm_arena};
use crate::domain::{PKG, SHM};
use crate::report::report;
use crate::{patch, symbols};
use core::ffi::{CStr, c_int, c_void};
use hg_alloc::shared::Arena;

/// The allocator that the server is told it has, F_MALLOC: the one that nothing but the variables of functions knows of.
const F_MALLOC: c_int = 1;

/// Bytes for a lock of the server's, whichever kind it was built with; all zero is an open one.
const LOCK_BYTES: usize = 128;

/// Replaces both functions. False, with a line, if that cannot be.
pub(super) fn install() -> bool {
    let (Some(pkg), Some(shm)) = (symbols::find(c"init_pkg_mallocs"), symbols::find(c"init_shm_mallocs")) else {
        report!(Error, "HG_SIP_HOOK=patch: this OpenSIPS has not the functions for it: it keeps its own allocator");
        return false;
    };
    // SAFETY: the signatures are OpenSIPS's; nothing of it runs yet.
    let is_done = unsafe {
        patch::replace(pkg, init_pkg as extern "C" fn() -> _ as usize)
            && patch::replace(shm, init_shm as extern "C" fn() -> _ as usize)
    };
    if !is_done {
        report!(Error, "HG_SIP_HOOK=patch: the program's text cannot be changed here; use HG_SIP_HOOK=late");
    }
    is_done
}

/// Sets a variable of the executable, if it has it.
fn set<T>(name: &CStr, value: T) {
    if let Some(place) = symbols::variable::<T>(name) {
        // SAFETY: a variable of that size; the process has one thread.
        unsafe { *place = value };
    }
}

/// Something that is not null, for callers who test that; nobody looks at it.
fn block(arena: &'static Arena) -> *mut c_void {
    (&raw const *arena).cast_mut().cast()
}

/// In place of `init_pkg_mallocs`.
extern "C" fn init_pkg() -> c_int {
    let (Some(facts), Some(exports)) = (FACTS.get(), EXPORTS.get()) else { return -1 };
    let Some(arena) = pkg_arena(facts) else { return -1 };
    PKG.set(arena, None);
    set(c"mem_allocator_pkg", F_MALLOC);
    // SAFETY: variables of the executable; the process has one thread.
    unsafe {
        *exports.pkg_block = block(arena);
        *exports.pkg_memory = block(arena);
    }
    exports.set_pkg();
    0
}

/// In place of `init_shm_mallocs`.
extern "C" fn init_shm() -> c_int {
    match EXPORTS.get().and_then(set_up) {
        Some(()) => 0,
        None => -1,
    }
}

fn set_up(exports: &Exports) -> Option<()> {
    let arena = shm_arena(FACTS.get()?)?;
    SHM.set(arena, None);
    set(c"mem_allocator_shm", F_MALLOC);
    let zeroed = |bytes| {
        let memory = arena.calloc(bytes).cast::<c_void>();
        (!memory.is_null()).then_some(memory)
    };
    // What the server's own function leaves behind: a lock, and two numbers of its threshold events in one block.
    set(c"mem_lock", zeroed(LOCK_BYTES)?);
    let events = zeroed(2 * size_of::<u64>())?;
    set(c"event_shm_last", events);
    set(c"event_shm_pending", events.wrapping_byte_add(size_of::<u64>()));
    // SAFETY: a variable of the executable; the process has one thread.
    unsafe { *exports.shm_block = block(arena) };
    calls::set_block(block(arena));
    exports.set_shm();
    Some(())
}
