//! Growth: more memory for the grid, in two phases.
//!
//! Under the lock: look again (somebody else may have grown), take memory that was given back before, or reserve the
//! slices behind the top. Without it: the question whether the system's limits leave room (`backing/room.rs`), and the
//! system calls. Under it again: publish. One thread grows at a time; the others that need memory sleep until it is
//! done, for a bounded time. A growth is cut to what there is room for, down to what is needed; less is a refusal, which
//! has a cause, is counted, and fires `grow_refused` (`blocked.rs` tells of episodes of them). `plan.rs` has what the first
//! phase decides, `back.rs` the second phase.

use super::back::Plan;
use super::tables::Tables;
use super::{Grid, Need, SharedGrid, reserve};
use crate::backing::pages::Backing;
use crate::lock::Guard;
use crate::size_class::SLICE;
use crate::sys::{Errno, clock, futex, thread};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, Reason, Tier};

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

            if let Plan::Reserve { from, least, to } = plan {
                self.reserve_more(&tables, (from, least, to), need, last)?;
                continue;
            }
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

    /// Maps address space for slices from..to, or up to `least` if that is all there is, where the reservation was cut short. This
    /// thread has `growing`.
    #[cold]
    fn reserve_more(
        &self,
        tables: &Tables,
        (from, least, to): (u32, u32, u32),
        need: Need,
        last: bool,
    ) -> Result<(), (Cause, Errno)> {
        let mapped = reserve::map_more(tables, from, to).map(|()| to);
        let mapped = mapped.or_else(|_| reserve::map_more(tables, from, least).map(|()| least));
        let mut grid = self.lock.lock_again(Reason::Grow);
        grid.growing = 0;
        let result = match mapped {
            Ok(to) => {
                grid.reserve_to(to);
                drop(grid);
                Ok(())
            }
            Err(errno) => {
                let cause = grid.cap_cause;
                self.refuse(grid, need, cause, errno, last, false)
            }
        };
        self.wake_waiting();
        result
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
