//! A value that is written once, while the process has one thread, and read ever after: by children too, as fork copies it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::*};

/// See the module.
pub(crate) struct Once<T> {
    is_set: AtomicBool,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is written before `is_set` says so, by the only thread there is, and never again.
unsafe impl<T> Sync for Once<T> {}

impl<T> Once<T> {
    pub(crate) const fn new() -> Self {
        Once { is_set: AtomicBool::new(false), value: UnsafeCell::new(None) }
    }

    /// Sets the value. Only the first call does something.
    pub(crate) fn set(&self, value: T) {
        if !self.is_set.load(Relaxed) {
            // SAFETY: nobody reads before `is_set`, and servers are single-threaded when they set up memory.
            unsafe { *self.value.get() = Some(value) };
            self.is_set.store(true, Release);
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        if self.is_set.load(Acquire) {
            // SAFETY: written before `is_set`, and never again.
            unsafe { (*self.value.get()).as_ref() }
        } else {
            None
        }
    }
}
