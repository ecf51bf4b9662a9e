//! Calls of the allocator that took long, the locks that were held long in them, and how much of it their thread had a CPU.
//!
//! A hold lies within a call. One that was longer than the thread's time on a CPU since that call began was made longer by whoever
//! took the CPU away: its holder was preempted or stopped. The allocator tells each hold beyond its stall threshold to the thread that
//! held, inside the call ([`hg_alloc::set_stall_hook`]).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use hg_alloc::LockStall;
use hg_probes::words::StallKind;
use serde::Serialize;

/// A lock held beyond the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The lock, as everywhere: `grid` or `class N`.
    pub lock: String,
    /// Why it was taken.
    pub reason: &'static str,
    /// How long, ns.
    pub ns: u64,
    /// The thread.
    pub tid: u32,
    /// Time that the thread had a CPU from the start of the call around it to the end of the hold, ns.
    pub cpu_ns: u64,
}

impl Held {
    /// Whether its thread had a CPU for no longer than the limit: for the rest of the hold it was preempted or stopped.
    pub fn is_off_cpu(&self, limit_ns: u64) -> bool {
        self.cpu_ns <= limit_ns
    }
}

/// What all threads saw.
#[derive(Debug, Default)]
pub struct Calls {
    held: Mutex<Vec<Held>>,
    long: AtomicUsize,
    long_on_cpu: AtomicUsize,
}

/// Long holds that one call can have: a growth takes a class's lock and the grid's, each more than once.
const HOLDS: usize = 8;

/// A hold, and the thread's time on a CPU when it ended, ns.
type Noted = (LockStall, u64);

/// Holds of one call, and how many.
struct Notes {
    count: Cell<usize>,
    places: [Cell<Option<Noted>>; HOLDS],
}

thread_local! {
    /// Those of the call that this thread is in. No destructor, no first use: the hook runs in the middle of malloc.
    static NOTES: Notes = const { Notes { count: Cell::new(0), places: [const { Cell::new(None) }; HOLDS] } };
}

/// The hook: notes a hold with its thread, which has just let go.
pub fn note(stall: &LockStall) {
    if stall.kind == StallKind::Hold {
        NOTES.with(|notes| {
            if let Some(place) = notes.places.get(notes.count.replace(notes.count.get() + 1)) {
                place.set(Some((*stall, now_ns(libc::CLOCK_THREAD_CPUTIME_ID))));
            }
        });
    }
}

/// Takes what was noted since the last time.
fn noted() -> impl Iterator<Item = Noted> {
    let count = NOTES.with(|notes| notes.count.take()).min(HOLDS);
    (0..count).filter_map(|index| NOTES.with(|notes| notes.places[index].take()))
}

impl Calls {
    /// Makes a call; keeps the holds that [`note`] was told of meanwhile, and counts it if it took longer than `limit_ns`.
    pub fn time<R>(&self, tid: u32, limit_ns: u64, call: impl FnOnce() -> R) -> R {
        // What came between two calls belongs to neither.
        noted().for_each(drop);
        let (from_ns, cpu) = (now_ns(libc::CLOCK_MONOTONIC), now_ns(libc::CLOCK_THREAD_CPUTIME_ID));
        let result = call();
        if now_ns(libc::CLOCK_MONOTONIC) - from_ns > limit_ns {
            let cpu_ns = now_ns(libc::CLOCK_THREAD_CPUTIME_ID) - cpu;
            self.long.fetch_add(1, Relaxed);
            self.long_on_cpu.fetch_add(usize::from(cpu_ns > limit_ns), Relaxed);
            for (stall, by_then) in noted() {
                let LockStall { lock, reason, ns, .. } = stall;
                let held = Held { lock: lock.to_string(), reason: reason.label(), ns, tid, cpu_ns: by_then - cpu };
                self.held.lock().unwrap_or_else(PoisonError::into_inner).push(held);
            }
        }
        result
    }

    /// Calls that took longer than the limit, and those of them that had a CPU for longer than that.
    pub fn long(&self) -> (usize, usize) {
        (self.long.load(Relaxed), self.long_on_cpu.load(Relaxed))
    }

    /// The holds, the longest first.
    pub fn into_held(self) -> Vec<Held> {
        let mut held = self.held.into_inner().unwrap_or_else(PoisonError::into_inner);
        held.sort_by_key(|held| std::cmp::Reverse(held.ns));
        held
    }
}

/// A clock of the kernel, ns.
pub fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use hg_probes::words::{LockId, Reason};
    use std::time::{Duration, Instant};

    const LIMIT_NS: u64 = 1_000_000;

    fn stall(ns: u64, kind: StallKind) -> LockStall {
        LockStall { lock: LockId::GRID, reason: Reason::Grow, ns, kind, holder_tid: 1 }
    }

    #[test]
    fn each_hold_of_a_call_is_kept_with_the_time_on_a_cpu_of_that_call() {
        let calls = Calls::default();
        calls.time(1, LIMIT_NS, || {
            note(&stall(2_000_000, StallKind::Hold));
            note(&stall(9_000_000, StallKind::Wait));
            note(&stall(3_000_000, StallKind::Hold));
            std::thread::sleep(Duration::from_millis(5));
        });
        calls.time(2, LIMIT_NS, || {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(30) {}
            note(&stall(30_000_000, StallKind::Hold));
        });
        calls.time(3, LIMIT_NS, || ());
        assert_eq!(calls.long(), (2, 1));
        let held = calls.into_held();
        assert_eq!(
            held.iter().map(|held| (held.tid, held.ns / 1_000_000)).collect::<Vec<_>>(),
            [(2, 30), (1, 3), (1, 2)]
        );
        assert_eq!((held[1].lock.as_str(), held[1].reason), ("grid", "grow"));
        assert!(
            !held[0].is_off_cpu(LIMIT_NS) && held[1].is_off_cpu(LIMIT_NS) && held[2].is_off_cpu(LIMIT_NS),
            "{held:?}"
        );
    }
}
