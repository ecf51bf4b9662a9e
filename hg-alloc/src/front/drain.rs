//! Emptying front caches from outside: every CPU's, at once.
//!
//! Stop words do it: `floor = MAX` makes every pop find the array empty, `cap = 0` makes every push find it full; a
//! membarrier then restarts all sequences that had read the old words, and from there on the arrays are frozen and can be
//! taken with plain code (9 µs with a busy thread on the other CPU). At last the blocks' memory is given back to the system:
//! it reads as zero from then on, and arrays of zeros are open, empty, and of no capacity yet. So a drain is also how idle
//! caches shrink.
//!
//! For maintenance and memory pressure, never on a latency path. One drain at a time.

use super::{Fronts, Head, slot, zone};
use crate::cell::Entry;
use crate::size_class::COUNT;
use crate::sys::{memory, rseq};
use core::sync::atomic::{AtomicBool, Ordering::*};
use hg_probes::page::FRONT_UNIT;

/// Whose turn it is to drain.
pub(crate) struct Turn(AtomicBool);

impl Turn {
    pub(crate) const fn new() -> Self {
        Turn(AtomicBool::new(false))
    }
}

/// Takes the entries of a class that a drain found, one by one.
pub(crate) type Give<'a> = &'a mut dyn FnMut(Entry);

/// What a drain needs of the classes: each call runs under the class's lock, or returns false if it cannot be had.
pub(crate) trait Classes {
    /// Runs `action` under the lock of a class.
    fn under_lock(&self, class: usize, action: &mut dyn FnMut()) -> bool;
    /// Runs `fill` under the lock of a class; each entry that it passes on goes to the class.
    fn take_back(&self, class: usize, fill: &mut dyn FnMut(Give)) -> bool;
}

/// The floor that a stopped array had: its top is never below.
fn floor_of(head: &Head, class: usize) -> u32 {
    if head.top() >= zone(class) { zone(class) } else { 0 }
}

impl Fronts {
    /// Empties all front caches. Returns false if another drain runs, or if those of other CPUs cannot be stopped.
    pub(crate) fn drain(&self, classes: &impl Classes) -> bool {
        if self.drain.0.swap(true, Acquire) {
            return false;
        }
        let used = self.used.load(Relaxed).min(self.rseq_blocks());
        let mut stopped = [false; COUNT];
        for (class, stopped) in stopped.iter_mut().enumerate() {
            *stopped = classes.under_lock(class, &mut || {
                for block in 0..used {
                    let head = self.head(block, class);
                    head.floor.store(u32::MAX, Relaxed);
                    head.cap.store(0, Relaxed);
                }
            });
        }
        let frozen = rseq::fence();
        for (class, stopped) in stopped.iter().enumerate() {
            if *stopped && frozen {
                classes.take_back(class, &mut |give| (0..used).for_each(|block| self.take_frozen(block, class, give)));
            }
        }
        let complete = frozen && stopped.iter().all(|stopped| *stopped);
        for block in 0..used {
            if !complete || memory::give_back(self.block_address(block), super::BLOCK).is_err() {
                self.open_again(block);
            }
        }
        if complete {
            self.touched.store(0, Relaxed);
        }
        self.drain_slots(classes);
        self.drain.0.store(false, Release);
        complete
    }

    /// Opens stopped arrays one by one.
    fn open_again(&self, block: usize) {
        self.block_head(block).zone_cells_bytes.store(0, Relaxed);
        for class in 0..COUNT {
            let head = self.head(block, class);
            if head.floor.load(Relaxed) == u32::MAX {
                head.floor.store(floor_of(head, class), Release);
            }
        }
    }

    fn take_frozen(&self, block: usize, class: usize, give: Give) {
        let head = self.head(block, class);
        let (mut top, floor) = (head.top(), floor_of(head, class));
        while top > floor {
            let bytes = (top * FRONT_UNIT) as usize;
            // SAFETY: S5, the array is frozen: its entries from floor to top are whole, and nobody else touches them.
            give(unsafe { *core::ptr::from_ref(head).byte_add(bytes).cast::<Entry>() });
            top -= super::ENTRY;
        }
        head.word.store(0, Relaxed);
    }

    fn drain_slots(&self, classes: &impl Classes) {
        for index in 0..slot::COUNT {
            if self.rseq_blocks() + index >= self.used.load(Relaxed) {
                continue;
            }
            for class in 0..COUNT {
                classes.take_back(class, &mut |give| {
                    let slot = self.slot_at(index);
                    while let Some(entry) = slot.as_ref().and_then(|slot| slot.pop(class)) {
                        give(entry);
                    }
                });
            }
            self.give_back_slot(index);
        }
    }

    /// Gives the memory of a slot's block back if all of its arrays are empty. Its lock is held, but nobody waits for it.
    fn give_back_slot(&self, index: usize) {
        if let Some(slot) = self.slot_at(index)
            && (0..COUNT).all(|class| self.head(slot.block, class).is_empty())
        {
            // A refusal costs memory only.
            let _ = memory::give_back(self.block_address(slot.block), super::BLOCK);
        }
    }

    /// Ends, in a forked child, a drain of the parent: arrays that it had stopped are opened again.
    ///
    /// # Safety
    /// The child has one thread, and the class locks were held when it forked, so each array was either taken or not.
    pub(crate) unsafe fn end_inherited_drain(&self) {
        if self.drain.0.swap(false, Relaxed) {
            for block in 0..self.used.load(Relaxed).min(self.rseq_blocks()) {
                self.open_again(block);
            }
        }
    }
}
