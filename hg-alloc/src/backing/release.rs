//! Giving back free slices: what the pages that they lie on need, beyond being told that nobody wants them.
//!
//! | the page is | and goes back | as |
//! |---|---|---|
//! | base pages, 64 KiB | in any part | MADV_DONTNEED |
//! | a huge page | as a whole | MADV_DONTNEED |
//! | a huge page | by half or more, where memory is wanted back | split first, else the part stays with the kernel, unusable |
//! | locked | as a whole | munlock first: the kernel refuses locked memory |
//! | of the hugetlb pool | as a whole | replaced by plain memory |
//!
//! A smaller part of a huge page is kept: it frees less than the huge page is worth. Parts of locked pages are kept, because
//! each would make two mappings more.
//!
//! Lock: [`releasable`] under the grid's, [`give_back`] without. Caller: `grid/shrink.rs`.

use super::hugetlb;
use super::pages::touched_pages;
use crate::grid::tables::{PAGE_SLICES, Tables};
use crate::size_class::SLICE_SHIFT;
use crate::sys::{Errno, memory, pages};
use core::sync::atomic::Ordering::Relaxed;
use hg_probes::grid::{PINNED, tier_of};
use hg_probes::words::Tier;

const PAGE: u32 = PAGE_SLICES as u32;

/// The part of a huge page that is worth splitting it, slices.
const WORTH: u32 = PAGE / 2;

/// What a page needs before it goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Split,
    Unlock,
    Replace,
    /// Not in this part.
    Keep,
}

/// How so many slices of a page go.
fn way(tables: &Tables, page: u32, slices: u32) -> Way {
    let byte = tables.tier_byte(page as usize).load(Relaxed);
    let whole = slices >= PAGE;
    match Tier::from_u64(u64::from(tier_of(byte))) {
        Some(Tier::Hugetlb) if whole => Way::Replace,
        Some(Tier::Hugetlb) => Way::Keep,
        _ if byte & PINNED != 0 => {
            if whole {
                Way::Unlock
            } else {
                Way::Keep
            }
        }
        Some(Tier::Thp | Tier::Collapsed) if !whole => {
            if slices >= WORTH {
                Way::Split
            } else {
                Way::Keep
            }
        }
        _ => Way::Plain,
    }
}

/// The slices of a run that lie on a page.
pub(super) fn piece(page: u32, head: u32, end: u32) -> (u32, u32) {
    let first = head.max(page * PAGE);
    (first, end.min((page + 1) * PAGE) - first)
}

/// The part of a free run that can go back: its first slice and length, if there is any. Huge pages are split for it if
/// `split` says so.
pub(crate) fn releasable(tables: &Tables, head: u32, length: u32, split: bool) -> Option<(u32, u32)> {
    let goes = |page, slices| match way(tables, page, slices) {
        Way::Keep => false,
        Way::Split => split,
        _ => true,
    };
    let (mut first, mut end) = (head, head + length);
    let (page, (_, slices)) = (first / PAGE, piece(first / PAGE, first, end));
    if !goes(page, slices) {
        first += slices;
    }
    if first < end {
        let page = (end - 1) / PAGE;
        let (_, slices) = piece(page, first, end);
        if !goes(page, slices) {
            end -= slices;
        }
    }
    (first < end).then(|| (first, end - first))
}

/// Gives a run back that nobody can get meanwhile, as [`releasable`] cut it. Returns how many of its slices went; fewer than
/// `length` if the kernel refused.
pub(crate) fn give_back(tables: &Tables, head: u32, length: u32) -> u32 {
    let end = head + length;
    // Pages that go the same way go by one call.
    let (mut from, mut way_of_all) = (head, None);
    for page in touched_pages(head, length) {
        let (first, slices) = piece(page, head, end);
        let way = way(tables, page, slices);
        match way_of_all {
            Some(before) if before != way => {
                if send(tables, from, first - from, before).is_err() {
                    return from - head;
                }
                from = first;
            }
            _ => {}
        }
        way_of_all = Some(way);
    }
    match way_of_all {
        Some(way) if send(tables, from, end - from, way).is_err() => from - head,
        _ => length,
    }
}

fn send(tables: &Tables, head: u32, length: u32, way: Way) -> Result<(), Errno> {
    let (address, bytes) = (tables.address(head), (length as usize) << SLICE_SHIFT);
    match way {
        Way::Plain => {}
        Way::Split => {
            // A refusal leaves the freed part with the kernel until it is short of memory.
            let _ = pages::split(address, bytes);
        }
        Way::Unlock => pages::unlock(address, bytes)?,
        Way::Replace => return hugetlb::leave(address, bytes),
        Way::Keep => return Err(Errno(libc::EINVAL)),
    }
    memory::give_back(address, bytes)
}
