//! The kernel, seen from the allocator: every system call and every word the kernel shares with us stands below here.
//!
//! Rules of this module: no allocation, no libc function that may allocate or be interposed, errors as errno values, and
//! the caller's `errno` untouched ([`KeepErrno`] stands at the allocator's border).

pub(crate) mod cgroup;
pub(crate) mod clock;
pub(crate) mod env;
pub(crate) mod file;
pub(crate) mod futex;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod rseq;
pub(crate) mod text;
pub(crate) mod thread;

/// An errno value, as a system call returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// The calling thread's `errno` of now.
    pub(crate) fn last() -> Errno {
        // SAFETY: S9, the location is the calling thread's own.
        Errno(unsafe { *libc::__errno_location() })
    }

    /// Stores this value as the calling thread's `errno`.
    pub(crate) fn set(self) {
        // SAFETY: S9, the location is the calling thread's own.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

/// Restores the caller's `errno` when dropped: free and a successful malloc must not change it, and a failed malloc sets
/// it to ENOMEM.
pub(crate) struct KeepErrno(Errno);

impl KeepErrno {
    pub(crate) fn new() -> KeepErrno {
        KeepErrno(Errno::last())
    }

    /// Makes the caller see ENOMEM.
    pub(crate) fn out_of_memory(&mut self) {
        self.0 = Errno(libc::ENOMEM);
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        self.0.set();
    }
}
