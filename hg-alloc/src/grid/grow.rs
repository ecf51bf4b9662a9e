//! Growth: more memory for the grid, in two phases.
//!
//! Under the lock: look again (somebody else may have grown), take memory that was given back before, or reserve the
//! slices behind the top. Without it: the question whether the system's limits leave room (`backing/room.rs`), and the
//! system calls. Under it again: publish. One thread grows at a time; the others that need memory sleep until it is
//! done, for a bounded time. A growth is cut to what there is room for, down to what is needed; less is a refusal, which
//! has a cause, is counted, and fires `grow_refused` (`blocked.rs` tells of episodes of them). `back.rs` has the second
//! phase.

use super::back::{Plan, STATES_STEP};
use super::runs::Pool;
use super::{GRANULE, Grid, Need, SharedGrid, tables};
use crate::backing::pages::Backing;
use crate::backing::release;
use crate::backing::room::Ask;
use crate::lock::Guard;
use crate::size_class::SLICE;
use crate::sys::{Errno, clock, futex, thread};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, Reason, Tier};

/// Runs that one growth joins with their neighbours.
const GATHER_RUNS: u32 = 64;

/// How long a thread waits for another's growth before its own need counts as refused, ns.
const PATIENCE_NS: u64 = 2_000_000_000;

impl SharedGrid {
    /// Makes the grid able to serve a need, or tells why not. `limit` is the end of accessible user memory, as frees see it. A
    /// `cause` of Exhausted says that the caller will empty its caches and come again if this is refused.
    pub(crate) fn grow(
        &self,
        need: Need,
        cause: Cause,
        backing: Backing,
        limit: &AtomicUsize,
    ) -> Result<(), (Cause, Errno)> {
        let start = clock::now_ns();
        let last = cause != Cause::Exhausted;
        let mut compacted = false;
        let mut allowed = None;
        let mut least = false;
        loop {
            let Some(mut grid) = self.lock.lock(Reason::Grow) else {
                return Err((Cause::Reentered, Errno(libc::EDEADLK)));
            };
            if grid.serves(need) {
                return Ok(());
            }
            if grid.growing == thread::tid() {
                return Err((Cause::Reentered, Errno(libc::EDEADLK)));
            }
            let now = clock::now_ns();
            if grid.growing != 0 {
                if let Need::More(_) = need {
                    // Growth is on its way; what comes ahead of demand need not wait for it.
                    return Ok(());
                }
                if now.saturating_sub(start) > PATIENCE_NS {
                    return self.refuse(grid, need, Cause::Kernel, Errno(libc::ETIMEDOUT), last, false);
                }
                let seen = self.grown.load(Relaxed);
                drop(grid);
                futex::wait(&self.grown, seen, 100_000_000);
                allowed = None;
                continue;
            }
            if let Some(cause) = grid.blocked_for(need.slices(), now) {
                return self.refuse(grid, need, cause, Errno(0), last, false);
            }
            let whole = matches!(need, Need::Slices(_));
            if whole {
                grid.gather_fresh();
            }
            let recommits = grid.can_recommit(need);
            if whole && !recommits && !compacted && grid.is_scattered() {
                compacted = true;
                drop(grid);
                self.shrink(0, Cause::Exhausted);
                continue;
            }
            if !recommits && let Err(refusal) = grid.plan(need, u32::MAX) {
                return self.refuse(grid, need, refusal, Errno(0), last, false);
            }
            let ask = grid.ask(need, backing);
            let room = match allowed.take() {
                Some(bytes) => bytes,
                None if !ask.pool && self.room.spend(ask.want, now) => ask.want,
                None => {
                    grid.growing = thread::tid();
                    drop(grid);
                    let answer = self.room.look(ask);
                    let mut grid = self.lock.lock_again(Reason::Grow);
                    grid.growing = 0;
                    let result = match answer {
                        Ok(bytes) => {
                            allowed = Some(bytes);
                            drop(grid);
                            Ok(())
                        }
                        Err(limit) => self.refuse(grid, need, limit, Errno(0), last, true),
                    };
                    self.wake_waiting();
                    result?;
                    continue;
                }
            };
            let room = (room / SLICE as u64).min(u64::from(u32::MAX)) as u32;
            grid.pages.backing = backing;
            if recommits && !backing.by_calls() {
                let old_bytes = grid.committed_bytes();
                grid.recommit(need, room);
                self.slack.taken_again(start);
                let ended = grid.unblock();
                let (new_bytes, tier) = (grid.committed_bytes(), grid.tier);
                grid.publish();
                drop(grid);
                self.tell_growth(old_bytes, new_bytes, tier, cause, start);
                self.tell_unblocked(ended);
                return Ok(());
            }
            let plan = match grid.plan(need, room) {
                _ if recommits => grid.take_again(need, room),
                Ok(plan) => plan,
                Err(refusal) => return self.refuse(grid, need, refusal, Errno(0), last, false),
            };
            grid.growing = thread::tid();
            let tables = grid.tables;
            let before = grid.tier;
            drop(grid);

            self.tend_before_growth(backing);
            let done = plan.carry_out(&tables, backing, before);
            let retry = done.is_err() && !least && room > need.slices();
            let done = done.map_err(|errno| (if retry { Cause::Kernel } else { self.room.explain(errno, ask) }, errno));

            let mut grid = self.lock.lock_again(Reason::Grow);
            grid.growing = 0;
            let result = match done {
                Err(_) if retry => {
                    // The kernel may have as much as is needed, if not as much as was wanted.
                    least = true;
                    allowed = Some(ask.need);
                    drop(grid);
                    self.wake_waiting();
                    continue;
                }
                Err((limit, errno)) => self.refuse(grid, need, limit, errno, last, true),
                Ok(outcome) => {
                    let ended = grid.unblock();
                    // Others may have given memory back during the system calls: what this growth adds is seen from here.
                    let old_bytes = grid.committed_bytes() - plan.taken_bytes();
                    grid.adopt(&plan, &outcome);
                    limit.store((grid.top as usize) * SLICE, Release);
                    let (new_bytes, pinned_bytes) = (grid.committed_bytes(), grid.pages.pinned_bytes());
                    grid.publish();
                    drop(grid);
                    if let Some(backed) = outcome.iter().flatten().last() {
                        self.tell_growth(old_bytes, new_bytes, backed.tier, cause, start);
                        self.tell_backing(&plan, &outcome, backing, before, pinned_bytes);
                    }
                    self.tell_unblocked(ended);
                    Ok(())
                }
            };
            self.wake_waiting();
            return result;
        }
    }

    /// Wakes those who wait for a growth. No lock is held.
    pub(super) fn wake_waiting(&self) {
        self.grown.fetch_add(1, Relaxed);
        futex::wake(&self.grown, u32::MAX >> 1);
    }

    /// Ends a growth without memory. `looked` says that the limits were looked at for it.
    #[cold]
    fn refuse(
        &self,
        mut grid: Guard<'_, Grid>,
        need: Need,
        cause: Cause,
        errno: Errno,
        last: bool,
        looked: bool,
    ) -> Result<(), (Cause, Errno)> {
        let latched = grid.count_refusal(cause, need.slices(), last, looked);
        drop(grid);
        let arena = self.lock.arena();
        let wanted_bytes = u64::from(need.slices()) * SLICE as u64;
        emit::grow_refused(|| args::grow_refused { arena, wanted_bytes, cause, errno: errno.0 });
        self.tell_latched(latched, cause, wanted_bytes);
        Err((cause, errno))
    }

    /// Tells that memory could not be had in the way that was asked for, and came in a lesser one: counted as a refusal, but
    /// growth is not blocked.
    #[cold]
    pub(super) fn tell_lesser(&self, wanted_bytes: u64, cause: Cause, errno: i32) {
        if let Some(grid) = self.lock.lock(Reason::Grow)
            && let Some(counter) = grid.page.and_then(|page| page.header.grows_refused.get(cause as usize))
        {
            crate::stats::add(counter, 1);
        }
        let arena = self.lock.arena();
        emit::grow_refused(|| args::grow_refused { arena, wanted_bytes, cause, errno });
    }

    fn tell_growth(&self, old_bytes: u64, new_bytes: u64, tier: Tier, cause: Cause, start: u64) {
        let arena = self.lock.arena();
        emit::grow(|| args::grow {
            arena,
            old_bytes,
            new_bytes,
            tier,
            cause,
            ns: clock::now_ns().saturating_sub(start),
        });
    }
}

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
    fn gather_fresh(&mut self) {
        for _ in 0..GATHER_RUNS {
            let Some((head, length)) = self.bins.longest(&self.tables, Pool::Fresh) else { break };
            let Some((first, taken)) = release::releasable(&self.tables, head, length, false) else { break };
            self.bins.remove(&self.tables, Pool::Fresh, head);
            self.put_back(Pool::Fresh, head, first - head);
            self.put_back(Pool::Fresh, first + taken, head + length - first - taken);
            self.bins.insert(&self.tables, Pool::Released, first, taken);
        }
    }

    /// Whether more than half of the accessible memory is free, and yet no run of it serves a request.
    fn is_scattered(&self) -> bool {
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
    fn recommit(&mut self, need: Need, room: u32) {
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
            left -= taken;
        }
        if let Some(page) = self.page {
            crate::stats::add(&page.header.grows, 1);
        }
    }

    /// Slices that may be committed below the ceiling.
    pub(super) fn below_ceiling(&self) -> u32 {
        self.ceiling.saturating_sub(self.top - self.bins.slices(Pool::Released))
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
            return Ok(Plan::States { from: self.chunks.committed });
        }
        let missing = self.missing(need);
        let left = self.tables.cap - self.top;
        let below = self.below_ceiling();
        let granules = missing.div_ceil(GRANULE).max(1).saturating_mul(GRANULE);
        match missing {
            _ if missing > self.tables.cap => Err(Cause::TooLarge),
            _ if missing > left => Err(self.cap_cause),
            _ if missing > below => Err(Cause::Ceiling),
            _ => {
                let slices = cut(granules.min(left).min(below).max(missing), room, missing);
                Ok(Plan::Slices { from: self.top, to: self.top + slices })
            }
        }
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
