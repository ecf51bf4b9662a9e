//! Blocks as every C program gets them, and tables for their addresses that no allocator under test has a part in.
//!
//! Addresses go through the tables as numbers, 0 for none: whoever takes one out of a slot owns the block.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::c_void;

/// Takes a block and writes its first `touched` bytes. A child without memory has nothing to tell: it aborts.
pub(super) fn take(size: usize, touched: usize) -> usize {
    // SAFETY: malloc has no preconditions.
    touch(unsafe { libc::malloc(size) }, touched.min(size))
}

/// As [`take`], aligned.
pub(super) fn take_aligned(align: usize, size: usize, touched: usize) -> usize {
    let mut block = std::ptr::null_mut();
    // SAFETY: the result goes to a local; on failure it stays null.
    unsafe { libc::posix_memalign(&mut block, align, size) };
    touch(block, touched.min(size))
}

/// Resizes a block and writes all of it.
pub(super) fn resize(address: usize, size: usize) -> usize {
    // SAFETY: the address is a block that the caller owns; it is replaced by the one returned.
    touch(unsafe { libc::realloc(address as *mut c_void, size) }, size)
}

/// Frees a block; 0 is none.
pub(super) fn give(address: usize) {
    // SAFETY: the caller owns the block, or it is null.
    unsafe { libc::free(address as *mut c_void) }
}

/// Writes the last byte of a block of `size` bytes.
pub(super) fn touch_end(address: usize, size: usize) {
    // SAFETY: the block is live and owned by the caller, and the byte is its last.
    unsafe { (address as *mut u8).add(size - 1).write_volatile(1) }
}

fn touch(block: *mut c_void, bytes: usize) -> usize {
    if block.is_null() {
        // SAFETY: abort has no preconditions.
        unsafe { libc::abort() }
    }
    // SAFETY: the block is at least that long.
    unsafe { std::hint::black_box(block).cast::<u8>().write_bytes(0xa5, bytes) };
    block as usize
}

/// Frees all that stands in the slots.
pub(super) fn give_all(slots: &[AtomicUsize]) {
    slots.iter().for_each(|slot| give(slot.swap(0, Relaxed)));
}

/// Empty slots in memory of their own, resident from the start and kept for ever, so that the table does not count as growth.
pub(super) fn slots(count: usize) -> &'static [AtomicUsize] {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists; it is zeroed, aligned
    // and never unmapped.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let mapping = libc::mmap(std::ptr::null_mut(), count * size_of::<AtomicUsize>(), protection, flags, -1, 0);
        if mapping == libc::MAP_FAILED {
            libc::abort();
        }
        std::slice::from_raw_parts(mapping.cast(), count)
    }
}

/// Random choices, the same in every child.
pub(super) struct Dice(u64);

impl Dice {
    /// A sequence of its own for each stream.
    pub(super) fn new(stream: u64) -> Dice {
        Dice((stream + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }
}
