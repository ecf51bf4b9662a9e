//! Pages of the hugetlb pool in place of reserved memory, so that an empty pool is an errno and never a signal.
//!
//! A mapping of such pages is made elsewhere, filled, and only then moved into the arena, whole: until it is, the arena's
//! reservation stands as it was, and after it every page is there. The kernel keeps a reservation for the process that
//! mapped them, so a write to a page that a forked child shares is served even from an empty pool, at the child's cost
//! (see `backing/mod.rs`).
//!
//! A page that goes back is replaced by plain memory in one step: its place can be touched whatever the pool holds then, and
//! the pool has it, unreserved. When the place is needed again, it gets pages of the pool before it is published, or stays
//! plain.
//!
//! Lock: none. Callers: `ladder.rs`, `release.rs`.

use crate::sys::{Errno, memory, pages};
use hg_probes::words::TierReason;

/// Puts pages of the pool in place of a range that is not published, whole pages of the grid.
pub(super) fn take(address: usize, bytes: usize) -> Result<(), TierReason> {
    let mapped = pages::map_hugetlb(bytes).map_err(|errno| match errno.0 {
        libc::ENOMEM => TierReason::PoolEmpty,
        _ => TierReason::NotOffered,
    })?;
    // The reservation is for this process, but a control group may still refuse.
    if memory::populate(mapped, bytes).is_err() {
        memory::unmap(mapped, bytes);
        return Err(TierReason::PoolEmpty);
    }
    // Kernels before 5.16 do not move such mappings, but clear the place first: tried where there is nothing to lose.
    let Ok(spare) = memory::reserve(bytes) else {
        memory::unmap(mapped, bytes);
        return Err(TierReason::NotOffered);
    };
    if pages::move_to(mapped, bytes, spare).is_err() {
        memory::unmap(mapped, bytes);
        memory::unmap(spare, bytes);
        return Err(TierReason::NotOffered);
    }
    if pages::move_to(spare, bytes, address).is_err() {
        memory::unmap(spare, bytes);
        // Out of mappings: the place is as it was, or empty.
        let _ = pages::map_plain(address, bytes, true);
        return Err(TierReason::NotOffered);
    }
    Ok(())
}

/// Gives pages back to the pool and puts plain memory in their place.
pub(super) fn leave(address: usize, bytes: usize) -> Result<(), Errno> {
    pages::map_plain(address, bytes, false)
}
