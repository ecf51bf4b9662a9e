//! Very many stamped blocks of one owner, and a table of them that lies outside of the allocator under load.
//!
//! The table is a mapping of its own, resident only as far as it is filled and gone with the hoard, so that the resident
//! memory of the process tells of the allocator alone. An entry is one word: address and size, both in units of 16 bytes.
//! Any thread may free an entry, each is freed once.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::HEAP;
use crate::block::{Torn, Wrong};
use crate::rng::Rng;
use crate::stamp;

/// Unit of addresses and sizes, and the alignment of all blocks.
const UNIT: usize = 16;

/// Bits of an entry that hold the size.
const SIZE_BITS: u32 = 20;

/// The largest block, bytes.
pub const LARGEST: usize = ((1 << SIZE_BITS) - 1) * UNIT;

/// Blocks and their table.
#[derive(Debug)]
pub struct Hoard {
    table: &'static [AtomicU64],
    length: usize,
    bytes: u64,
    owner: u32,
    generation: u32,
}

impl Hoard {
    /// An empty hoard for at most `bytes` of blocks, whose stamps tell of `owner` and `generation`.
    pub fn new(bytes: usize, owner: u32, generation: u32) -> std::io::Result<Hoard> {
        let capacity = bytes / UNIT + 1;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists; it is zeroed and
        // aligned, and unmapped only when the hoard is dropped, which is when the last reference is gone.
        let table = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let mapping = libc::mmap(std::ptr::null_mut(), capacity * size_of::<AtomicU64>(), protection, flags, -1, 0);
            if mapping == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            std::slice::from_raw_parts(mapping.cast::<AtomicU64>(), capacity)
        };
        Ok(Hoard { table, length: 0, bytes: 0, owner, generation })
    }

    /// Bytes of the blocks taken and not released from the end.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries, freed ones among them.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Takes a block of `size` bytes (rounded up to 16, at most [`LARGEST`]) and stamps it. False if the allocator has no
    /// memory, or the table no room.
    pub fn take(&mut self, size: usize) -> bool {
        self.length < self.table.len() && Loose::allocate(size).is_some_and(|block| self.put(block))
    }

    /// Stamps a block and enters it. False, and the block is freed, if the table has no room.
    pub fn put(&mut self, block: Loose) -> bool {
        let Some(slot) = self.table.get(self.length) else {
            block.free();
            return false;
        };
        let entry = block.0;
        // SAFETY: a loose block is live, has that size, and whoever has it owns it alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(entry.address() as *mut u8, entry.size()) };
        stamp::write(bytes, self.key(entry));
        slot.store(entry.0, Release);
        self.length += 1;
        self.bytes += entry.size() as u64;
        true
    }

    /// Puts the entries in a random order.
    pub fn shuffle(&mut self, rng: &mut Rng) {
        for last in (1..self.length).rev() {
            let other = &self.table[rng.below(last + 1)];
            self.table[last].store(other.swap(self.table[last].load(Relaxed), Relaxed), Relaxed);
        }
    }

    /// Verifies and frees the block of an entry, if no one did before.
    pub fn free(&self, index: usize) -> Result<(), Torn> {
        self.withdraw(index).map(|block| block.map_or((), Loose::free))
    }

    /// Verifies the block of an entry and takes it out, if no one did before.
    pub fn withdraw(&self, index: usize) -> Result<Option<Loose>, Torn> {
        let entry = Entry(self.table.get(index).map_or(0, |slot| slot.swap(0, AcqRel)));
        if entry.0 == 0 {
            return Ok(None);
        }
        // SAFETY: the entry was taken out of its slot, so this thread alone owns the block, which is live and stamped.
        let bytes = unsafe { std::slice::from_raw_parts(entry.address() as *const u8, entry.size()) };
        match stamp::verify(bytes, self.key(entry)) {
            Ok(()) => Ok(Some(Loose(entry))),
            Err(mismatch) => Err(Torn {
                wrong: Wrong::Stamp(mismatch),
                address: entry.address(),
                size: entry.size(),
                align: UNIT,
                owner: self.owner,
                generation: self.generation,
            }),
        }
    }

    /// Frees entries from the end until at most `bytes` are left; their part of the table goes back to the system too.
    pub fn release(&mut self, bytes: u64) -> Result<(), Torn> {
        let before = self.length;
        while self.bytes > bytes && self.length > 0 {
            self.length -= 1;
            let size = Entry(self.table[self.length].load(Relaxed)).size();
            self.free(self.length)?;
            self.bytes -= size as u64;
        }
        self.forget(before);
        Ok(())
    }

    /// Gives back the whole pages of the table between the last entry and what was the last one before.
    fn forget(&self, before: usize) {
        const PAGE: usize = 4096;
        let [start, end] = [self.length, before].map(|index| (index * size_of::<AtomicU64>()).next_multiple_of(PAGE));
        let end = end.min(size_of_val(self.table) / PAGE * PAGE);
        if start < end {
            // SAFETY: the range lies in the hoard's own mapping and holds no entry; it reads as zero afterwards, which is none.
            unsafe {
                libc::madvise(
                    self.table.as_ptr().byte_add(start) as *mut libc::c_void,
                    end - start,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }

    fn key(&self, entry: Entry) -> u64 {
        stamp::key(entry.address(), self.owner, self.generation)
    }
}

impl Drop for Hoard {
    fn drop(&mut self) {
        // SAFETY: the mapping is this hoard's, and with it the last reference to it goes.
        unsafe { libc::munmap(self.table.as_ptr() as *mut libc::c_void, size_of_val(self.table)) };
    }
}

/// A block in no table: whoever has it owns it.
#[derive(Debug)]
pub struct Loose(Entry);

impl Loose {
    /// Allocates a block without touching it; `None` if the allocator has no memory.
    pub fn allocate(size: usize) -> Option<Loose> {
        let layout = layout(size.clamp(1, LARGEST).next_multiple_of(UNIT));
        // SAFETY: the layout has a size.
        let address = unsafe { HEAP.alloc(layout) } as usize;
        (address != 0).then(|| Loose(Entry::new(address, layout.size())))
    }

    /// Its size, bytes.
    pub fn size(&self) -> u64 {
        self.0.size() as u64
    }

    /// Frees it.
    pub fn free(self) {
        // SAFETY: the block is live, was allocated with this layout, and is consumed here.
        unsafe { HEAP.dealloc(self.0.address() as *mut u8, layout(self.0.size())) };
    }
}

/// Address and size of a block in a word; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    fn new(address: usize, size: usize) -> Entry {
        Entry(((address / UNIT) as u64) << SIZE_BITS | (size / UNIT) as u64)
    }

    fn address(self) -> usize {
        (self.0 >> SIZE_BITS) as usize * UNIT
    }

    fn size(self) -> usize {
        (self.0 & ((1 << SIZE_BITS) - 1)) as usize * UNIT
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, UNIT).expect("a valid layout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_any_user_address_and_size() {
        for (address, size) in [(16, 16), (0x7fff_ffff_fff0, LARGEST), (0x5000_0000_0010, 48)] {
            let entry = Entry::new(address, size);
            assert_eq!((entry.address(), entry.size()), (address, size));
        }
    }

    #[test]
    fn blocks_are_freed_once_by_whatever_thread() {
        let mut hoard = Hoard::new(1 << 20, 1, 2).expect("a mapping");
        (0..1000).for_each(|n| assert!(hoard.take(16 + n)));
        hoard.shuffle(&mut Rng::new(1, 1));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..hoard.length()).for_each(|index| hoard.free(index).expect("sound")));
            }
        });
        assert!(hoard.table[..hoard.length()].iter().all(|slot| slot.load(Relaxed) == 0));
    }

    #[test]
    fn release_stops_where_told() {
        let mut hoard = Hoard::new(1 << 20, 1, 2).expect("a mapping");
        (0..100).for_each(|_| assert!(hoard.take(1024)));
        hoard.release(10 << 10).expect("sound");
        assert_eq!((hoard.bytes(), hoard.length()), (10 << 10, 10));
        hoard.release(0).expect("sound");
        assert_eq!((hoard.bytes(), hoard.length()), (0, 0));
        (0..5000).for_each(|_| assert!(hoard.take(16)));
        hoard.release(3000 * 16).expect("sound");
        assert!((0..3000).all(|index| hoard.table[index].load(Relaxed) != 0));
        hoard.release(0).expect("sound");
    }

    #[test]
    fn a_stray_write_is_found() {
        let mut hoard = Hoard::new(4096, 1, 2).expect("a mapping");
        assert!(hoard.take(64));
        let address = Entry(hoard.table[0].load(Relaxed)).address();
        // SAFETY: the block is live and byte 40 lies in it; the write stands for a stray one.
        unsafe { *((address + 40) as *mut u8) ^= 1 };
        assert!(hoard.free(0).expect_err("a torn stamp").to_string().contains("torn at +40"));
    }

    #[test]
    fn a_full_table_is_no_room() {
        let mut hoard = Hoard::new(16, 1, 2).expect("a mapping");
        assert!(hoard.take(1) && hoard.take(1) && !hoard.take(1));
        hoard.release(0).expect("sound");
    }
}
