//! Large objects: runs of whole slices, straight from the grid.
//!
//! A request above 256 KiB wastes less than a slice, so at most an eighth. The grid lock serialises them; a large object
//! that is freed keeps its memory for the next one until more than the slack is free (`grid/shrink.rs`).

use crate::arena::{ATTEMPTS, Arena};
use crate::grid::tables::Kind;
use crate::safety::check;
use crate::size_class::{SLICE, SLICE_SHIFT};
use crate::sys::{KeepErrno, clock};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, CorruptionKind, Reason};

/// The largest request: what the C standard's ptrdiff_t can measure.
pub const MAX_REQUEST: usize = isize::MAX as usize;

impl Arena {
    /// Allocates whole slices for `size` bytes at a multiple of `align` slices. Returns the address, or null, and whether
    /// the memory is known to be zero.
    pub(crate) fn malloc_large(&'static self, size: usize, align: usize, errno: &mut KeepErrno) -> (*mut u8, bool) {
        if self.page().is_none() && !self.ensure_started() {
            check::fail(None, size, Cause::NoReservation);
            errno.out_of_memory();
            return (null_mut(), false);
        }
        let start = clock::now_ns();
        match self.take_large(size, align) {
            Ok((address, zero)) => {
                let arena = self.grid.lock.arena();
                let ns = clock::now_ns().saturating_sub(start);
                emit::large_alloc(|| args::large_alloc { arena, address, bytes: size, ns });
                self.sampler.take_large(arena, address, size);
                (address as *mut u8, zero)
            }
            Err(cause) => {
                check::fail(self.page(), size, cause);
                errno.out_of_memory();
                (null_mut(), false)
            }
        }
    }

    fn take_large(&'static self, size: usize, align: usize) -> Result<(usize, bool), Cause> {
        let slices = size.div_ceil(SLICE).max(1);
        let (Some(settings), true) = (self.settings(), size <= MAX_REQUEST) else { return Err(Cause::TooLarge) };
        if slices.saturating_add(align) > settings.tables.cap as usize {
            return Err(Cause::TooLarge);
        }
        let mut pressed = false;
        for _ in 0..ATTEMPTS {
            let Some(mut grid) = self.grid.lock.lock(Reason::Large) else { return Err(Cause::Reentered) };
            match grid.take(slices as u32, align as u32) {
                Ok((head, zero)) => {
                    grid.open_large(head, slices as u32);
                    return Ok((settings.tables.address(head), zero));
                }
                Err(need) => {
                    drop(grid);
                    self.make_room(need, &mut pressed)?;
                }
            }
        }
        Err(Cause::Exhausted)
    }

    /// Frees the large object at an address of accessible memory, if there is one.
    pub(crate) fn free_large(&'static self, address: usize) {
        let start = clock::now_ns();
        let Some(settings) = self.settings() else { return };
        let head = settings.tables.slice_of(address);
        let Some(mut grid) = self.grid.lock.lock(Reason::Large) else {
            // A signal handler interrupted the grid: the object stays, and the stats page says so.
            if let Some(page) = self.page() {
                page.header.cells_deferred.fetch_add(1, Relaxed);
            }
            return;
        };
        let kind = settings.tables.kind(head);
        if kind != Kind::Large {
            let kind = match kind {
                Kind::Free => CorruptionKind::DoubleFree,
                _ if grid.inside_large(head) => CorruptionKind::InteriorFree,
                _ => CorruptionKind::WildFree,
            };
            drop(grid);
            return self.refuse(kind, address, 0, 0);
        }
        let slices = settings.tables.length(head);
        grid.close_large(head, slices);
        drop(grid);
        let arena = self.grid.lock.arena();
        let bytes = (slices as usize) << SLICE_SHIFT;
        self.sampler.give(arena, address);
        emit::large_free(|| args::large_free { arena, address, bytes, ns: clock::now_ns().saturating_sub(start) });
        self.shrink_above_slack();
    }

    /// Bytes of the large object at an address, if there is one.
    pub(crate) fn large_bytes(&'static self, address: usize) -> Option<usize> {
        let settings = self.settings()?;
        let head = settings.tables.slice_of(address);
        let _grid = self.grid.lock.lock(Reason::Large)?;
        (settings.tables.kind(head) == Kind::Large).then(|| (settings.tables.length(head) as usize) << SLICE_SHIFT)
    }

    /// Changes the size of a large object without moving it. False if the memory behind it does not allow that.
    pub(crate) fn resize_large(&'static self, address: usize, size: usize) -> bool {
        let slices = size.div_ceil(SLICE);
        let Some(settings) = self.settings() else { return false };
        if slices > settings.tables.cap as usize {
            return false;
        }
        let head = settings.tables.slice_of(address);
        let Some(mut grid) = self.grid.lock.lock(Reason::Large) else { return false };
        if settings.tables.kind(head) != Kind::Large {
            return false;
        }
        let old = settings.tables.length(head);
        old == slices as u32 || grid.resize_large(head, old, slices as u32)
    }
}
