//! The lock of a class or of the grid in an arena that processes share: a robust mutex, an undo journal, and the times.
//!
//! Whoever gets it from a dead owner first puts back what that one had changed ([`Journal`]), so a critical section happens
//! whole or not at all, and what it holds is always in order. What a section does in several whole parts (a span on its way
//! between class and grid) stands in words of its own, see `span.rs`.
//!
//! Rank: a class lock before the grid lock, both after those of the process's own arena. A signal handler that interrupted
//! a holder gets such a lock at once or not at all. No system call but the mutex's own happens under a lock.

use super::Arena;
use super::hook::Event;
use super::journal::{Journal, Undo};
use super::mutex::{Mutex, Taken};
use crate::stats;
use crate::sys::{clock, thread};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::page::GRID_LOCK;
use hg_probes::words::{LockId, Reason, StallKind};

/// Most critical sections end within a microsecond: so long is looked before sleeping.
const SPINS: u32 = 100;

/// Ranks behind those of the process's own arena.
const CLASS_RANK: u32 = 3;
const GRID_RANK: u32 = 4;

#[repr(C, align(64))]
pub(super) struct Lock {
    mutex: Mutex,
    /// Thread that has it, in its own pid namespace, 0 for none.
    holder: AtomicU32,
    /// Place in the stats page.
    place: AtomicU32,
    id: AtomicU32,
    _pad: AtomicU32,
    journal: Journal,
}

impl Lock {
    /// Whether its owner died, and what that one left is still to be put right.
    pub(super) fn is_left(&self) -> bool {
        self.mutex.owner_died()
    }

    /// The thread that has it, 0 for none.
    pub(super) fn holder(&self) -> u32 {
        self.holder.load(Relaxed)
    }

    /// Makes it one that nobody has. Nobody else may know of it yet.
    pub(super) fn initialise(&self, id: LockId, place: usize) {
        self.mutex.initialise();
        self.holder.store(0, Relaxed);
        self.id.store(id.0, Relaxed);
        self.place.store(place as u32, Relaxed);
    }

    fn rank(&self) -> u32 {
        if self.place.load(Relaxed) == GRID_LOCK as u32 { GRID_RANK } else { CLASS_RANK }
    }

    /// Takes it. `None` if a signal handler asks that interrupted a holder, and waiting could last for ever.
    pub(super) fn lock<'a>(&'a self, arena: &'a Arena, reason: Reason) -> Option<Guard<'a>> {
        let tid = thread::tid();
        let held = thread::rank();
        let rank = self.rank();
        thread::set_rank(rank.max(held));
        let mut waited = Waited::default();
        let mut taken = self.mutex.try_lock();
        if taken == Taken::No && rank > held {
            taken = self.wait(arena, reason, held, &mut waited);
        }
        if taken == Taken::No {
            thread::set_rank(held);
            return None;
        }
        let dead = if taken == Taken::FromDead { self.put_right(arena) } else { 0 };
        self.holder.store(tid, Relaxed);
        Some(Guard { lock: self, arena, reason, tid, held, waited, dead, since_ns: clock::now_ns() })
    }

    /// Takes it for the second phase of what began under it, in a signal handler too: as the first phase got the lock, it is no
    /// interrupted frame of this thread that has it now.
    pub(super) fn lock_again<'a>(&'a self, arena: &'a Arena, reason: Reason) -> Guard<'a> {
        loop {
            if let Some(guard) = self.lock(arena, reason) {
                return guard;
            }
            thread::yield_now();
        }
    }

    #[cold]
    fn wait(&self, arena: &Arena, reason: Reason, held: u32, waited: &mut Waited) -> Taken {
        let start = clock::now_ns();
        let threshold = arena.stall_ns();
        let mut taken = Taken::No;
        let mut holder = self.holder.load(Relaxed);
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.holder.load(Relaxed) == 0 {
                taken = self.mutex.try_lock();
                if taken != Taken::No {
                    break;
                }
            }
        }
        if taken == Taken::No {
            taken = self.mutex.wait(Some(clock::monotonic_ns().saturating_add(threshold)));
        }
        if taken == Taken::No {
            holder = self.holder.load(Relaxed);
            waited.told = true;
            // Whoever is told may allocate: that needs the rank that the thread really has.
            let rank = thread::rank();
            thread::set_rank(held);
            self.tell_stall(arena, reason, clock::now_ns().saturating_sub(start), StallKind::Wait, holder);
            thread::set_rank(rank);
            taken = self.mutex.wait(None);
        }
        waited.ns = clock::now_ns().saturating_sub(start);
        waited.holder = holder;
        taken
    }

    /// Puts right what a dead owner left, and says so. Returns who it was, never 0.
    #[cold]
    fn put_right(&self, arena: &Arena) -> u32 {
        let dead = self.holder.load(Relaxed).max(1);
        let place = self.place.load(Relaxed) as usize;
        arena.roll_back(&self.journal);
        // The page's figures were perhaps in the middle of a change too.
        let page = arena.stats_page();
        let even = |sequence: &AtomicU32| sequence.store(sequence.load(Relaxed).next_multiple_of(2), Release);
        page.locks.iter().filter_map(|locks| locks.get(place)).for_each(|block| even(&block.seq));
        match page.classes.get(place) {
            Some(block) => even(&block.seq),
            None => even(&page.header.seq),
        }
        self.mutex.consistent();
        dead
    }

    #[cold]
    fn tell_stall(&self, arena: &Arena, reason: Reason, ns: u64, kind: StallKind, holder_tid: u32) {
        let lock = LockId(self.id.load(Relaxed));
        arena.note_stall(lock, ns);
        emit::lock_stall(|| args::lock_stall { arena: arena.number, lock, reason, ns, hold_or_wait: kind, holder_tid });
        arena.tell(Event::LockStall { lock, reason, ns, kind, holder_tid });
    }

    /// Makes it one that nobody has, in a forked child, whose copy of the memory nobody else uses; undoes a section that
    /// another thread was in the middle of.
    pub(super) fn reset_in_child(&self, arena: &Arena) {
        arena.roll_back(&self.journal);
        self.initialise(LockId(self.id.load(Relaxed)), self.place.load(Relaxed) as usize);
    }
}

/// How a lock was waited for.
#[derive(Clone, Copy, Default)]
struct Waited {
    ns: u64,
    /// The last holder seen.
    holder: u32,
    /// Whether a stall was told while it lasted.
    told: bool,
}

/// The right to change what stands under the lock. Dropping it ends the section, writes the times, releases the lock and
/// fires the probes.
pub(super) struct Guard<'a> {
    lock: &'a Lock,
    pub(super) arena: &'a Arena,
    reason: Reason,
    tid: u32,
    /// The rank that the thread held before.
    held: u32,
    waited: Waited,
    /// Who died with the lock, 0 for nobody.
    dead: u32,
    since_ns: u64,
}

impl Guard<'_> {
    /// Whether the last owner died with the lock: what it was doing in several parts is to be looked after.
    pub(super) fn is_from_dead(&self) -> bool {
        self.dead != 0
    }

    /// The class whose lock it is.
    pub(super) fn class(&self) -> usize {
        self.lock.place.load(Relaxed) as usize
    }

    fn place(&self, address: usize) -> u64 {
        address.wrapping_sub(self.arena.tables) as u64
    }

    /// Changes a byte.
    #[inline]
    pub(super) fn set_byte(&self, word: &AtomicU8, new: u8) {
        self.lock.journal.note(Undo::Byte, self.place(word.as_ptr() as usize), word.load(Relaxed).into());
        word.store(new, Relaxed);
    }

    /// Changes a word.
    #[inline]
    pub(super) fn set(&self, word: &AtomicU32, new: u32) {
        self.lock.journal.note(Undo::Word, self.place(word.as_ptr() as usize), word.load(Relaxed).into());
        word.store(new, Relaxed);
    }

    /// Changes a long word.
    #[inline]
    pub(super) fn set_long(&self, word: &AtomicU64, new: u64) {
        self.lock.journal.note(Undo::Long, self.place(word.as_ptr() as usize), word.load(Relaxed));
        word.store(new, Relaxed);
    }

    /// Says that a run of slices is about to be taken or freed.
    pub(super) fn note_slices(&self, kind: Undo, first: usize, count: usize) {
        self.lock.journal.note(kind, first as u64, count as u64);
    }

    /// Says that a word so many bytes into user memory is about to change, and what it was.
    pub(super) fn note_slot(&self, offset: usize, old: u64) {
        self.lock.journal.note(Undo::Slot, offset as u64, old);
    }

    /// Changes that may still be made before a commit.
    pub(super) fn room(&self) -> usize {
        self.lock.journal.room()
    }

    /// Ends a part of the section that is whole in itself.
    pub(super) fn commit(&self) {
        self.lock.journal.commit();
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let (lock, arena) = (self.lock, self.arena);
        lock.journal.commit();
        let now = clock::now_ns();
        let hold_ns = now.saturating_sub(self.since_ns);
        let threshold = arena.stall_ns();
        let place = lock.place.load(Relaxed) as usize;
        let page = arena.stats_page();
        if let Some(block) = page.locks.get(self.reason as usize).and_then(|locks| locks.get(place)) {
            stats::change(&block.seq, || {
                block.lock.store(lock.id.load(Relaxed), Relaxed);
                stats::record(&block.hold, hold_ns, now, self.tid, hold_ns >= threshold);
                stats::record(&block.wait, self.waited.ns, now, self.tid, self.waited.ns >= threshold);
            });
        }
        lock.holder.store(0, Relaxed);
        lock.mutex.unlock();
        thread::set_rank(self.held);
        let (arena_number, id, reason) = (arena.number, LockId(lock.id.load(Relaxed)), self.reason);
        let (wait_ns, holder) = (self.waited.ns, self.waited.holder);
        emit::lock_acquire(|| args::lock_acquire { arena: arena_number, lock: id, reason, wait_ns });
        emit::lock_release(|| args::lock_release { arena: arena_number, lock: id, reason, hold_ns });
        if self.dead != 0 {
            arena.note_repair(id, self.dead);
        }
        if wait_ns >= threshold && !self.waited.told {
            lock.tell_stall(arena, reason, wait_ns, StallKind::Wait, holder);
        }
        if hold_ns >= threshold {
            lock.tell_stall(arena, reason, hold_ns, StallKind::Hold, self.tid);
        }
        arena.tell_waiting();
    }
}
