//! A lock around what the server's own allocator still does for shared memory: takes back blocks of the server's start.
//!
//! The server has a lock for that, but takes it around every call; told not to, it takes it around none. Ours is robust: a process
//! that dies with it leaves it to the next one.

use crate::once::Once;
use hg_alloc::shared::Arena;

struct Shared(*mut libc::pthread_mutex_t);

// SAFETY: a mutex for all threads of all processes.
unsafe impl Sync for Shared {}

static LOCK: Once<Shared> = Once::new();

/// Makes the lock, in the arena's memory. False if there is none.
pub(super) fn create(arena: &'static Arena) -> bool {
    let mutex = arena.calloc(size_of::<libc::pthread_mutex_t>()).cast::<libc::pthread_mutex_t>();
    if mutex.is_null() {
        return false;
    }
    // SAFETY: the mutex and its attributes are memory of the right size, and nobody else knows them yet.
    unsafe {
        let mut attributes: libc::pthread_mutexattr_t = core::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(mutex, &attributes);
        libc::pthread_mutexattr_destroy(&mut attributes);
    }
    LOCK.set(Shared(mutex));
    true
}

/// Locks or unlocks.
pub(super) fn guard(is_locking: bool) {
    let Some(lock) = LOCK.get() else { return };
    // SAFETY: the mutex lives as long as the arena. A dead owner left the old pool as it left it, as without us.
    unsafe {
        if !is_locking {
            libc::pthread_mutex_unlock(lock.0);
        } else if libc::pthread_mutex_lock(lock.0) == libc::EOWNERDEAD {
            libc::pthread_mutex_consistent(lock.0);
        }
    }
}
