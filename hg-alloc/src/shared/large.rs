//! Large objects of an arena made by handle, and everything that changes a block's size.

use super::Arena;
use super::core::{Entry, Owner};
use super::sample::Site;
use super::slot::Claim;
use crate::arena::ATTEMPTS;
use crate::size_class::{CLASSES, COUNT, SLICE, SLICE_SHIFT};
use crate::sys::{KeepErrno, clock};
use core::ptr::{copy_nonoverlapping, null_mut};
use core::sync::atomic::Ordering::*;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, CorruptionKind, Reason};

impl Arena {
    /// The class that serves a request, if one does.
    #[inline(always)]
    pub(super) fn class_of(&self, size: usize) -> Option<usize> {
        self.hot.class_of(size)
    }

    /// What every block's address is a multiple of, bytes.
    pub fn alignment(&self) -> usize {
        if self.bias == 0 { 16 } else { 8 }
    }

    /// Allocates whole slices for `size` bytes at a multiple of `align` slices.
    #[cold]
    #[inline(never)]
    pub(super) fn malloc_large(&self, size: usize, align: usize, into: Option<&Claim>) -> *mut u8 {
        let mut errno = KeepErrno::new();
        let start = clock::now_ns();
        match self.take_large(size, align, into) {
            Ok(address) => {
                let ns = clock::now_ns().saturating_sub(start);
                emit::large_alloc(|| args::large_alloc { arena: self.number, address, bytes: size, ns });
                address as *mut u8
            }
            Err(cause) => {
                errno.out_of_memory();
                self.fail(size, cause)
            }
        }
    }

    fn take_large(&self, size: usize, align: usize, into: Option<&Claim>) -> Result<usize, Cause> {
        let count = size.div_ceil(SLICE).max(1);
        if count.saturating_add(align) > self.layout.slices + 1 {
            return Err(Cause::TooLarge);
        }
        let record = self.record().ok_or(Cause::Reentered)?;
        let mut pressed = false;
        for _ in 0..ATTEMPTS {
            let grid = self.core().grid.lock.lock(self, Reason::Large).ok_or(Cause::Reentered)?;
            if let Some(head) = self.open_large(&grid, count, align) {
                if let Some(claim) = into {
                    claim.change(&grid, self.user + (head << SLICE_SHIFT));
                }
                let before = record.in_flight.swap(Entry::large(head).0, Release);
                drop(grid);
                record.in_flight.store(before, Release);
                self.count(|process| &process.large_allocs, 1);
                return Ok(self.user + (head << SLICE_SHIFT));
            }
            drop(grid);
            self.make_room(count, align, &mut pressed)?;
        }
        Err(Cause::Exhausted)
    }

    pub(super) fn free_large(&self, address: *mut u8, head: usize, from: Option<&Claim>) {
        let start = clock::now_ns();
        let Some(grid) = self.core().grid.lock.lock(self, Reason::Large) else {
            // A signal handler interrupted the grid: the object stays, and the stats page says so.
            self.stats_page().header.cells_deferred.fetch_add(1, Relaxed);
            return;
        };
        let closed = self.close_large(&grid, head);
        if let Some(claim) = from {
            claim.change(&grid, 0);
        }
        drop(grid);
        match closed {
            Ok(count) => {
                self.count(|process| &process.large_frees, 1);
                let (address, bytes) = (address as usize, count << SLICE_SHIFT);
                let ns = clock::now_ns().saturating_sub(start);
                emit::large_free(|| args::large_free { arena: self.number, address, bytes, ns });
                self.shrink_above_slack();
            }
            Err(kind) => self.refuse(kind, address as usize, usize::MAX, 0),
        }
    }

    /// Allocates `size` zeroed bytes.
    pub fn calloc(&self, size: usize) -> *mut u8 {
        let address = self.malloc(size);
        if !address.is_null() {
            // SAFETY: S8, the block has at least so many bytes.
            unsafe { address.write_bytes(0, size) };
        }
        address
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two of at most 2 MiB. Null with EINVAL for any other, and
    /// with ENOMEM if there is no memory.
    pub fn aligned(&self, align: usize, size: usize) -> *mut u8 {
        self.aligned_at(align, size, &Site::UNKNOWN)
    }

    /// As [`aligned`](Self::aligned), for a call site that is known.
    pub fn aligned_at(&self, align: usize, size: usize, site: &Site) -> *mut u8 {
        if !align.is_power_of_two() || align > crate::sys::memory::HUGE_PAGE {
            crate::sys::Errno(libc::EINVAL).set();
            return null_mut();
        }
        if align <= self.alignment() {
            return self.malloc_at(size, || *site);
        }
        // Spans begin at multiples of a slice, so cells whose size is a multiple of the alignment lie right.
        let fits = |class: &usize| {
            let cell = self.cell_size(*class) as usize;
            align <= SLICE && cell >= size && cell.is_multiple_of(align)
        };
        match (0..COUNT).find(fits) {
            Some(class) => self.malloc_cell(class, size, || *site, None),
            None => self.malloc_large(size, align.div_ceil(SLICE), None),
        }
    }

    /// Bytes that may be used in a live block; 0 for null, and for a bad address, which is counted. One look-up.
    pub fn usable_size(&self, address: *mut u8) -> usize {
        let offset = (address as usize).wrapping_sub(self.user);
        if address.is_null() {
            return 0;
        }
        if offset < self.cap_bytes {
            match self.owner(offset >> SLICE_SHIFT) {
                Owner::Span { class, head } if self.is_live(class, head, offset) => {
                    return self.cell_size(class) as usize;
                }
                Owner::Span { .. } => {}
                Owner::Large if offset.is_multiple_of(SLICE) => {
                    return self.large_slices(offset >> SLICE_SHIFT).unwrap_or(0) << SLICE_SHIFT;
                }
                Owner::Large => {}
                Owner::Nobody => {}
            }
        }
        self.refuse(CorruptionKind::WildFree, address as usize, usize::MAX, 1);
        0
    }

    /// Resizes a block, in place where possible; null allocates. Null: no memory, and the old block stays; or a bad address,
    /// which is refused and counted (EINVAL).
    // The block is looked up, and copied only if it is live.
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn realloc(&self, address: *mut u8, size: usize) -> *mut u8 {
        if address.is_null() {
            return self.malloc(size);
        }
        let old = self.usable_size(address);
        if old == 0 {
            crate::sys::Errno(libc::EINVAL).set();
            return null_mut();
        }
        if self.class_of(size).map_or(0, |class| self.cell_size(class) as usize) == old {
            return address;
        }
        let offset = (address as usize).wrapping_sub(self.user);
        if self.class_of(size).is_none() && self.owner(offset >> SLICE_SHIFT) == Owner::Large {
            let count = size.div_ceil(SLICE);
            let resized = count <= self.layout.slices
                && self
                    .core()
                    .grid
                    .lock
                    .lock(self, Reason::Large)
                    .is_some_and(|grid| self.resize_large(&grid, offset >> SLICE_SHIFT, count));
            if resized {
                return address;
            }
        }
        let new = self.malloc(size);
        if !new.is_null() {
            // SAFETY: S8, both blocks are live, apart, and have so many bytes.
            unsafe { copy_nonoverlapping(address, new, old.min(size)) };
            self.free(address);
        }
        new
    }

    /// Whether an address lies in the arena's user memory.
    #[inline]
    pub fn owns(&self, address: *const u8) -> bool {
        self.hot.owns(address as usize)
    }
}

const _: () = assert!(CLASSES.len() == COUNT);
