//! A block of the allocator under load: taken, stamped, verified, moved and given back.
//!
//! A block verifies itself on every way out: [`Block::free`] and [`Block::resize`] return what they found torn. It may be
//! freed by any thread.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use crate::HEAP;
use crate::stamp::{self, Mismatch};

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Its stamp was overwritten.
    Stamp(Mismatch),
    /// Memory that should be zero is not.
    NotZero(Mismatch),
    /// Its address is not aligned as asked.
    Misaligned,
}

/// A block found torn, with all that is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// What is wrong.
    pub wrong: Wrong,
    /// Address of the block.
    pub address: usize,
    /// Its size as asked, bytes.
    pub size: usize,
    /// Its alignment as asked, bytes.
    pub align: usize,
    /// Seat of the worker that took it.
    pub owner: u32,
    /// Number of the block among its owner's.
    pub generation: u32,
}

impl std::fmt::Display for Torn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Torn { address, size, align, owner, generation, .. } = self;
        write!(f, "block {address:#x} of {size} B (align {align}), number {generation} of worker {owner}: ")?;
        match self.wrong {
            Wrong::Stamp(m) => {
                write!(f, "stamp torn at +{}: {:#018x} found, {:#018x} expected", m.offset, m.found, m.expected)
            }
            Wrong::NotZero(m) => write!(f, "zeroed memory holds {:#018x} at +{}", m.found, m.offset),
            Wrong::Misaligned => f.write_str("address not aligned"),
        }
    }
}

/// A live block, stamped.
#[derive(Debug)]
pub struct Block {
    memory: NonNull<u8>,
    layout: Layout,
    owner: u32,
    generation: u32,
}

// SAFETY: a block owns its memory alone; the allocator under load lets any thread free it.
unsafe impl Send for Block {}

impl Block {
    /// Takes a block and stamps it. `size` must not be 0; `zeroed` takes it through the zeroing entry and checks that.
    /// `Ok(None)` if the allocator has no memory.
    pub fn new(size: usize, align: usize, owner: u32, generation: u32, zeroed: bool) -> Result<Option<Block>, Torn> {
        let layout = Layout::from_size_align(size, align).expect("a valid layout");
        // SAFETY: the size is not 0 by this function's contract.
        let raw = unsafe { if zeroed { HEAP.alloc_zeroed(layout) } else { HEAP.alloc(layout) } };
        let Some(memory) = NonNull::new(raw) else { return Ok(None) };
        let mut block = Block { memory, layout, owner, generation };
        if !block.address().is_multiple_of(align) {
            return Err(block.torn(Wrong::Misaligned));
        }
        if zeroed && let Err(mismatch) = stamp::verify_zero(block.bytes()) {
            return Err(block.torn(Wrong::NotZero(mismatch)));
        }
        let key = block.key();
        stamp::write(block.bytes_mut(), key);
        Ok(Some(block))
    }

    /// Size as asked, bytes.
    pub fn size(&self) -> usize {
        self.layout.size()
    }

    /// Address.
    pub fn address(&self) -> usize {
        self.memory.as_ptr() as usize
    }

    /// Layout as asked.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Checks the stamp.
    pub fn verify(&self) -> Result<(), Torn> {
        stamp::verify(self.bytes(), self.key()).map_err(|m| self.torn(Wrong::Stamp(m)))
    }

    /// Verifies and frees.
    pub fn free(self) -> Result<(), Torn> {
        self.verify()?;
        // SAFETY: the block is live and owned; it is consumed here.
        unsafe { HEAP.dealloc(self.memory.as_ptr(), self.layout) };
        Ok(())
    }

    /// Verifies, resizes, checks that the common prefix came along, and stamps anew. The block itself is kept if the
    /// allocator has no memory; the flag tells whether it was resized.
    pub fn resize(self, size: usize) -> Result<(Block, bool), Torn> {
        self.verify()?;
        // SAFETY: the block is live and owned, the size is not 0 and the layout stays valid for the sizes used here.
        let raw = unsafe { HEAP.realloc(self.memory.as_ptr(), self.layout, size) };
        let Some(memory) = NonNull::new(raw) else { return Ok((self, false)) };
        let old_key = self.key();
        let kept = self.size().min(size);
        let layout = Layout::from_size_align(size, self.layout.align()).expect("a valid layout");
        let mut block = Block { memory, layout, owner: self.owner, generation: self.generation.wrapping_add(1) };
        if !block.address().is_multiple_of(layout.align()) {
            return Err(block.torn(Wrong::Misaligned));
        }
        if let Err(mismatch) = stamp::verify(&block.bytes()[..kept], old_key) {
            return Err(block.torn(Wrong::Stamp(mismatch)));
        }
        let key = block.key();
        stamp::write(block.bytes_mut(), key);
        Ok((block, true))
    }

    fn key(&self) -> u64 {
        stamp::key(self.address(), self.owner, self.generation)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the block is live, owned, and as long as its layout says. Its bytes are initialised: by the stamp, by
        // the zeroing entry, or as the prefix that a resize keeps (no more than that is read then).
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes it the only reference. The slice is only written.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.size()) }
    }

    fn torn(&self, wrong: Wrong) -> Torn {
        Torn {
            wrong,
            address: self.address(),
            size: self.size(),
            align: self.layout.align(),
            owner: self.owner,
            generation: self.generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_by_another_owner_is_found_at_free() {
        let block = Block::new(100, 16, 1, 1, false).expect("sound").expect("memory");
        let memory = block.memory.as_ptr();
        // SAFETY: the block is live and byte 50 lies in it; the write stands for a stray one.
        unsafe { *memory.add(50) ^= 1 };
        let torn = block.free().expect_err("a torn stamp");
        assert!(matches!(torn.wrong, Wrong::Stamp(m) if m.offset == 48), "{torn}");
    }

    #[test]
    fn blocks_survive_resizes_up_and_down() {
        let mut block = Block::new(24, 16, 2, 0, true).expect("sound").expect("memory");
        for size in [25, 100, 5000, 300_000, 2_000_000, 70, 16, 1] {
            let (resized, done) = block.resize(size).expect("prefix kept");
            assert!(done);
            assert_eq!(resized.size(), size);
            block = resized;
        }
        block.free().expect("sound");
    }

    #[test]
    fn alignments_are_kept() {
        for align in [1, 8, 64, 4096, 65_536] {
            Block::new(align, align, 0, 0, false).expect("aligned").expect("memory").free().expect("sound");
        }
    }
}
