//! Blocks with a word in the arena that says who has them: not even a block that its thread died over is lost.
//!
//! A *slot* is a word in the arena's own user memory: 0, or the address of a block. [`malloc_into`](Arena::malloc_into) fills an
//! empty one and [`free_from`](Arena::free_from) empties a full one, and whatever instruction the caller dies at, the slot says in
//! the end whether the block is there. Any process may free from a slot; of two that try at once, one does.
//!
//! # How
//! Who changes a slot first marks it with the number of its own record, above the address, and its record says which slot that is.
//! A marked slot is nobody else's business. While it is marked and names a cell, the cell is LIVE if and only if the slot is to
//! stay full: malloc writes the slot before it makes the cell LIVE, and free makes the cell CACHED, then empties the slot, and then
//! lets go of the cell. A large object and its slot change in one section under the grid's lock. So whoever recovers the record
//! can tell what the slot is to say.
//!
//! Callers: hosts; `recover.rs`.

use super::Arena;
use super::core::{Entry, Owner};
use super::lock::Guard;
use super::sample::Site;
use crate::cell::{CACHED, LIVE, SAMPLED};

use crate::size_class::{SLICE, SLICE_SHIFT};
use crate::sys::Errno;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::*};
use hg_probes::directory::ThreadRecord;
use hg_probes::words::{Cause, CorruptionKind};

/// Bits of an address; above it stands the record, plus one, of the thread that changes the slot.
const ADDRESS_BITS: u32 = 48;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;

/// The right to change a slot.
pub(super) struct Claim<'a> {
    slot: &'a AtomicU64,
    /// Where it lies in user memory, bytes.
    offset: usize,
    /// What marks it.
    mark: u64,
}

impl Claim<'_> {
    /// Names a cell that is about to be LIVE.
    #[inline]
    pub(super) fn announce(&self, address: usize) {
        self.slot.store(address as u64 | self.mark, Release);
    }

    /// Names a large object, or none, by a change that is undone with the section that it is made in.
    pub(super) fn change(&self, grid: &Guard, address: usize) {
        grid.note_slot(self.offset, self.slot.load(Relaxed));
        self.announce(address);
    }

    fn settle(&self, record: &ThreadRecord, address: u64) {
        self.slot.store(address, Release);
        record.slot.store(0, Release);
    }
}

impl Arena {
    /// Allocates `size` bytes, and writes the block's address to an empty slot. Null: there is no memory (ENOMEM), the slot is not
    /// empty or the thread is at another slot (EBUSY), or it is no word of this arena's user memory (EINVAL).
    pub fn malloc_into(&self, size: usize, slot: &AtomicU64) -> *mut u8 {
        let Some(record) = self.record() else { return self.fail(size, Cause::Reentered) };
        let Some(offset) = self.offset_of_slot(slot) else {
            Errno(libc::EINVAL).set();
            return null_mut();
        };
        let Some(claim) = self.claim(record, slot, offset, 0) else {
            Errno(libc::EBUSY).set();
            return null_mut();
        };
        let address = match self.class_of(size) {
            Some(class) => self.malloc_cell(class, size, || Site::UNKNOWN, Some(&claim)),
            None => self.malloc_large(size, 1, Some(&claim)),
        };
        claim.settle(record, address as u64);
        address
    }

    /// Frees the block of a slot, and empties it. False if there is none, or somebody else is at it.
    pub fn free_from(&self, slot: &AtomicU64) -> bool {
        let (Some(record), Some(offset)) = (self.record(), self.offset_of_slot(slot)) else { return false };
        let address = slot.load(Acquire);
        if address == 0 || address & !ADDRESS != 0 {
            return false;
        }
        let Some(claim) = self.claim(record, slot, offset, address) else { return false };
        let within = (address as usize).wrapping_sub(self.user);
        let owner = if within < self.cap_bytes { self.owner(within >> SLICE_SHIFT) } else { Owner::Nobody };
        match owner {
            Owner::Span { class, head } => match self.live_entry(class, head, within) {
                Some(entry) => return self.free_cell_from(&claim, record, class, entry),
                None => self.refuse(CorruptionKind::InteriorFree, address as usize, class, 0),
            },
            Owner::Large if within.is_multiple_of(SLICE) => {
                self.free_large(address as *mut u8, within >> SLICE_SHIFT, Some(&claim));
                let is_freed = slot.load(Relaxed) & ADDRESS == 0;
                claim.settle(record, if is_freed { 0 } else { address });
                return is_freed;
            }
            _ => self.refuse(CorruptionKind::WildFree, address as usize, usize::MAX, 0),
        }
        claim.settle(record, 0);
        false
    }

    fn free_cell_from(&self, claim: &Claim, record: &ThreadRecord, class: usize, entry: Entry) -> bool {
        let Some(state) = self.state(entry) else { return false };
        let before = record.in_flight.swap(entry.0, AcqRel);
        let live = state.compare_exchange(LIVE, CACHED, AcqRel, Relaxed);
        let was = live.or_else(|_| state.compare_exchange(SAMPLED, CACHED, AcqRel, Relaxed));
        // Before the cell may be somebody else's.
        claim.settle(record, 0);
        match was {
            Ok(was) => {
                if was == SAMPLED {
                    self.end_sample(entry);
                }
                if !self.push_patiently(class, entry.0) {
                    self.flush(class, entry, record);
                }
            }
            Err(other) => {
                let address = self.user + entry.offset();
                self.refuse(CorruptionKind::DoubleFree, address, class, other.into());
            }
        }
        record.in_flight.store(before, Release);
        was.is_ok()
    }

    /// Marks a slot that says `found`. `None` if it says something else, or the thread has marked another already.
    fn claim<'a>(&self, record: &ThreadRecord, slot: &'a AtomicU64, offset: usize, found: u64) -> Option<Claim<'a>> {
        if record.slot.load(Relaxed) != 0 {
            return None;
        }
        let claim = Claim { slot, offset, mark: (self.index_of(record) as u64 + 1) << ADDRESS_BITS };
        record.slot.store(offset as u64 + 1, Release);
        if slot.compare_exchange(found, found | claim.mark, AcqRel, Relaxed).is_err() {
            record.slot.store(0, Release);
            return None;
        }
        Some(claim)
    }

    fn offset_of_slot(&self, slot: &AtomicU64) -> Option<usize> {
        let offset = (slot.as_ptr() as usize).wrapping_sub(self.user);
        (offset < self.cap_bytes).then_some(offset)
    }

    /// The word so many bytes into user memory.
    fn slot_at(&self, offset: usize) -> Option<&AtomicU64> {
        let inside = offset < self.cap_bytes && offset.is_multiple_of(size_of::<AtomicU64>());
        // SAFETY: S12, user memory is mapped for ever; its words are the program's, who accesses slots as atomics.
        inside.then(|| unsafe { &*((self.user + offset) as *const AtomicU64) })
    }

    /// Undoes the change of a slot, with the section that it was made in.
    pub(super) fn put_back_slot(&self, offset: usize, old: u64) {
        if let Some(slot) = self.slot_at(offset) {
            slot.store(old, Release);
        }
    }

    /// Lets the slot that a dead thread was at say what has become of the block. Under the record's mutex, once the grid's lock
    /// was put right, and before the thread's cells are looked for.
    pub(super) fn settle_slot(&self, record: &ThreadRecord) {
        let Some(offset) = (record.slot.load(Acquire) as usize).checked_sub(1) else { return };
        if let Some(slot) = self.slot_at(offset) {
            let word = slot.load(Acquire);
            let address = word & ADDRESS;
            if word >> ADDRESS_BITS == self.index_of(record) as u64 + 1 {
                let within = (address as usize).wrapping_sub(self.user);
                slot.store(if self.is_block(within) { address } else { 0 }, Release);
            }
        }
        record.slot.store(0, Release);
    }

    /// Whether a block that is with the program begins so many bytes into user memory.
    fn is_block(&self, within: usize) -> bool {
        let owner = if within < self.cap_bytes { self.owner(within >> SLICE_SHIFT) } else { Owner::Nobody };
        match owner {
            Owner::Span { class, head } => self.is_live(class, head, within),
            Owner::Large => within.is_multiple_of(SLICE),
            Owner::Nobody => false,
        }
    }
}
