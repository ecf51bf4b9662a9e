//! An undo journal beside a lock: the intent record of a critical section.
//!
//! Before a word is changed under the lock, its place and what it was are written here, then the number of entries is
//! raised; so whatever instruction the owner dies at, the next one can put back all that was changed, newest first, and finds
//! the section as if it had never begun. A section ends by one store that says 0 entries. Stores of a dead process are
//! seen in the order of its program (x86-64), so only the compiler's order has to be kept.
//!
//! Entries name words by their distance from the tables' start, checked when they are put back: no address is taken from memory
//! that others write. Undoing twice does no harm, so whoever dies while he puts things right is put right in his turn.
//!
//! Lock: the one it stands beside. Callers: `lock.rs`.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*, compiler_fence};

/// The most changes of one section between two commits.
pub(super) const ENTRIES: usize = 768;

/// What kind of change an entry undoes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Undo {
    /// A word of 1, 4 or 8 bytes at a place.
    Byte = 0,
    Word = 1,
    Long = 2,
    /// Slices that were free: the first, and how many.
    WereFree = 3,
    /// Slices that were not.
    WereTaken = 4,
    /// A word in user memory that stands for a block, see `slot.rs`.
    Slot = 5,
}

#[repr(C)]
struct Entry {
    /// The place, above three bits of kind.
    place: AtomicU64,
    old: AtomicU64,
}

#[repr(C)]
pub(super) struct Journal {
    length: AtomicU32,
    _pad: AtomicU32,
    entries: [Entry; ENTRIES],
}

impl Journal {
    /// Notes a change that is to come. False if there is no room: the section has to commit what it has.
    #[inline]
    pub(super) fn note(&self, kind: Undo, place: u64, old: u64) -> bool {
        let length = self.length.load(Relaxed);
        let Some(entry) = self.entries.get(length as usize) else { return false };
        entry.place.store(place << 3 | kind as u64, Relaxed);
        entry.old.store(old, Relaxed);
        compiler_fence(SeqCst);
        self.length.store(length + 1, Relaxed);
        compiler_fence(SeqCst);
        true
    }

    /// Changes that may still be noted.
    pub(super) fn room(&self) -> usize {
        ENTRIES.saturating_sub(self.length.load(Relaxed) as usize)
    }

    /// Ends a section, or a part of it that is whole in itself.
    #[inline]
    pub(super) fn commit(&self) {
        compiler_fence(SeqCst);
        self.length.store(0, Relaxed);
        compiler_fence(SeqCst);
    }

    /// Puts back what a dead owner changed. `base` and `bytes` are those of the tables, `other` puts back what lies elsewhere.
    /// Returns how many changes that were.
    pub(super) fn roll_back(&self, base: usize, bytes: usize, other: &dyn Fn(Undo, u64, u64)) -> usize {
        let length = (self.length.load(Relaxed) as usize).min(ENTRIES);
        for index in (0..length).rev() {
            let Some(entry) = self.entries.get(index) else { continue };
            let (tagged, old) = (entry.place.load(Relaxed), entry.old.load(Relaxed));
            let place = tagged >> 3;
            let at = base.wrapping_add(place as usize);
            let inside = |size: usize| place.checked_add(size as u64).is_some_and(|end| end <= bytes as u64);
            // SAFETY: S12, the place lies inside the tables, whose words are all accessed as atomics of one width.
            unsafe {
                match tagged & 7 {
                    0 if inside(1) => (*(at as *const AtomicU8)).store(old as u8, Relaxed),
                    1 if inside(4) && at.is_multiple_of(4) => (*(at as *const AtomicU32)).store(old as u32, Relaxed),
                    2 if inside(8) && at.is_multiple_of(8) => (*(at as *const AtomicU64)).store(old, Relaxed),
                    3 => other(Undo::WereFree, place, old),
                    4 => other(Undo::WereTaken, place, old),
                    5 => other(Undo::Slot, place, old),
                    _ => {}
                }
            }
        }
        self.commit();
        length
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::cell::RefCell;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn what_was_changed_comes_back_newest_first_and_only_inside() {
        // SAFETY: all zero is a journal without entries.
        let journal: Box<Journal> = unsafe { Box::new_zeroed().assume_init() };
        let memory = [const { AtomicU64::new(7) }; 4];
        let base = memory.as_ptr() as usize;
        let set = |index: usize, new: u64| {
            assert!(journal.note(Undo::Long, index as u64 * 8, memory[index].load(Relaxed)));
            memory[index].store(new, Relaxed);
        };
        set(1, 8);
        set(1, 9);
        set(3, 10);
        assert!(
            journal.note(Undo::Byte, 16, 5) && journal.note(Undo::Long, 32, 1) && journal.note(Undo::WereFree, 4, 2)
        );
        let runs = RefCell::new(Vec::new());
        assert_eq!(journal.roll_back(base, 32, &|_, first, count| runs.borrow_mut().push((first, count))), 6);
        assert_eq!(
            memory.map(|word| word.into_inner()),
            [7, 7, 5, 7],
            "a byte of the third word, nothing behind the last"
        );
        assert_eq!(runs.into_inner(), [(4, 2)]);
        assert_eq!(journal.room(), ENTRIES);
    }

    #[test]
    fn a_full_journal_says_so() {
        // SAFETY: as above.
        let journal: Box<Journal> = unsafe { Box::new_zeroed().assume_init() };
        assert!((0..ENTRIES).all(|_| journal.note(Undo::Long, 0, 0)));
        assert!(!journal.note(Undo::Long, 0, 0) && journal.room() == 0);
        journal.commit();
        assert!(journal.note(Undo::Long, 0, 0));
    }
}
