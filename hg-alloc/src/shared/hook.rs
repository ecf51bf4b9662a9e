//! Telling the program what happened, by a function of its own: outside every lock, and where the thread has nothing in its
//! hands that a call back into the arena could meet.
//!
//! What happens at another moment waits in a few places of this process, for whichever thread comes by at a better one. If all are
//! taken it is not told: the stats page has counted it, and probes told it at once.
//!
//! Lock: none. Callers: `lock.rs`, `grow.rs`, `paths.rs`, where they tell the probes.

use super::Arena;
use super::create::handles;
use super::recover::batch_len;
use crate::sys::{KeepErrno, thread};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use hg_probes::directory::ThreadRecord;
use hg_probes::words::{Cause, CorruptionKind, LockId, Reason, StallKind};

/// Something that a program may want to know at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lock was held, or waited for, longer than the threshold.
    LockStall {
        /// Which lock.
        lock: LockId,
        /// Why the thread that tells took it.
        reason: Reason,
        /// How long so far, ns.
        ns: u64,
        /// Whether that thread held it or waited for it.
        kind: StallKind,
        /// Thread that held it, in its own pid namespace, 0 if it let go.
        holder_tid: u32,
    },
    /// A limit of the system began or ceased to keep the arena from growing.
    GrowBlocked {
        /// Whether it began.
        on: bool,
        /// Which limit.
        cause: Cause,
    },
    /// A bad call was refused.
    Corruption {
        /// What it was.
        kind: CorruptionKind,
        /// The address.
        address: usize,
        /// Cell size of the span there, or 0.
        class: u32,
    },
}

/// What is called. It may use any arena; it is not called again for what it does there, if it sees to that itself.
pub type Hook = fn(&'static Arena, &Event);

static HOOK: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Sets the function that this process and its future children are told by, or none.
pub fn set_hook(hook: Option<Hook>) {
    HOOK.store(hook.map_or(null_mut(), |hook| hook as *mut ()), Release);
}

fn hook() -> Option<Hook> {
    let hook = HOOK.load(Acquire);
    // SAFETY: S15, null or what `set_hook` stored.
    (!hook.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Hook>(hook) })
}

/// A place where an event waits.
struct Place {
    state: AtomicU32,
    event: UnsafeCell<(usize, Event)>,
}

const FREE: u32 = 0;
const IN_USE: u32 = 1;
const FULL: u32 = 2;

// SAFETY: S15, the event is touched by the thread alone that brought the state to IN_USE.
unsafe impl Sync for Place {}

const NOTHING: Event = Event::GrowBlocked { on: false, cause: Cause::Exhausted };
static PLACES: [Place; 16] =
    [const { Place { state: AtomicU32::new(FREE), event: UnsafeCell::new((0, NOTHING)) } }; 16];
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Forgets what waits, in a forked child: the parent tells it.
pub(super) fn forget() {
    WAITING.store(0, Relaxed);
    PLACES.iter().for_each(|place| place.state.store(FREE, Relaxed));
}

impl Arena {
    /// Tells an event now, or leaves it for later.
    #[cold]
    pub(super) fn tell(&self, event: Event) {
        let Some(hook) = hook() else { return };
        if self.is_good_moment() {
            return self.call(hook, &event);
        }
        let free = |place: &&Place| place.state.compare_exchange(FREE, IN_USE, Acquire, Relaxed).is_ok();
        if let Some(place) = PLACES.iter().find(free) {
            // SAFETY: S15, the place is this thread's.
            unsafe { *place.event.get() = (self.index, event) };
            place.state.store(FULL, Release);
            WAITING.fetch_add(1, Release);
        }
    }

    /// Tells what waits, if this is a good moment.
    #[inline]
    pub(super) fn tell_waiting(&self) {
        if WAITING.load(Relaxed) != 0 && self.is_good_moment() {
            self.tell_all();
        }
    }

    #[cold]
    fn tell_all(&self) {
        for place in &PLACES {
            if place.state.compare_exchange(FULL, IN_USE, Acquire, Relaxed).is_err() {
                continue;
            }
            WAITING.fetch_sub(1, Relaxed);
            // SAFETY: S15, the place is this thread's.
            let (index, event) = unsafe { *place.event.get() };
            place.state.store(FREE, Release);
            if let (Some(hook), Some(arena)) = (hook(), handles().find(|arena| arena.index == index)) {
                arena.call(hook, &event);
            }
        }
    }

    /// Whether the calling thread holds no lock and is not in the middle of moving cells or pages.
    fn is_good_moment(&self) -> bool {
        // SAFETY: S13, null or the address of the thread's record, which is mapped for ever.
        let record = unsafe { (thread::record(self.index) as *const ThreadRecord).as_ref() };
        let is_idle = |record: &ThreadRecord| batch_len(record) == 0 && record.busy_count.load(Relaxed) == 0;
        thread::rank() == 0 && record.is_some_and(is_idle)
    }

    fn call(&self, hook: Hook, event: &Event) {
        let _errno = KeepErrno::new();
        if let Some(arena) = handles().find(|arena| arena.index == self.index) {
            hook(arena, event);
        }
    }
}
