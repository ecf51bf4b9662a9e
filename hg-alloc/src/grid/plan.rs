//! What a growth is to do: whether a need is served already, what it asks of the system, and how it is cut to the room there is.
//!
//! Lock: the grid's. Callers: `grow.rs`, `blocked.rs`.

use super::back::{Plan, STATES_STEP};
use super::runs::Pool;
use super::states::CHUNK;
use super::{GRANULE, Grid, Need, reserve, tables};
use crate::backing::pages::Backing;
use crate::backing::release;
use crate::backing::room::Ask;
use crate::size_class::SLICE;
use core::sync::atomic::Ordering::Relaxed;
use hg_probes::words::{Cause, Tier};

/// Runs that one growth joins with their neighbours.
const GATHER_RUNS: u32 = 64;

impl Grid {
    /// Whether a need can be served now.
    pub(super) fn serves(&self, need: Need) -> bool {
        match need {
            Need::Slices(count) => {
                [Pool::Dirty, Pool::Fresh].iter().any(|pool| self.bins.find(&self.tables, *pool, count).is_some())
            }
            Need::More(_) => false,
            Need::States => self.chunks.has_room(),
        }
    }

    /// Joins committed memory that nobody touched with the memory around it that was given back, to which it is equal: of
    /// pieces that earlier growths left, runs become that serve larger requests. What lies on a huge page with somebody
    /// else is there, touched or not, and stays.
    pub(super) fn gather_fresh(&mut self) {
        for _ in 0..GATHER_RUNS {
            let Some((head, length)) = self.bins.longest(&self.tables, Pool::Fresh) else { break };
            let Some((first, taken)) = release::releasable(&self.tables, head, length, false) else { break };
            self.bins.remove(&self.tables, Pool::Fresh, head);
            self.put_back(Pool::Fresh, head, first - head);
            self.put_back(Pool::Fresh, first + taken, head + length - first - taken);
            self.bins.insert(&self.tables, Pool::Released, first, taken);
            self.pages.uncommit(&self.tables, first, taken);
        }
    }

    /// Whether more than half of the accessible memory is free, and yet no run of it serves a request.
    pub(super) fn is_scattered(&self) -> bool {
        self.bins.slices(Pool::Dirty) + self.bins.slices(Pool::Released) > self.top / 2
    }

    /// Whether memory that was given back before serves a need, below the ceiling.
    pub(super) fn can_recommit(&self, need: Need) -> bool {
        let Some(length) = need.whole_run() else { return false };
        let longest = self.bins.longest(&self.tables, Pool::Released).map_or(0, |(_, length)| length);
        longest >= length && need.slices() <= self.below_ceiling()
    }

    /// Takes memory that was given back before: the longest run, which serves the need, and then others up to a granule, or to
    /// `room` slices, so that a scattered arena does not grow run by run.
    pub(super) fn recommit(&mut self, need: Need, room: u32) {
        let wanted = need.slices().max(GRANULE).min(self.below_ceiling());
        let mut left = cut(wanted, room, need.slices());
        for _ in 0..GATHER_RUNS {
            let Some((head, length)) = self.bins.longest(&self.tables, Pool::Released) else { break };
            let taken = length.min(left);
            if taken == 0 {
                break;
            }
            self.bins.remove(&self.tables, Pool::Released, head);
            self.put_back(Pool::Released, head + taken, length - taken);
            self.bins.insert(&self.tables, Pool::Fresh, head, taken);
            self.pages.commit(&self.tables, head, taken);
            left -= taken;
        }
        if let Some(page) = self.page {
            crate::stats::add(&page.header.grows, 1);
        }
    }

    /// Slices that may be committed below the ceiling.
    pub(super) fn below_ceiling(&self) -> u32 {
        self.ceiling.saturating_sub(self.committed_slices())
    }

    /// Slices behind the top that a need takes.
    fn missing(&self, need: Need) -> u32 {
        match need {
            Need::Slices(count) => count - self.fresh_tail().min(count),
            Need::More(_) | Need::States => need.slices(),
        }
    }

    /// The question to the limits that a need is.
    pub(super) fn ask(&self, need: Need, backing: Backing) -> Ask {
        let want = match need {
            Need::States => need.slices(),
            _ => need
                .slices()
                .div_ceil(GRANULE)
                .max(1)
                .saturating_mul(GRANULE)
                .min(self.below_ceiling().max(need.slices())),
        };
        let bytes = |slices: u32| u64::from(slices) * SLICE as u64;
        let pool = self.page.map_or(0, |page| page.header.tier_bytes[Tier::Hugetlb as usize].load(Relaxed));
        Ask {
            need: bytes(need.slices()),
            want: bytes(want),
            committed: self.committed_bytes().saturating_sub(pool),
            pool: need != Need::States && backing.forced && backing.tier == Tier::Hugetlb,
        }
    }

    /// What to do for a need, with room for so many slices.
    pub(super) fn plan(&self, need: Need, room: u32) -> Result<Plan, Cause> {
        if need == Need::States {
            let from = self.chunks.committed;
            // A small arena has fewer than a step.
            let to = (from + STATES_STEP).min(tables::states_of(self.reserved as usize) / CHUNK * CHUNK);
            return if to > from { Ok(Plan::States { from, to }) } else { self.plan_reserve(1) };
        }
        let missing = self.missing(need);
        let left = self.reserved - self.top;
        let below = self.below_ceiling();
        let granules = missing.div_ceil(GRANULE).max(1).saturating_mul(GRANULE);
        match missing {
            _ if missing > self.tables.cap => Err(Cause::TooLarge),
            _ if missing > self.tables.cap - self.top => Err(self.cap_cause),
            _ if missing > below => Err(Cause::Ceiling),
            _ if missing > left => self.plan_reserve(missing - left),
            _ => {
                let slices = cut(granules.min(left).min(below).max(missing), room, missing);
                Ok(Plan::Slices { from: self.top, to: self.top + slices })
            }
        }
    }

    /// Map address space for so many slices more, if not all of the cap is mapped.
    fn plan_reserve(&self, missing: u32) -> Result<Plan, Cause> {
        let least = self.reserved + missing;
        let to = reserve::next_step(self.reserved, missing, self.tables.cap);
        if to >= least { Ok(Plan::Reserve { from: self.reserved, least, to }) } else { Err(self.cap_cause) }
    }

    /// Length of the fresh run that ends at the top: new slices will join it.
    fn fresh_tail(&self) -> u32 {
        let Some(last) = self.top.checked_sub(1) else { return 0 };
        let length = self.tables.length(last);
        match self.tables.free_run(self.top - length.clamp(1, self.top), self.top) {
            Some((Pool::Fresh, found)) if found == length => length,
            _ => 0,
        }
    }
}

impl Need {
    /// Slices that a need is about.
    pub(super) fn slices(self) -> u32 {
        match self {
            Need::Slices(count) | Need::More(count) => count,
            Need::States => (STATES_STEP / SLICE) as u32,
        }
    }

    /// Length of a run of slices that serves the need; `None` if slices do not.
    fn whole_run(self) -> Option<u32> {
        match self {
            Need::Slices(count) => Some(count),
            Need::More(_) => Some(1),
            Need::States => None,
        }
    }
}

/// What of `want` slices there is room for: whole granules if these do, else whole pages, else what is needed.
pub(super) fn cut(want: u32, room: u32, need: u32) -> u32 {
    let whole = |unit: u32| room / unit * unit;
    match () {
        _ if want <= room => want,
        _ if whole(GRANULE) >= need.max(1) => whole(GRANULE),
        _ if whole(tables::PAGE_SLICES as u32) >= need.max(1) => whole(tables::PAGE_SLICES as u32),
        _ => need,
    }
}
