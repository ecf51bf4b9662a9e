//! Tending pages after they were used: what backs them is looked up, dense ones become huge ones, locks that a fork took
//! away are taken again.
//!
//! A round looks at the next [`LOOK`] pages at most, so the pages of a large arena have their turn. Only densely used pages
//! are collapsed, of which the rest holds memory anyway: it costs no memory, but milliseconds of the calling thread, and the
//! program may go on using the page meanwhile. Sparse ones are left as they are; when a part of a huge one is given back it is
//! split (`release.rs`).
//!
//! The kernel tells of each page whether it is huge since Linux 6.7. On older ones what a round collapsed is checked by the
//! process's own sum (`AnonHugePages` of smaps_rollup), which other threads' faults may disturb, and nothing else is looked up.
//!
//! Lock: the grid's, for each page shortly; none during system calls. Callers: maintenance, and a growth for the pages
//! before it (`grid/grow.rs`).

use super::density;
use super::pages::{Backing, Change, count_reason};
use super::tier;
use crate::grid::SharedGrid;
use crate::grid::tables::{PAGE_SLICES, Tables};
use crate::sys::memory::HUGE_PAGE;
use crate::sys::pages::{self, BASE_PAGES, LOOK};
use core::sync::atomic::Ordering::Relaxed;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::grid::{PINNED, tier_byte, tier_of};
use hg_probes::words::{Reason, Tier, TierReason};

/// Base pages of a page that must be there before it is collapsed: seven eighths.
const RESIDENT: usize = BASE_PAGES / 8 * 7;

/// Pages that a growth collapses where collapse was asked for by name: as many as a granule has.
const COLLAPSED_BY_GROWTH: u32 = 8;

/// A round over some pages.
struct Round {
    tables: Tables,
    backing: Backing,
    first: u32,
    count: u32,
    /// Pages that may still be collapsed.
    budget: u32,
    /// Whether collapse was found to be possible, or not.
    collapses: Option<bool>,
    /// What came of locking pages.
    locked: u32,
    pin_errno: i32,
}

impl SharedGrid {
    /// Looks after some pages, of which at most `budget` are collapsed (some 4 ms each). Returns how many were. For each tick
    /// of maintenance, one caller at a time; cheap where base pages were asked for, unlocked.
    pub(crate) fn tend_pages(&self, budget: u32) -> u32 {
        let Some(mut round) = self.begin_round(budget) else { return 0 };
        let seen = pages::huge(round.address(round.first), round.count);
        let before = if seen.is_none() { pages::huge_bytes() } else { None };
        let mut unsure = 0u64;
        let mut collapsed = 0;
        for index in 0..round.count {
            let page = round.first + index;
            let old = round.tables.tier_byte(page as usize).load(Relaxed);
            let huge = seen.map(|mask| mask >> index & 1 != 0);
            let resident = match huge {
                Some(true) => BASE_PAGES,
                _ => pages::resident(round.address(page), HUGE_PAGE).unwrap_or(0),
            };
            let mut tier = seen_tier(tier_of(old), huge, resident);
            if round.budget > 0 && self.wants_collapse(&mut round, page, tier, resident) {
                round.budget -= 1;
                match round.collapse(page) {
                    Some(true) => (tier, collapsed) = (Tier::Collapsed, collapsed + 1),
                    Some(false) => self.stop_collapsing(&mut round),
                    None => unsure |= 1 << index,
                }
            }
            let pinned = old & PINNED != 0 || round.pin(page, resident);
            self.correct(&round.tables, page, old, tier_byte(tier, pinned));
        }
        if unsure != 0 {
            collapsed += self.settle_unsure(&round, unsure, before);
        }
        self.end_round(&round);
        collapsed
    }

    /// Looks at the pages that earlier growths brought, which are used by now, and collapses them if that was asked for by name.
    pub(crate) fn tend_before_growth(&self, backing: Backing) {
        let named = backing.forced && backing.tier == Tier::Collapsed;
        self.tend_pages(if named { COLLAPSED_BY_GROWTH } else { 0 });
    }

    fn begin_round(&self, budget: u32) -> Option<Round> {
        let mut grid = self.lock.lock(Reason::Policy)?;
        let pages = grid.top() / PAGE_SLICES as u32;
        let backing = grid.pages.backing;
        if pages == 0 || !backing.changes() {
            return None;
        }
        let first = if grid.pages.next < pages { grid.pages.next } else { 0 };
        let count = (pages - first).min(LOOK);
        grid.pages.next = first + count;
        Some(Round { tables: grid.tables, backing, first, count, budget, collapses: None, locked: 0, pin_errno: 0 })
    }

    /// Whether a page should become a huge one now.
    fn wants_collapse(&self, round: &mut Round, page: u32, tier: Tier, resident: usize) -> bool {
        let small = matches!(tier, Tier::Base | Tier::Mid);
        if !small || resident < RESIDENT || !round.may_collapse() {
            return false;
        }
        // Memory on its way to the system must not be filled again.
        let Some(grid) = self.lock.lock(Reason::Policy) else { return false };
        !grid.is_releasing() && density::is_dense(&round.tables, page, grid.top())
    }

    /// The kernel has no huge page: no more of this round.
    fn stop_collapsing(&self, round: &mut Round) {
        round.budget = 0;
        if let Some(grid) = self.lock.lock(Reason::Policy)
            && let Some(page) = grid.page()
        {
            count_reason(&page.header, TierReason::NotBacked, 1);
        }
    }

    fn correct(&self, tables: &Tables, page: u32, old: u8, new: u8) {
        if old == new {
            return;
        }
        let Some(mut grid) = self.lock.lock(Reason::Policy) else { return };
        let change = grid.pages.correct(tables, page, old, new);
        drop(grid);
        Change::tell(change, self.lock.arena());
    }

    /// Enters pages whose collapse only the process's sum confirms: all of them or none.
    fn settle_unsure(&self, round: &Round, unsure: u64, before: Option<u64>) -> u32 {
        let wanted = u64::from(unsure.count_ones()) * HUGE_PAGE as u64;
        let confirmed =
            matches!((before, pages::huge_bytes()), (Some(before), Some(after)) if after >= before + wanted);
        if !confirmed {
            return 0;
        }
        for index in (0..round.count).filter(|index| unsure >> index & 1 != 0) {
            let page = round.first + index;
            let old = round.tables.tier_byte(page as usize).load(Relaxed);
            self.correct(&round.tables, page, old, tier_byte(Tier::Collapsed, old & PINNED != 0));
        }
        unsure.count_ones()
    }

    /// Publishes what a round changed.
    fn end_round(&self, round: &Round) {
        // Also where nothing was locked: the program may have unlocked all there is.
        let unswappable = round.backing.pin.then(pages::unswappable_bytes).flatten();
        let Some(mut grid) = self.lock.lock(Reason::Policy) else { return };
        if let Some(bytes) = unswappable {
            grid.pages.unswappable_bytes = bytes;
        }
        let pinned = grid.pages.pinned_bytes();
        let mut told = round.locked > 0;
        if let Some(page) = grid.page()
            && (round.locked > 0 || round.pin_errno != 0)
        {
            let errno = page.header.pin_errno.swap(round.pin_errno as u32, Relaxed);
            told |= errno != round.pin_errno as u32;
        }
        grid.publish();
        drop(grid);
        if told {
            let bytes = u64::from(round.locked) * HUGE_PAGE as u64;
            emit::pin(|| args::pin { arena: self.lock.arena(), bytes, pinned, errno: round.pin_errno });
        }
    }
}

impl Round {
    fn address(&self, page: u32) -> usize {
        self.tables.address(page * PAGE_SLICES as u32)
    }

    /// Whether pages are to be collapsed, by what was asked for and what the administrator says.
    fn may_collapse(&mut self) -> bool {
        let forced = self.backing.forced && self.backing.tier == Tier::Collapsed;
        let may = || self.backing.collapses() && tier::may_collapse(forced).is_ok();
        *self.collapses.get_or_insert_with(may)
    }

    /// Collapses a page. Whether it is huge then; `None` if the kernel does not tell.
    fn collapse(&self, page: u32) -> Option<bool> {
        if pages::collapse(self.address(page), HUGE_PAGE).is_err() {
            return Some(false);
        }
        pages::huge(self.address(page), 1).map(|mask| mask & 1 != 0)
    }

    /// Locks a page that holds memory, where pinning was asked for. No copy is made of what a forked child shares.
    fn pin(&mut self, page: u32, resident: usize) -> bool {
        if !self.backing.pin || resident == 0 || self.pin_errno != 0 {
            return false;
        }
        match pages::lock_on_fault(self.address(page), HUGE_PAGE) {
            Ok(()) => self.locked += 1,
            Err(errno) => self.pin_errno = errno.0,
        }
        self.pin_errno == 0
    }
}

/// What a page is, by its byte and by what the kernel shows.
fn seen_tier(byte: u8, huge: Option<bool>, resident: usize) -> Tier {
    let entered = Tier::from_u64(u64::from(byte)).unwrap_or(Tier::None);
    match (huge, entered) {
        (Some(true), Tier::Thp | Tier::Collapsed | Tier::Hugetlb) => entered,
        // It came by itself, at a fault or by khugepaged.
        (Some(true), _) => Tier::Thp,
        (Some(false), Tier::Thp | Tier::Collapsed | Tier::Hugetlb) if resident > 0 => Tier::Base,
        _ => entered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_believed_where_it_tells() {
        let byte = |tier: Tier| tier as u8;
        assert_eq!(seen_tier(byte(Tier::Base), Some(true), BASE_PAGES), Tier::Thp);
        assert_eq!(seen_tier(byte(Tier::Collapsed), Some(true), BASE_PAGES), Tier::Collapsed);
        assert_eq!(seen_tier(byte(Tier::Thp), Some(false), 1), Tier::Base);
        // An empty place will hold what was asked for.
        assert_eq!(seen_tier(byte(Tier::Thp), Some(false), 0), Tier::Thp);
        assert_eq!(seen_tier(byte(Tier::Thp), None, 300), Tier::Thp);
        assert_eq!(seen_tier(byte(Tier::Mid), Some(false), 300), Tier::Mid);
        assert_eq!(seen_tier(200, None, 0), Tier::None);
    }
}
