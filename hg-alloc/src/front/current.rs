//! The front cache that a thread uses on a slow path, whichever guard it has.

use super::slot::Slot;
use super::{FRONT_UNIT, Fronts, Head, rseq, zone};
use crate::cell::Entry;
use crate::sys::rseq as kernel;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// How often a sequence is tried that is interrupted again and again, as under a debugger's single steps.
const RESTARTS: u32 = 16;

/// The front cache that the calling thread uses on a slow path.
pub(crate) enum Front<'a> {
    /// That of the CPU it runs on, which may change at any moment; `block` is that of a moment ago.
    Rseq { fronts: &'a Fronts, block: usize },
    /// A slot of its own for now, or none if somebody else has it.
    Slot { slot: Option<Slot<'a>>, fallback_block: usize },
}

impl Fronts {
    /// The front cache of the calling thread.
    pub(crate) fn current(&self) -> Front<'_> {
        match kernel::current_id(self.id.load(Relaxed)) {
            id if id >= 0 => Front::Rseq { fronts: self, block: (id as usize).min(self.rseq_blocks() - 1) },
            _ => Front::Slot { slot: self.slot(), fallback_block: self.rseq_blocks() },
        }
    }
}

impl Fronts {
    /// Writes to the zone that a class's small array of the current CPU is about to move to, so that the page fault of a first write
    /// comes before the class's lock is held.
    pub(crate) fn touch_zone(&self, class: usize, budget: impl FnOnce() -> u64) {
        // Slots have locks of their own, which come after a class's.
        let Ok(id) = usize::try_from(kernel::current_id(self.id.load(Relaxed))) else { return };
        let block = id.min(self.rseq_blocks() - 1);
        let head = self.head(block, class);
        if head.is_small() && self.pays(block, super::initial_bytes(class), budget()) {
            let first = core::ptr::from_ref(head) as usize + (zone(class) * FRONT_UNIT) as usize + size_of::<Head>();
            // SAFETY: S5, the first entry of the zone, which keeps what it is.
            let _ = unsafe { &*(first as *const AtomicU64) }.compare_exchange(0, 0, Relaxed, Relaxed);
        }
    }
}

impl Front<'_> {
    /// The block that it is, or was a moment ago.
    pub(crate) fn block(&self) -> usize {
        match self {
            Front::Rseq { block, .. } => *block,
            Front::Slot { slot, fallback_block } => slot.as_ref().map_or(*fallback_block, |slot| slot.block),
        }
    }

    /// Counts an allocation of a class that came here; sets the countdown anew where it is over. Returns whether the
    /// allocation ends one, which that of an array never used does not.
    pub(crate) fn count_down(&self, class: usize, next: impl FnOnce() -> u16) -> bool {
        let (fronts, block) = match self {
            Front::Rseq { fronts, block } => (fronts, *block),
            Front::Slot { slot, .. } => return slot.as_ref().is_some_and(|slot| slot.count_down(class, next)),
        };
        let head = fronts.head(block, class);
        let (array, id, sequence) = fronts.place(class);
        let (over, used) = (head.countdown_over(), head.is_open());
        // What the array cannot serve counts here; what it can serve, the pop that follows counts.
        let counted = if over { next() } else { head.countdown() };
        let countdown = if head.is_empty() { counted.saturating_sub(1) } else { counted };
        let armed = (0..RESTARTS).any(|_| {
            // SAFETY: S5, slow paths run in a started arena.
            unsafe { rseq::arm(array, id, sequence, countdown) }
        });
        armed && over && used
    }

    /// Takes the topmost entry of a class, unless the array is empty or 16 attempts were interrupted.
    pub(crate) fn pop(&self, class: usize) -> Option<Entry> {
        let (fronts, block) = match self {
            Front::Rseq { fronts, block } => (fronts, *block),
            Front::Slot { slot, .. } => return slot.as_ref()?.pop(class),
        };
        let (array, id, sequence) = fronts.place(class);
        for _ in 0..RESTARTS {
            // SAFETY: S5, slow paths run in a started arena.
            let entry = unsafe { rseq::pop(array, id, sequence) };
            if entry.cell != 0 {
                return Some(entry);
            }
            if fronts.head(block, class).is_empty() {
                break;
            }
        }
        None
    }

    /// Puts an entry on top of a class's array, unless that is full or 16 attempts were interrupted.
    pub(crate) fn push(&self, class: usize, entry: Entry) -> bool {
        let (fronts, block) = match self {
            Front::Rseq { fronts, block } => (fronts, *block),
            Front::Slot { slot, .. } => return slot.as_ref().is_some_and(|slot| slot.push(class, entry)),
        };
        let (array, id, sequence) = fronts.place(class);
        for _ in 0..RESTARTS {
            // SAFETY: S5, slow paths run in a started arena; S1, the entry is in flight here alone.
            if unsafe { rseq::push(array, id, sequence, entry) } {
                return true;
            }
            if fronts.head(block, class).is_full() {
                break;
            }
        }
        false
    }

    /// Makes room in a class's array that overflowed: a small one moves to its zone, one there doubles within `budget` bytes
    /// of cells for the block. Under the class's lock.
    pub(crate) fn raise(&self, class: usize, budget: u64) {
        if let Some(fronts) = self.fronts()
            && !self.enlarge(class, budget)
        {
            fronts.double(self.block(), class, budget);
        }
    }

    /// Moves a small array to its class's zone, within `budget` bytes of cells for the block. Returns whether it did. Under the
    /// class's lock.
    pub(crate) fn enlarge(&self, class: usize, budget: u64) -> bool {
        let Some(fronts) = self.fronts() else { return false };
        let head = fronts.head(self.block(), class);
        if !head.is_small() || !fronts.pays(self.block(), super::initial_bytes(class), budget) {
            return false;
        }
        match self {
            Front::Slot { slot, .. } => slot.iter().for_each(|slot| slot.enlarge(class)),
            Front::Rseq { .. } => {
                let (array, id, sequence) = fronts.place(class);
                let address = core::ptr::from_ref(head) as usize;
                // SAFETY: S5, slow paths run in a started arena, and the class's lock is held.
                let moved = (0..RESTARTS).any(|_| unsafe { rseq::enlarge(array, id, sequence, address, zone(class)) });
                if !moved {
                    return false;
                }
            }
        }
        fronts.note_enlarged(self.block(), class);
        true
    }

    /// The front caches that it belongs to, if the thread has one.
    fn fronts(&self) -> Option<&Fronts> {
        match self {
            Front::Rseq { fronts, .. } => Some(fronts),
            Front::Slot { slot, .. } => slot.as_ref().map(|slot| slot.fronts),
        }
    }

    /// Puts a whole batch on top of a class's array, at once or not at all.
    pub(crate) fn push_batch(&self, class: usize, batch: &[Entry]) -> bool {
        let Front::Rseq { fronts, .. } = self else { return false };
        let (array, id, sequence) = fronts.place(class);
        // SAFETY: S5, slow paths run in a started arena; S1, the entries are in flight here alone.
        unsafe { rseq::push_batch(array, id, sequence, batch) }
    }

    /// Takes as many entries as `batch` holds off the top of a class's array, at once or not at all.
    pub(crate) fn pop_batch(&self, class: usize, batch: &mut [Entry]) -> bool {
        let Front::Rseq { fronts, .. } = self else { return false };
        let (array, id, sequence) = fronts.place(class);
        // SAFETY: S5, slow paths run in a started arena.
        unsafe { rseq::pop_batch(array, id, sequence, batch) }
    }
}
