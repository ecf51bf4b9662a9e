//! A robust, process-shared mutex of the C library, whose owner's death the kernel tells.
//!
//! The kernel walks a dying thread's list of such mutexes, marks each, and wakes a waiter, who then gets it as
//! [`Taken::FromDead`]: what the dead one left has to be put right before anything else. A thread that ends without a release
//! counts as dead. The same pages have to be mapped by all who use it; pids may be of different namespaces.
//!
//! Users: `lock.rs`, for critical sections; `directory.rs`, where each thread holds one as long as it lives.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Set by the kernel in the first word when the owner died (`FUTEX_OWNER_DIED`, linux/futex.h).
const OWNER_DIED: u32 = 0x4000_0000;

unsafe extern "C" {
    fn pthread_mutex_clocklock(
        mutex: *mut libc::pthread_mutex_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> i32;
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is ours.
    Yes,
    /// It is ours, and the one who had it died.
    FromDead,
    /// It is somebody else's.
    No,
}

/// Storage of a `pthread_mutex_t`.
#[repr(C)]
pub(super) struct Mutex([AtomicU64; 5]);

const _: () = assert!(size_of::<Mutex>() == size_of::<libc::pthread_mutex_t>());

impl Mutex {
    /// The mutex at the start of a thread's record.
    pub(super) fn of(storage: &[AtomicU64; 5]) -> &Mutex {
        // SAFETY: the same words under another name.
        unsafe { &*core::ptr::from_ref(storage).cast() }
    }

    fn raw(&self) -> *mut libc::pthread_mutex_t {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Makes it one that nobody has. Nobody else may know of it yet.
    pub(super) fn initialise(&self) {
        // SAFETY: S12, attributes are local and initialised before their use; the storage is ours alone.
        unsafe {
            let mut attributes = core::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            self.0.iter().for_each(|word| word.store(0, Relaxed));
            libc::pthread_mutex_init(self.raw(), attributes.as_ptr());
            libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
        }
    }

    /// Takes it if nobody has it.
    #[inline]
    pub(super) fn try_lock(&self) -> Taken {
        // SAFETY: S12, initialised.
        taken(unsafe { libc::pthread_mutex_trylock(self.raw()) })
    }

    /// Waits for it until a time of `CLOCK_MONOTONIC`, ns, or for ever.
    pub(super) fn wait(&self, until_ns: Option<u64>) -> Taken {
        taken(match until_ns {
            // SAFETY: S12, initialised.
            None => unsafe { libc::pthread_mutex_lock(self.raw()) },
            Some(ns) => {
                let until =
                    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
                // SAFETY: as above; the structure outlives the call.
                unsafe { pthread_mutex_clocklock(self.raw(), libc::CLOCK_MONOTONIC, &until) }
            }
        })
    }

    /// Says that what the dead owner left is put right.
    pub(super) fn consistent(&self) {
        // SAFETY: S12, the caller got it from a dead owner.
        unsafe { libc::pthread_mutex_consistent(self.raw()) };
    }

    pub(super) fn unlock(&self) {
        // SAFETY: S12, the caller has it.
        unsafe { libc::pthread_mutex_unlock(self.raw()) };
    }

    /// Whether a living thread has it, as the kernel's word says: the C library's robust mutexes begin with that word.
    pub(super) fn owner_lives(&self) -> bool {
        // SAFETY: the first four bytes of the storage; all accesses to them are atomic.
        let word = unsafe { &*core::ptr::from_ref(self).cast::<AtomicU32>() }.load(Relaxed);
        word != 0 && word & OWNER_DIED == 0
    }

    /// Whether the last owner died, and nobody has taken it since.
    pub(super) fn owner_died(&self) -> bool {
        // SAFETY: as above.
        let word = unsafe { &*core::ptr::from_ref(self).cast::<AtomicU32>() }.load(Relaxed);
        word & OWNER_DIED != 0
    }
}

fn taken(status: i32) -> Taken {
    match status {
        0 => Taken::Yes,
        libc::EOWNERDEAD => Taken::FromDead,
        _ => Taken::No,
    }
}
