//! What backs the pages of an arena made by handle, and what they got, as the page tables say.
//!
//! Memory that processes share cannot be replaced once they have forked: a new mapping would be one process's own. So an arena that
//! wants pages of the hugetlb pool has two *windows*, each as large as its cap: the first of that pool, the second of plain
//! memory. A page is committed in the first while the pool has one, and else in the second; both together stay below the cap.
//! A page of the pool is filled before anybody may have it: its first touch from an empty pool would be a signal.
//!
//! Transparent huge pages of shared memory are asked for by advice, which the administrator may forbid; a page that did not become
//! one is collapsed, which he does not forbid.
//!
//! Lock: none. Callers: the second phases of `grow.rs`.

use super::Arena;
use super::grid::COMMITTED;
use crate::sys::memory::{self, HUGE_PAGE};
use crate::sys::{Errno, clock, pages};
use core::sync::atomic::Ordering::*;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::page::TIERS;
use hg_probes::words::{Tier, TierReason};

/// How long an empty pool is not asked again.
const POOL_BACK_OFF_NS: u64 = 1_000_000_000;

/// Why a page cannot be backed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The hugetlb pool is empty: there is the other window.
    Pool(Errno),
    System(Errno),
}

impl Arena {
    /// Pages of the window of the hugetlb pool, which come first.
    pub(super) fn pool_pages(&self) -> usize {
        if self.has_pool_window() { self.layout.pages / 2 } else { 0 }
    }

    /// The first page that a growth may take now.
    pub(super) fn first_page(&self) -> usize {
        let asks = clock::now_ns() >= self.core().pool_empty_until_ns.load(Relaxed);
        if asks { 0 } else { self.pool_pages() }
    }

    /// Lets growths pass the hugetlb pool by for a while.
    pub(super) fn pass_pool_by(&self) {
        self.core().pool_empty_until_ns.store(clock::now_ns().saturating_add(POOL_BACK_OFF_NS), Relaxed);
        self.step_down(TierReason::PoolEmpty);
    }

    /// Backs a page that nobody else may touch yet, and enters what it got.
    pub(super) fn back_page(&self, page: usize) -> Result<(), Refused> {
        let address = self.address_of(page);
        if page < self.pool_pages() {
            memory::populate(address, HUGE_PAGE).map_err(Refused::Pool)?;
            self.enter_tier(page, Tier::Hugetlb);
        } else {
            if self.wants_huge() || self.populates() {
                // What the kernel thinks of the advice is seen below.
                let _ = if self.wants_huge() { memory::advise_huge(address, HUGE_PAGE) } else { Ok(()) };
                memory::populate(address, HUGE_PAGE).map_err(Refused::System)?;
            }
            let tier = if self.wants_huge() { self.huge_tier(address) } else { Tier::Base };
            self.enter_tier(page, tier);
        }
        if self.pins() {
            self.pin_page(address);
        }
        Ok(())
    }

    /// What a page became that was advised to be a huge one, and filled.
    fn huge_tier(&self, address: usize) -> Tier {
        let is_huge = || pages::huge(address, 1).map(|bits| bits & 1 != 0);
        match is_huge() {
            Some(true) => return Tier::Thp,
            None => {
                self.step_down(TierReason::Unverified);
                return Tier::Base;
            }
            Some(false) => {}
        }
        if pages::collapse(address, HUGE_PAGE).is_ok() && is_huge() == Some(true) {
            self.step_down(TierReason::NotBacked);
            return Tier::Collapsed;
        }
        self.step_down(TierReason::NotOffered);
        Tier::Base
    }

    fn step_down(&self, reason: TierReason) {
        let header = &self.stats_page().header;
        header.tier_reason.store(reason as u32, Relaxed);
        if let Some(count) = header.tier_reasons.get(reason as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn enter_tier(&self, page: usize, tier: Tier) {
        let header = &self.stats_page().header;
        let before = Tier::from_u64(header.tier.swap(tier as u32, Relaxed).into()).unwrap_or(Tier::None);
        if let Some(word) = self.tier_word(page) {
            word.store(tier as u8, Relaxed);
        }
        if before != Tier::None && before != tier {
            emit::tier_change(|| args::tier_change { arena: self.number, page: page as u64, from: before, to: tier });
        }
    }

    /// Enters a page that was committed into the sums by tier, or takes one out. Under the grid's lock.
    pub(super) fn move_tier_bytes(&self, page: usize, committed: bool) {
        let tier = self.tier_word(page).map_or(0, |word| word.load(Relaxed)) as usize;
        if let Some(sum) = self.stats_page().header.tier_bytes.get(tier) {
            let (old, bytes) = (sum.load(Relaxed), HUGE_PAGE as u64);
            sum.store(if committed { old + bytes } else { old.saturating_sub(bytes) }, Relaxed);
        }
    }

    /// Counts the sums by tier anew: a death may have left them a page off. Under no lock; off by what moves meanwhile.
    pub(super) fn sum_tiers(&self) {
        let mut sums = [0u64; TIERS];
        for page in (0..self.layout.pages).filter(|page| self.page_state(*page) == COMMITTED) {
            let tier = self.tier_word(page).map_or(0, |word| word.load(Relaxed)) as usize;
            if let Some(sum) = sums.get_mut(tier) {
                *sum += HUGE_PAGE as u64;
            }
        }
        self.stats_page().header.tier_bytes.iter().zip(sums).for_each(|(word, sum)| word.store(sum, Relaxed));
    }

    fn pin_page(&self, address: usize) {
        let errno = memory::pin(address, HUGE_PAGE).err().map_or(0, |errno| errno.0);
        let header = &self.stats_page().header;
        header.pin_errno.store(errno as u32, Relaxed);
        if errno == 0 {
            header.pinned_bytes.fetch_add(HUGE_PAGE as u64, Relaxed);
        }
        let pinned = header.pinned_bytes.load(Relaxed);
        emit::pin(|| args::pin { arena: self.number, bytes: HUGE_PAGE as u64, pinned, errno });
    }

    /// Gives the memory of a page back that nobody has.
    pub(super) fn release_page(&self, page: usize) {
        let address = self.address_of(page);
        if self.pins() && pages::unlock(address, HUGE_PAGE).is_ok() {
            // Locked memory of a file cannot be removed.
            let pinned = &self.stats_page().header.pinned_bytes;
            let _ = pinned.fetch_update(Relaxed, Relaxed, |bytes| Some(bytes.saturating_sub(HUGE_PAGE as u64)));
        }
        // A refusal leaves the memory there, to be used again: it costs no more than before.
        let _ =
            if self.is_shared() { memory::remove(address, HUGE_PAGE) } else { memory::give_back(address, HUGE_PAGE) };
    }

    fn address_of(&self, page: usize) -> usize {
        self.user + page * HUGE_PAGE
    }
}
