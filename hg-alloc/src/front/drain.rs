//! Emptying front caches from outside: every CPU's, at once.
//!
//! Stop words do it: `floor = MAX` makes every pop find the array empty, `cap = 0` makes every push find it full; a
//! membarrier then restarts all sequences that had read the old words, and from there on the arrays are frozen and can be
//! taken with plain code (9 µs with a busy thread on the other CPU). At last the memory of whole blocks, or of zones, is given
//! back to the system: it reads as zero from then on, and arrays of zeros are open, empty, and of no capacity yet. So a drain
//! is also how caches shrink: all of them, or those that were idle for an epoch of maintenance. An array is idle if the word
//! of its head is what it was: each pop counts down in it.
//!
//! For maintenance and memory pressure, never on a latency path. One drain at a time.

use super::{Fronts, Head, slot, zone, zone_start};
use crate::cell::Entry;
use crate::size_class::{COUNT, size_of_class};
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

/// Which arrays a drain empties.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// Those that nobody used since the last drain of idle ones.
    Idle,
}

impl Fronts {
    /// Empties front caches. Returns false if another drain runs, or if those of other CPUs cannot be stopped.
    pub(crate) fn drain(&self, which: Which, classes: &impl Classes) -> bool {
        if self.drain.0.swap(true, Acquire) {
            return false;
        }
        let used = self.used.load(Relaxed).min(self.rseq_blocks());
        let mut stopped = 0;
        let mut complete = true;
        for class in 0..COUNT {
            complete &= classes.under_lock(class, &mut || {
                stopped += (0..used).filter(|block| self.stop(which, *block, class)).count();
            });
        }
        if stopped > 0 {
            complete &= rseq::fence();
            for class in 0..COUNT {
                complete = complete
                    && classes.take_back(class, &mut |give| {
                        (0..used).filter(|block| self.is_stopped(*block, class)).for_each(|block| {
                            self.take_frozen(block, class, give);
                        });
                    });
            }
            (0..used).for_each(|block| self.open_again(block, complete));
        }
        self.drain_slots(which, classes);
        self.drain.0.store(false, Release);
        complete
    }

    /// Stops an array, if it is one to be drained. Under the class's lock.
    fn stop(&self, which: Which, block: usize, class: usize) -> bool {
        let head = self.head(block, class);
        if which == Which::Idle {
            let (seen, word) = (self.seen(block, class), head.word.load(Relaxed));
            if self.block_head(block).in_use.load(Relaxed) == 0 {
                return false;
            }
            if seen.load(Relaxed) != word {
                seen.store(word, Relaxed);
                return false;
            }
        }
        let cells = head.cap.load(Relaxed).saturating_sub(zone(class)) / super::ENTRY;
        self.block_head(block).zone_cells_bytes.fetch_sub(u64::from(cells) * u64::from(size_of_class(class)), Relaxed);
        head.floor.store(u32::MAX, Relaxed);
        head.cap.store(0, Relaxed);
        true
    }

    fn is_stopped(&self, block: usize, class: usize) -> bool {
        self.head(block, class).floor.load(Relaxed) == u32::MAX
    }

    /// Opens the stopped arrays of a block. Those that were taken are small again, and the memory of their zones goes back to
    /// the system, or that of the whole block if all are.
    fn open_again(&self, block: usize, taken: bool) {
        let stopped = (0..COUNT).filter(|class| self.is_stopped(block, *class)).count();
        if taken && stopped == COUNT {
            let touched = self.block_head(block).touched.load(Relaxed);
            if self.give_back_block(block) {
                self.touched.fetch_sub(touched as usize, Relaxed);
                return;
            }
        } else if taken && stopped > 0 {
            self.give_back_zones(block);
        }
        for class in 0..COUNT {
            if self.is_stopped(block, class) {
                let head = self.head(block, class);
                head.floor.store(floor_of(head, class), Release);
            }
        }
    }

    /// Gives the memory of a stopped block back. Its heads go last, in one page and so all at once: with them the arrays are open
    /// to everybody, who may make one large while the kernel still takes away zones.
    fn give_back_block(&self, block: usize) -> bool {
        let (address, heads) = (self.block_address(block), memory::BASE_PAGE);
        memory::give_back(address + heads, super::BLOCK - heads).is_ok() && memory::give_back(address, heads).is_ok()
    }

    /// Gives back the whole pages of neighbouring zones of stopped arrays, which are empty.
    fn give_back_zones(&self, block: usize) {
        let mut class = 0;
        while class < COUNT {
            let first = class;
            while class < COUNT && self.is_stopped(block, class) {
                class += 1;
            }
            let start = zone_start(first).next_multiple_of(memory::BASE_PAGE);
            let end = zone_start(class) / memory::BASE_PAGE * memory::BASE_PAGE;
            if start < end {
                // A refusal costs memory only.
                let _ = memory::give_back(self.block_address(block) + start, end - start);
            }
            class += 1;
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

    /// Empties the slots that can be had. Locks of classes are taken inside: who holds one of those never waits for a slot.
    fn drain_slots(&self, which: Which, classes: &impl Classes) {
        let used = self.used.load(Relaxed);
        for index in (0..slot::COUNT).filter(|index| self.rseq_blocks() + index < used) {
            let Some(slot) = self.slot_at(index) else { continue };
            for class in 0..COUNT {
                let (head, seen) = (self.head(slot.block, class), self.seen(slot.block, class));
                let word = head.word.load(Relaxed);
                if word == 0 || which == Which::Idle && seen.load(Relaxed) != word {
                    seen.store(word, Relaxed);
                    continue;
                }
                classes.take_back(class, &mut |give| {
                    while let Some(entry) = slot.pop(class) {
                        give(entry);
                    }
                });
            }
            self.give_back_slot(&slot);
        }
    }

    /// Gives the memory of a slot's block back if all of its arrays are empty.
    fn give_back_slot(&self, slot: &slot::Slot) {
        let head = self.block_head(slot.block);
        if head.in_use.load(Relaxed) != 0 && (0..COUNT).all(|class| self.head(slot.block, class).is_empty()) {
            let touched = head.touched.load(Relaxed);
            // A refusal costs memory only.
            if self.give_back_block(slot.block) {
                self.touched.fetch_sub(touched as usize, Relaxed);
            }
        }
    }

    /// Ends, in a forked child, a drain of the parent: arrays that it had stopped are opened again.
    ///
    /// # Safety
    /// The child has one thread, and the class locks were held when it forked, so each array was either taken or not.
    pub(crate) unsafe fn end_inherited_drain(&self) {
        if self.drain.0.swap(false, Relaxed) {
            for block in 0..self.used.load(Relaxed).min(self.rseq_blocks()) {
                self.open_again(block, false);
            }
        }
    }
}
