//! The other way to take over Kamailio: its functions that set up memory are replaced before they run, so that no block
//! ever comes from its own allocator.

use super::layout::{PkgApi, ShmApi};
use super::{EXPORTS, Exports, calls, enlarge_pool, pkg_arena, shm_arena};
use crate::domain::{PKG, SHM};
use crate::once::Once;
use crate::report::report;
use crate::{patch, symbols};
use core::ffi::{c_char, c_int, c_void};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering::*};

type GetPool = unsafe extern "C" fn() -> *mut c_void;

static GET_POOL: Once<GetPool> = Once::new();

/// Tries before a waiter lets others run.
const SPINS: u32 = 1000;

/// The server's lock of its shared memory, for those who ask for it; the arena does not need it. In shared memory.
static LOCK: Once<&'static AtomicU32> = Once::new();

/// Replaces both functions. False, with a line, if that cannot be.
pub(super) fn install() -> bool {
    // SAFETY: the signature is Kamailio's.
    let get_pool = unsafe { symbols::function::<GetPool>(c"shm_core_get_pool") };
    let (Some(pkg), Some(shm), Some(get_pool)) =
        (symbols::find(c"pkg_init_manager"), symbols::find(c"shm_init_manager"), get_pool)
    else {
        report!(Error, "HG_SIP_HOOK=patch: this Kamailio has not the functions for it: it keeps its own allocator");
        return false;
    };
    GET_POOL.set(get_pool);
    // SAFETY: the signatures are Kamailio's; nothing of it runs yet.
    let is_done = unsafe {
        patch::replace(pkg, init_pkg as extern "C" fn(_) -> _ as usize)
            && patch::replace(shm, init_shm as extern "C" fn(_) -> _ as usize)
    };
    if !is_done {
        report!(Error, "HG_SIP_HOOK=patch: the program's text cannot be changed here; use HG_SIP_HOOK=late");
    }
    is_done
}

/// In place of `pkg_init_manager`.
extern "C" fn init_pkg(_name: *const c_char) -> c_int {
    let Some(exports) = EXPORTS.get() else { return -1 };
    let Some(arena) = pkg_arena(exports) else { return -1 };
    PKG.set(arena, None);
    // SAFETY: all zero is a valid structure: null pointers and no functions.
    let empty: PkgApi = unsafe { core::mem::zeroed() };
    let api = PkgApi { pool: block(arena), block: block(arena), ..calls::pkg(&empty) };
    // SAFETY: a variable of the executable; the process has one thread.
    unsafe { *exports.pkg = api };
    0
}

/// In place of `shm_init_manager`.
extern "C" fn init_shm(_name: *const c_char) -> c_int {
    let (Some(exports), Some(get_pool)) = (EXPORTS.get(), GET_POOL.get()) else { return -1 };
    match take_pool(exports, *get_pool) {
        Some(()) => 0,
        None => -1,
    }
}

fn take_pool(exports: &Exports, get_pool: GetPool) -> Option<()> {
    enlarge_pool(exports);
    // SAFETY: the core's function, called where its own initialiser would.
    let pool = unsafe { get_pool() };
    if pool.is_null() {
        return None;
    }
    // SAFETY: a variable of the executable; the process has one thread.
    let bytes = unsafe { *exports.shm_bytes } as usize;
    let arena = shm_arena(exports, pool.cast(), bytes)?;
    // SAFETY: zeroed, aligned to 8, and kept as long as the arena is.
    let lock = unsafe { arena.calloc(size_of::<u64>()).cast::<AtomicU32>().as_ref() }?;
    LOCK.set(lock);
    SHM.set(arena, None);
    // SAFETY: all zero is a valid structure: null pointers and no functions.
    let empty: ShmApi = unsafe { core::mem::zeroed() };
    let api =
        ShmApi { pool, block: block(arena), lock: Some(lock_shm), unlock: Some(unlock_shm), ..calls::shm(&empty) };
    // SAFETY: as above.
    unsafe { *exports.shm = api };
    Some(())
}

/// Something that is not null, for callers who test that; nobody looks at it.
fn block(arena: &'static hg_alloc::shared::Arena) -> *mut c_void {
    (&raw const *arena).cast_mut().cast()
}

unsafe extern "C" fn lock_shm(_block: *mut c_void) {
    let Some(lock) = LOCK.get() else { return };
    let mut spins = 0;
    while lock.swap(1, Acquire) != 0 {
        spins += 1;
        if spins % SPINS == 0 {
            // SAFETY: no memory is passed.
            unsafe { libc::sched_yield() };
        }
        spin_loop();
    }
}

/// Also called by who does not have the lock: the server opens it before it shuts down, as its holder may be dead.
unsafe extern "C" fn unlock_shm(_block: *mut c_void) {
    if let Some(lock) = LOCK.get() {
        lock.store(0, Release);
    }
}
