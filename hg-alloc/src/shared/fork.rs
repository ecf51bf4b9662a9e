//! Fork: a shared arena has nothing to do for it; a private one is a copy in the child, which that puts in order.
//!
//! No lock is taken before the fork. The copy may be in the middle of other threads' critical sections; their journals
//! undo them, as after a death, and what those threads had in their hands is recovered: to the child they are dead.

use super::Arena;
use super::create::handles;
use super::hook;
use super::mutex::Mutex;
use crate::size_class::COUNT;
use crate::sys::{rseq, thread};
use core::sync::atomic::{AtomicBool, Ordering::*};
use hg_probes::page::feature;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Asks the C library to call us in forked children. Once.
pub(super) fn register() {
    if !REGISTERED.swap(true, AcqRel) {
        // SAFETY: S9, the function lives as long as the process: the object is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

unsafe extern "C" fn in_child() {
    thread::forget_tid();
    thread::forget_records();
    thread::set_rank(0);
    hook::forget();
    rseq::register_fence();
    for arena in handles().filter(|arena| !arena.is_shared()) {
        arena.inherit();
    }
}

impl Arena {
    /// Puts the child's copy of a private arena in order. The child has one thread.
    fn inherit(&self) {
        let core = self.core();
        let header = &self.stats_page().header;
        header.pid.store(thread::pid(), Relaxed);
        header.features.fetch_or(feature::INHERITED, Relaxed);
        core.grid.lock.reset_in_child(self);
        core.grid.growing.store(0, Relaxed);
        core.turn.mutex.initialise();
        for class in 0..COUNT {
            let pool = core.pool(class);
            pool.lock.reset_in_child(self);
            if pool.stopped_by.swap(0, Relaxed) != 0 {
                self.open_fronts(class);
            }
        }
        // The first call of the child takes a record.
        self.hot.sample_left.store(0, Relaxed);
        for record in self.threads() {
            Mutex::of(&record.alive).initialise();
        }
        for class in 0..COUNT {
            if let Some(guard) = self.lock_class(class, hg_probes::words::Reason::Policy) {
                self.finish_for_dead(&guard, class);
            }
        }
        self.recover();
    }
}
