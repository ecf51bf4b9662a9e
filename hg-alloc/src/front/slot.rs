//! Front caches for threads without restartable sequences: a few blocks, each behind a lock of its own.
//!
//! Under valgrind, old kernels, seccomp filters, `GLIBC_TUNABLES=glibc.pthread.rseq=0` or `HG_RSEQ=0` every thread comes
//! here; otherwise only children of a raw `clone`. A slot is tried once and never waited for: who finds it taken goes to
//! the class instead. The lock holds its owner's thread id, so that a signal handler that interrupted the owner does so
//! too.

use super::{COUNTDOWN_ONE, ENTRY, Fronts, zone};
use crate::cell::Entry;
use crate::sys::{rseq, thread};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use hg_probes::page::{FRONT_MASK, FRONT_UNIT};

/// Number of slots, hence of blocks behind the per-CPU ones.
pub(crate) const COUNT: usize = 4;

/// How often a drain yields to the owner of a slot that is taken, who keeps it for some 10 ns unless it is preempted.
const PATIENCE: u32 = 1000;

/// The locks of the slots.
pub(crate) struct Slots([Line; COUNT]);

/// A lock on a cache line of its own.
#[repr(C, align(64))]
struct Line(AtomicU32);

impl Slots {
    pub(crate) const fn new() -> Self {
        Slots([const { Line(AtomicU32::new(0)) }; COUNT])
    }
}

/// The right to use one slot's block.
pub(crate) struct Slot<'a> {
    pub(super) fronts: &'a Fronts,
    line: &'a AtomicU32,
    /// The slot's block.
    pub(crate) block: usize,
}

impl Fronts {
    /// Whether the calling thread uses a slot.
    #[inline(always)]
    pub(crate) fn by_slot(&self) -> bool {
        rseq::current_id(self.id.load(Relaxed)) < 0
    }

    /// The slot of the calling thread, if it is free.
    #[inline(always)]
    pub(crate) fn slot(&self) -> Option<Slot<'_>> {
        let tid = thread::tid();
        let index = tid as usize % COUNT;
        self.take_slot(index, tid)
    }

    /// A certain slot, for drains. `None` if its owner keeps it for long, and may be stopped; or if a signal handler asks that
    /// interrupted the owner.
    pub(super) fn slot_at(&self, index: usize) -> Option<Slot<'_>> {
        let tid = thread::tid();
        for _ in 0..PATIENCE {
            if let Some(slot) = self.take_slot(index, tid) {
                return Some(slot);
            }
            if self.slots.0.get(index).is_none_or(|line| line.0.load(Relaxed) == tid) {
                break;
            }
            thread::yield_now();
        }
        None
    }

    #[inline(always)]
    fn take_slot(&self, index: usize, tid: u32) -> Option<Slot<'_>> {
        let line = &self.slots.0.get(index)?.0;
        line.compare_exchange(0, tid, Acquire, Relaxed).ok()?;
        Some(Slot { fronts: self, line, block: self.rseq_blocks() + index })
    }

    /// Frees all slots in a forked child. What a vanished thread held there stays consistent: one store commits.
    pub(crate) fn reset_slots(&self) {
        for line in &self.slots.0 {
            line.0.store(0, Relaxed);
        }
    }
}

impl Slot<'_> {
    /// The topmost entry of a class, to be taken by [`pop_done`](Self::pop_done). `None` if there is none, or if the countdown is
    /// over.
    #[inline(always)]
    pub(crate) fn pop_counted(&self, class: usize) -> Option<Entry> {
        let head = self.fronts.head(self.block, class);
        if head.is_empty() || head.countdown_over() {
            return None;
        }
        let [cell, state] = self.words(class, head.top());
        Some(Entry { cell: cell.load(Relaxed) as usize, state: state.load(Relaxed) as usize })
    }

    /// Takes that entry, and counts it.
    #[inline(always)]
    pub(crate) fn pop_done(&self, class: usize) {
        let word = &self.fronts.head(self.block, class).word;
        word.store(word.load(Relaxed) - COUNTDOWN_ONE - ENTRY, Release);
    }

    /// Takes the topmost entry of a class.
    pub(crate) fn pop(&self, class: usize) -> Option<Entry> {
        let head = self.fronts.head(self.block, class);
        if head.is_empty() {
            return None;
        }
        let [cell, state] = self.words(class, head.top());
        let entry = Entry { cell: cell.load(Relaxed) as usize, state: state.load(Relaxed) as usize };
        head.word.store(head.word.load(Relaxed) - ENTRY, Release);
        Some(entry)
    }

    /// Puts an entry on top of a class's array, if there is room.
    pub(crate) fn push(&self, class: usize, entry: Entry) -> bool {
        let head = self.fronts.head(self.block, class);
        if head.is_full() {
            return false;
        }
        let [cell, state] = self.words(class, head.top() + ENTRY);
        cell.store(entry.cell as u64, Relaxed);
        state.store(entry.state as u64, Relaxed);
        head.word.store(head.word.load(Relaxed) + ENTRY, Release);
        true
    }

    /// Moves the entries of a small array to its class's zone. Under the class's lock, so no fork sees it half done.
    pub(super) fn enlarge(&self, class: usize) {
        let head = self.fronts.head(self.block, class);
        let mut top = head.top();
        while top >= ENTRY {
            for (from, to) in self.words(class, top).iter().zip(self.words(class, zone(class) + top)) {
                to.store(from.load(Relaxed), Relaxed);
            }
            top -= ENTRY;
        }
        head.floor.store(zone(class), Relaxed);
        head.word.store(head.word.load(Relaxed) + zone(class), Release);
    }

    /// Counts an allocation of a class; `next` is asked for the countdown when that is over. Returns whether it was.
    pub(crate) fn count_down(&self, class: usize, next: impl FnOnce() -> u16) -> bool {
        let word = &self.fronts.head(self.block, class).word;
        let over = word.load(Relaxed) < COUNTDOWN_ONE;
        let steps = if over { u32::from(next()) } else { word.load(Relaxed) / COUNTDOWN_ONE } - 1;
        word.store((word.load(Relaxed) & FRONT_MASK) | (steps * COUNTDOWN_ONE), Relaxed);
        over
    }

    fn words(&self, class: usize, top: u32) -> &[AtomicU64; 2] {
        let bytes = (top * FRONT_UNIT) as usize;
        // SAFETY: S5, the entry at that place lies in the class's array, and the slot's lock is held.
        unsafe { &*(core::ptr::from_ref(self.fronts.head(self.block, class)).byte_add(bytes).cast()) }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.line.store(0, Release);
    }
}
