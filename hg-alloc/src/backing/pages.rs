//! The book of pages: what backs each page of the grid below the top, and how many slices are committed on pages of each kind.
//!
//! A page's byte says what the kernel gave when somebody last looked: at the growth that brought the page (its first page
//! stands for the growth), after it was used (`tend.rs`), or when it went back (`release.rs`). Readers see the bytes; the
//! counts are published with the grid's other figures.
//!
//! Lock: the grid's. Bytes are atomic, and read without it.

use super::ladder::Backed;
use super::release::piece;
use crate::grid::tables::{PAGE_SLICES, Tables};
use crate::size_class::SLICE;
use crate::stats;
use crate::sys::memory::HUGE_PAGE;
use core::sync::atomic::Ordering::Relaxed;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::grid::{PINNED, tier_byte, tier_of};
use hg_probes::page::{Header, TIERS};
use hg_probes::words::{Tier, TierReason};

/// How memory is to be backed.
#[derive(Clone, Copy)]
pub(crate) struct Backing {
    /// The tier to begin with.
    pub(crate) tier: Tier,
    /// Whether that tier was named, which outweighs what speaks against it, or is just the best one there is.
    pub(crate) forced: bool,
    /// Whether to lock memory into RAM.
    pub(crate) pin: bool,
}

impl Backing {
    /// Base pages, not locked.
    pub(crate) const BASE: Backing = Backing { tier: Tier::Base, forced: false, pin: false };

    /// Whether memory that was given back takes system calls before it can be used again.
    pub(crate) const fn by_calls(&self) -> bool {
        self.pin || (self.forced && matches!(self.tier, Tier::Hugetlb))
    }

    /// Whether pages change after the growth that brought them.
    pub(super) const fn changes(&self) -> bool {
        self.pin || !matches!(self.tier, Tier::Base)
    }

    /// Whether densely used pages are to become huge ones.
    pub(super) const fn collapses(&self) -> bool {
        matches!(self.tier, Tier::Hugetlb | Tier::Thp | Tier::Collapsed)
    }
}

/// A change of what backs pages, for the probe: the first page that changed stands for all.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    pub(super) page: u32,
    pub(super) from: Tier,
    pub(super) to: Tier,
}

impl Change {
    /// Fires `tier_change`. No lock is held.
    pub(crate) fn tell(change: Option<Change>, arena: u32) {
        if let Some(Change { page, from, to }) = change {
            emit::tier_change(|| args::tier_change { arena, page: u64::from(page), from, to });
        }
    }
}

/// The book.
pub(crate) struct Pages {
    pub(crate) backing: Backing,
    /// Committed slices by the tier of their page: of all tiers together as many as are committed.
    counts: [u32; TIERS],
    /// Pages that were locked.
    pinned: u32,
    /// What the kernel last counted as not to be swapped out.
    pub(super) unswappable_bytes: u64,
    /// The page that is looked at next.
    pub(super) next: u32,
}

impl Pages {
    pub(crate) const fn new() -> Self {
        Pages { backing: Backing::BASE, counts: [0; TIERS], pinned: 0, unswappable_bytes: 0, next: 0 }
    }

    /// Bytes locked into RAM: what was asked for and not undone, as far as the kernel counts that much.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        (u64::from(self.pinned) * HUGE_PAGE as u64).min(self.unswappable_bytes)
    }

    /// Enters what a growth got for the slices `head..head + length`, new ones or such that were given back before.
    pub(crate) fn enter(&mut self, tables: &Tables, head: u32, length: u32, backed: &Backed) {
        // No page is collapsed before it was used.
        let tier = if backed.tier == Tier::Collapsed { Tier::Base } else { backed.tier };
        let whole = whole_pages(head, length);
        for page in touched_pages(head, length) {
            if whole.contains(&page) {
                self.set(tables, page, tier_byte(tier, backed.pinned));
            } else if self.tier(tables, page) == Tier::None {
                // A part of a page is no huge one, and not told to be locked; `tend.rs` sees to the whole.
                self.set(tables, page, tier_byte(Tier::Base, false));
            }
        }
        self.commit(tables, head, length);
        if let Some(bytes) = backed.unswappable_bytes {
            self.unswappable_bytes = bytes;
        }
    }

    /// Enters what went back: `head..head + length`. The places of whole pages are as new ones; a huge page that lost a part
    /// is none any more.
    pub(crate) fn settle(
        &mut self,
        tables: &Tables,
        head: u32,
        length: u32,
        header: Option<&Header>,
    ) -> Option<Change> {
        let mut change = None;
        self.uncommit(tables, head, length);
        let whole = whole_pages(head, length);
        for page in touched_pages(head, length) {
            let from = self.tier(tables, page);
            let split = !whole.contains(&page) && matches!(from, Tier::Thp | Tier::Collapsed);
            let to = if split || matches!(from, Tier::Collapsed | Tier::Hugetlb) { Tier::Base } else { from };
            self.set(tables, page, tier_byte(to, false));
            if split && let Some(header) = header {
                count_reason(header, TierReason::Sparse, 1);
            }
            if to != from {
                change = change.or(Some(Change { page, from, to }));
            }
        }
        change
    }

    /// Slices of pages that are known are committed again as they are.
    pub(crate) fn commit(&mut self, tables: &Tables, head: u32, length: u32) {
        self.count_slices(tables, head, length, |count, slices| count + slices);
    }

    /// Slices are committed no more; what backs their pages stays what it is.
    pub(crate) fn uncommit(&mut self, tables: &Tables, head: u32, length: u32) {
        self.count_slices(tables, head, length, |count, slices| count.saturating_sub(slices));
    }

    fn count_slices(&mut self, tables: &Tables, head: u32, length: u32, change: impl Fn(u32, u32) -> u32) {
        for page in touched_pages(head, length) {
            let (_, slices) = piece(page, head, head + length);
            let backed = tables.backed(page as usize);
            backed.store(change(backed.load(Relaxed).into(), slices) as u8, Relaxed);
            let tier = self.tier(tables, page);
            if let Some(count) = self.counts.get_mut(tier as usize) {
                *count = change(*count, slices);
            }
        }
    }

    /// Enters what a page is seen to be, unless it changed meanwhile.
    pub(super) fn correct(&mut self, tables: &Tables, page: u32, old: u8, new: u8) -> Option<Change> {
        if new == old || tables.tier_byte(page as usize).load(Relaxed) != old {
            return None;
        }
        let from = self.tier(tables, page);
        self.set(tables, page, new);
        let to = self.tier(tables, page);
        (to != from).then_some(Change { page, from, to })
    }

    /// A forked child has none of its parent's locks, and shares its parent's pages of the hugetlb pool (see
    /// `backing/mod.rs`).
    pub(crate) fn inherit(&mut self, tables: &Tables, top: u32, header: &Header) {
        for page in touched_pages(0, top) {
            let byte = tables.tier_byte(page as usize);
            byte.store(byte.load(Relaxed) & !PINNED, Relaxed);
        }
        self.pinned = 0;
        self.unswappable_bytes = 0;
        if self.counts[Tier::Hugetlb as usize] > 0 {
            count_reason(header, TierReason::Inherited, 1);
            header.tier_reason.store(TierReason::Inherited as u32, Relaxed);
        }
    }

    /// Writes the counts.
    pub(crate) fn publish(&self, header: &Header) {
        for (bytes, count) in header.tier_bytes.iter().zip(self.counts) {
            bytes.store(u64::from(count) * SLICE as u64, Relaxed);
        }
        header.pinned_bytes.store(self.pinned_bytes(), Relaxed);
    }

    fn tier(&self, tables: &Tables, page: u32) -> Tier {
        let byte = tables.tier_byte(page as usize).load(Relaxed);
        Tier::from_u64(u64::from(tier_of(byte))).unwrap_or(Tier::None)
    }

    fn set(&mut self, tables: &Tables, page: u32, byte: u8) {
        let old = tables.tier_byte(page as usize).swap(byte, Relaxed);
        let slices = u32::from(tables.backed(page as usize).load(Relaxed));
        self.count(old, |count, by| count.saturating_sub(by), slices);
        self.count(byte, |count, by| count + by, slices);
    }

    fn count(&mut self, byte: u8, change: impl Fn(u32, u32) -> u32, slices: u32) {
        if let Some(count) = self.counts.get_mut(usize::from(tier_of(byte))) {
            *count = change(*count, slices);
        }
        if byte & PINNED != 0 {
            self.pinned = change(self.pinned, 1);
        }
    }
}

/// Writes why a growth got what it got.
pub(crate) fn publish_backed(header: &Header, backed: &Backed) {
    header.tier_reason.store(backed.reason as u32, Relaxed);
    header.pin_errno.store(backed.pin_errno as u32, Relaxed);
    for (counter, steps) in header.tier_reasons.iter().zip(backed.steps) {
        stats::add(counter, u64::from(steps));
    }
}

pub(super) fn count_reason(header: &Header, reason: TierReason, times: u64) {
    if let Some(counter) = header.tier_reasons.get(reason as usize) {
        stats::add(counter, times);
    }
}

/// Pages of which a run has a part.
pub(super) fn touched_pages(head: u32, length: u32) -> core::ops::Range<u32> {
    head / PAGE_SLICES as u32..(head + length).div_ceil(PAGE_SLICES as u32)
}

/// Pages that a run has as a whole.
pub(super) fn whole_pages(head: u32, length: u32) -> core::ops::Range<u32> {
    head.div_ceil(PAGE_SLICES as u32)..(head + length) / PAGE_SLICES as u32
}
