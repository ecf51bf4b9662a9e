//! Fork: a child of a threaded process gets an arena that it can use.
//!
//! Before the fork the forking thread takes every lock in the order of their ranks, at a moment when nobody is between the
//! two phases of a growth or a release; so the child's copy of the arena is whole. The child resets the locks, which name
//! a thread of the parent, and whatever else the parent's other threads had begun. Cells that were in those threads'
//! registers stay CACHED in the child, in no cache: at most one per thread.
//!
//! Not called for vfork and `clone`, whose children share the parent's memory.

use crate::PROCESS;
use crate::elastic;
use crate::sys::{rseq, thread};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Which locks the fork took: a bit per class, and one for the grid above them; not set for a lock that the forking thread
/// held already (fork in a signal handler). Written by the thread that holds all locks.
static TAKEN: AtomicU64 = AtomicU64::new(0);
const GRID_BIT: usize = 63;

/// Thread that forks, as the parent knows it.
static PARENT_TID: AtomicU32 = AtomicU32::new(0);

/// Asks the C library to call us around forks. Called once, after the arena is started: the call may allocate. Handlers
/// registered first run last before a fork, so those of the program may still allocate.
pub(crate) fn register() {
    // SAFETY: S9, the functions live as long as the process: the object is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before() {
    let mut taken = 0;
    for (class, pool) in PROCESS.pools.iter().enumerate() {
        taken |= u64::from(pool.lock_for_fork()) << class;
    }
    taken |= u64::from(PROCESS.grid.lock_for_fork()) << GRID_BIT;
    TAKEN.store(taken, Relaxed);
    PARENT_TID.store(thread::tid(), Relaxed);
}

fn taken(bit: usize) -> bool {
    TAKEN.load(Relaxed) >> bit & 1 != 0
}

unsafe extern "C" fn in_parent() {
    if taken(GRID_BIT) {
        // SAFETY: S2, taken by `before` in this thread.
        unsafe { PROCESS.grid.lock.unlock_after_fork() };
    }
    for (class, pool) in PROCESS.pools.iter().enumerate() {
        if taken(class) {
            // SAFETY: S2, as above.
            unsafe { pool.unlock_after_fork() };
        }
    }
}

unsafe extern "C" fn in_child() {
    thread::forget_tid();
    // The child is another memory space to the kernel: it has to ask for the fence again.
    rseq::register_fence();
    PROCESS.fronts.reset_slots();
    PROCESS.maintenance.reset();
    // SAFETY: the child has one thread, and the locks were taken before the fork.
    unsafe {
        PROCESS.fronts.end_inherited_drain();
        PROCESS.grid.end_inherited_phases();
    }
    if let Some(page) = PROCESS.page() {
        page.header.pid.store(thread::pid(), Relaxed);
        elastic::close(page);
    }
    let parent_tid = PARENT_TID.load(Relaxed);
    PROCESS.grid.lock.reset_in_child(taken(GRID_BIT), parent_tid);
    for (class, pool) in PROCESS.pools.iter().enumerate() {
        pool.reset_in_child(taken(class), parent_tid);
    }
    if let Some(page) = PROCESS.page() {
        page.header.maintenance_tid.store(0, Relaxed);
        PROCESS.start_thread();
    }
}
