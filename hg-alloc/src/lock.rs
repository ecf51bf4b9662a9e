//! The lock of a class or of a grid: a futex mutex that knows why it was taken and how long it was waited for and held.
//!
//! Rank: a class lock before the grid lock; never two class locks, but in fork, which takes all in the order of their
//! classes. No system call but the futex happens under a lock.
//!
//! The word holds the owner's thread id, so that a stall names its holder. Each thread remembers the highest rank that it
//! holds: a signal handler that interrupted a holder, and comes back into the allocator, may wait for a lock of a higher
//! rank only; any other it gets at once or not at all, or two such threads could wait for each other. Times go to the stats page under the lock itself and to
//! the probes after its release.

use crate::stall::{self, LockStall};
use crate::stats;
use crate::sys::{clock, futex, thread};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::page::StatsPage;
use hg_probes::words::{LockId, Reason, StallKind};

/// Set while somebody may sleep on the word.
const WAITERS: u32 = 1 << 31;

/// Most critical sections end within a microsecond: so long is looked before sleeping.
const SPINS: u32 = 100;

/// A value, and the lock that guards it.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    id: AtomicU32,
    place: AtomicU32,
    arena: AtomicU32,
    stall_ns: AtomicU64,
    page: AtomicPtr<StatsPage>,
    value: UnsafeCell<T>,
}

// SAFETY: S2, the value is reached through a guard only, and there is one guard at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock {
            word: AtomicU32::new(0),
            id: AtomicU32::new(0),
            place: AtomicU32::new(0),
            arena: AtomicU32::new(0),
            stall_ns: AtomicU64::new(0),
            page: AtomicPtr::new(null_mut()),
            value: UnsafeCell::new(value),
        }
    }

    /// Gives the lock its name, and its place in a stats page. Before that it must not be taken.
    pub(crate) fn name(&self, id: LockId, place: usize, page: &'static StatsPage) {
        self.id.store(id.0, Relaxed);
        self.place.store(place as u32, Relaxed);
        self.arena.store(page.header.arena.load(Relaxed), Relaxed);
        self.stall_ns.store(u64::from(page.header.stall_us.load(Relaxed)) * 1000, Relaxed);
        self.page.store(core::ptr::from_ref(page).cast_mut(), Release);
    }

    /// Number of the arena that the lock belongs to.
    pub(crate) fn arena(&self) -> u32 {
        self.arena.load(Relaxed)
    }

    /// The place of the lock in the order in which locks are taken.
    fn rank(&self) -> u32 {
        if self.id.load(Relaxed) == LockId::GRID.0 { 2 } else { 1 }
    }

    /// Takes the lock. `None` if a signal handler asks that interrupted a holder, and waiting could last for ever.
    pub(crate) fn lock(&self, reason: Reason) -> Option<Guard<'_, T>> {
        let tid = thread::tid();
        let held = thread::rank();
        let rank = self.rank();
        thread::set_rank(rank.max(held));
        let waited = match self.word.compare_exchange(0, tid, Acquire, Relaxed) {
            Ok(_) => Waited::default(),
            Err(owner) if rank > held && owner & !WAITERS != tid => self.wait(tid, reason, owner & !WAITERS),
            Err(_) => {
                thread::set_rank(held);
                return None;
            }
        };
        Some(Guard { lock: self, reason, tid, held, waited, since_ns: clock::now_ns() })
    }

    /// Takes the lock for the second phase of what began under it. Waits even in a signal handler: as the first phase got
    /// the lock, it is no interrupted frame of this thread that holds it now.
    pub(crate) fn lock_again(&self, reason: Reason) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.lock(reason) {
                return guard;
            }
            futex::wait(&self.word, self.word.load(Relaxed), 1_000_000);
        }
    }

    #[cold]
    fn wait(&self, tid: u32, reason: Reason, mut holder: u32) -> Waited {
        let start = clock::now_ns();
        let threshold = self.stall_ns.load(Relaxed);
        let mut told = false;
        let done = |told: bool, holder: u32| {
            let ns = clock::now_ns().saturating_sub(start);
            Waited { ns, untold: if ns >= threshold && !told { holder } else { 0 } }
        };
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.word.load(Relaxed) == 0 && self.word.compare_exchange(0, tid, Acquire, Relaxed).is_ok() {
                return done(told, holder);
            }
        }
        loop {
            let word = self.word.load(Relaxed);
            if word == 0 {
                // Others may sleep too: keep the mark, so that the release wakes the next one.
                if self.word.compare_exchange(0, tid | WAITERS, Acquire, Relaxed).is_ok() {
                    return done(told, holder);
                }
                continue;
            }
            holder = word & !WAITERS;
            let marked = word | WAITERS;
            if word != marked && self.word.compare_exchange(word, marked, Relaxed, Relaxed).is_err() {
                continue;
            }
            let waited = clock::now_ns().saturating_sub(start);
            if waited >= threshold && !told {
                told = true;
                self.tell_stall(reason, waited, StallKind::Wait, holder);
            }
            // Once told, the deadline is far: only a release matters.
            let timeout = if told { 1_000_000_000 } else { (threshold - waited).max(1_000) };
            futex::wait(&self.word, marked, timeout);
        }
    }

    #[cold]
    fn tell_stall(&self, reason: Reason, ns: u64, kind: StallKind, holder_tid: u32) {
        let lock = LockId(self.id.load(Relaxed));
        let arena = self.arena.load(Relaxed);
        emit::lock_stall(|| args::lock_stall { arena, lock, reason, ns, hold_or_wait: kind, holder_tid });
        stall::tell(&LockStall { lock, reason, ns, kind, holder_tid });
    }

    /// Takes the lock for a fork, unless the calling thread holds it already. Not measured: a fork is no allocation.
    /// Returns whether it was taken. In a signal handler that interrupted a holder it gives up after a while: the owner
    /// may be waiting for that holder.
    pub(crate) fn lock_for_fork(&self) -> bool {
        let tid = thread::tid();
        let mut patience = if thread::rank() == 0 { u32::MAX } else { 100 };
        loop {
            match self.word.compare_exchange(0, tid, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(word) if word & !WAITERS == tid || patience == 0 => return false,
                Err(word) => {
                    patience -= 1;
                    let marked = word | WAITERS;
                    if word == marked || self.word.compare_exchange(word, marked, Relaxed, Relaxed).is_ok() {
                        futex::wait(&self.word, marked, 1_000_000);
                    }
                }
            }
        }
    }

    /// Releases, in the parent, what [`lock_for_fork`](Self::lock_for_fork) took.
    ///
    /// # Safety
    /// The calling thread took it for a fork, and no guard exists.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        if self.word.swap(0, Release) & WAITERS != 0 {
            futex::wake(&self.word, 1);
        }
    }

    /// Sets the word right in a forked child, whose one thread was `parent_tid` in the parent: free, unless that thread
    /// holds the lock further up its stack.
    pub(crate) fn reset_in_child(&self, taken: bool, parent_tid: u32) {
        let held = !taken && self.word.load(Relaxed) & !WAITERS == parent_tid;
        self.word.store(if held { thread::tid() } else { 0 }, Release);
    }

    /// The value, while the lock is held for a fork.
    ///
    /// # Safety
    /// The calling thread took it for a fork, and no other reference to the value exists.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn value_in_fork(&self) -> &mut T {
        // SAFETY: S2, the caller holds the lock.
        unsafe { &mut *self.value.get() }
    }
}

/// How a lock was waited for.
#[derive(Clone, Copy, Default)]
struct Waited {
    ns: u64,
    /// The last holder seen, if the wait became a stall that was not told while it lasted; else 0.
    untold: u32,
}

/// The right to use the value. Dropping it writes the times, releases the lock and fires the probes.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    reason: Reason,
    tid: u32,
    /// The rank that the thread held before.
    held: u32,
    waited: Waited,
    since_ns: u64,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: S2, the guard is the right to use the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: S2, the guard is the right to use the value, and is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        let lock = self.lock;
        let now = clock::now_ns();
        let hold_ns = now.saturating_sub(self.since_ns);
        let threshold = lock.stall_ns.load(Relaxed);
        // SAFETY: S6, a lock is taken only after it was named, and stats pages live as long as the process.
        let page = unsafe { &*lock.page.load(Relaxed) };
        let place = lock.place.load(Relaxed) as usize;
        if let Some(block) = page.locks.get(self.reason as usize).and_then(|locks| locks.get(place)) {
            stats::change(&block.seq, || {
                block.lock.store(lock.id.load(Relaxed), Relaxed);
                stats::record(&block.hold, hold_ns, now, self.tid, hold_ns >= threshold);
                stats::record(&block.wait, self.waited.ns, now, self.tid, self.waited.ns >= threshold);
            });
        }
        if lock.word.swap(0, Release) & WAITERS != 0 {
            futex::wake(&lock.word, 1);
        }
        thread::set_rank(self.held);
        let arena = lock.arena.load(Relaxed);
        let id = LockId(lock.id.load(Relaxed));
        let reason = self.reason;
        emit::lock_acquire(|| args::lock_acquire { arena, lock: id, reason, wait_ns: self.waited.ns });
        emit::lock_release(|| args::lock_release { arena, lock: id, reason, hold_ns });
        if self.waited.untold != 0 {
            lock.tell_stall(reason, self.waited.ns, StallKind::Wait, self.waited.untold);
        }
        if hold_ns >= threshold {
            lock.tell_stall(reason, hold_ns, StallKind::Hold, self.tid);
        }
    }
}
