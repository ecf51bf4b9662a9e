//! Growth: more memory for the grid, in two phases.
//!
//! Under the lock: look again (somebody else may have grown), take memory that was given back before, or reserve the
//! slices behind the top. Without it: the system calls. Under it again: publish. One thread grows at a time; the others
//! that need memory sleep until it is done. A refusal has a cause, is counted, and fires `grow_refused`; the first of an
//! episode fires `grow_blocked`.

use super::runs::Pool;
use super::{GRANULE, Grid, Need, SharedGrid, tables};
use crate::size_class::SLICE;
use crate::sys::{Errno, clock, env, futex, memory, thread};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, Reason, Tier, TierReason};

/// Room for cell states is made accessible in steps of so many bytes.
const STATES_STEP: usize = 4 << 20;

/// Runs that one growth joins with their neighbours.
const GATHER_RUNS: u32 = 64;

/// How memory is to be backed.
#[derive(Clone, Copy)]
pub(crate) struct Backing {
    /// The tier asked for.
    pub(crate) tier: Tier,
    /// Whether to lock memory into RAM.
    pub(crate) pin: bool,
}

/// What the second phase has to do.
enum Plan {
    /// Make the slices from..to accessible.
    Slices { from: u32, to: u32 },
    /// Make states accessible from this byte on.
    States { from: usize },
}

/// What the second phase brought.
struct Backed {
    tier: Tier,
    reason: TierReason,
    pinned_bytes: u64,
    pin_errno: i32,
}

impl SharedGrid {
    /// Makes the grid able to serve a need, or tells why not. `limit` is the end of accessible user memory, as frees see it.
    pub(crate) fn grow(
        &self,
        need: Need,
        cause: Cause,
        backing: Backing,
        limit: &AtomicUsize,
    ) -> Result<(), (Cause, Errno)> {
        let start = clock::now_ns();
        let mut compacted = false;
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
            if grid.growing != 0 {
                if let Need::More(_) = need {
                    // Growth is on its way; what comes ahead of demand need not wait for it.
                    return Ok(());
                }
                let seen = self.grown.load(Relaxed);
                drop(grid);
                futex::wait(&self.grown, seen, 100_000_000);
                continue;
            }
            if let Need::Slices(count) | Need::More(count) = need {
                let whole = matches!(need, Need::Slices(_));
                if whole {
                    grid.gather_fresh();
                }
                let old_bytes = grid.committed_bytes();
                if grid.recommit(if whole { count } else { 1 }, count.max(GRANULE)) {
                    let unblocked = core::mem::take(&mut grid.blocked);
                    let (new_bytes, tier) = (grid.committed_bytes(), grid.tier);
                    grid.publish();
                    drop(grid);
                    self.tell_growth(old_bytes, new_bytes, tier, cause, start, unblocked);
                    return Ok(());
                }
                if whole && !compacted && grid.is_scattered() {
                    compacted = true;
                    drop(grid);
                    self.shrink(0, Cause::Exhausted);
                    continue;
                }
            }
            let plan = match grid.plan(need) {
                Ok(plan) => plan,
                Err(refusal) => return self.refuse(grid, need, refusal, Errno(0)),
            };
            grid.growing = thread::tid();
            let tables = grid.tables;
            let before = grid.tier;
            drop(grid);

            let done = match plan {
                Plan::Slices { from, to } => back_slices(&tables, from, to, backing),
                Plan::States { from } => tables.commit_states(from, STATES_STEP).map(|()| None),
            };

            let Some(mut grid) = self.lock.lock(Reason::Grow) else {
                return Err((Cause::Reentered, Errno(libc::EDEADLK)));
            };
            grid.growing = 0;
            let result = match done {
                Err(errno) => self.refuse(grid, need, Cause::Kernel, errno),
                Ok(backed) => {
                    let unblocked = core::mem::take(&mut grid.blocked);
                    // Others may have given memory back during the system calls: what this growth adds is seen from here.
                    let old_bytes = grid.committed_bytes();
                    grid.adopt(&plan, backed.as_ref());
                    limit.store((grid.top as usize) * SLICE, Release);
                    let new_bytes = grid.committed_bytes();
                    grid.publish();
                    drop(grid);
                    if let (Some(backed), Plan::Slices { from, .. }) = (&backed, &plan) {
                        self.tell_growth(old_bytes, new_bytes, backed.tier, cause, start, unblocked);
                        self.tell_backing(backed, before, *from, new_bytes - old_bytes, backing.pin);
                    }
                    Ok(())
                }
            };
            self.grown.fetch_add(1, Relaxed);
            futex::wake(&self.grown, u32::MAX >> 1);
            return result;
        }
    }

    #[cold]
    fn refuse(
        &self,
        mut grid: crate::lock::Guard<'_, Grid>,
        need: Need,
        cause: Cause,
        errno: Errno,
    ) -> Result<(), (Cause, Errno)> {
        let begins = grid.count_refusal(cause);
        drop(grid);
        let arena = self.lock.arena();
        let wanted_bytes = match need {
            Need::Slices(count) | Need::More(count) => u64::from(count) * SLICE as u64,
            Need::States => STATES_STEP as u64,
        };
        emit::grow_refused(|| args::grow_refused { arena, wanted_bytes, cause, errno: errno.0 });
        if begins {
            emit::grow_blocked(|| args::grow_blocked { arena, on: 1, cause });
        }
        Err((cause, errno))
    }

    fn tell_growth(&self, old_bytes: u64, new_bytes: u64, tier: Tier, cause: Cause, start: u64, unblocked: bool) {
        let arena = self.lock.arena();
        emit::grow(|| args::grow {
            arena,
            old_bytes,
            new_bytes,
            tier,
            cause,
            ns: clock::now_ns().saturating_sub(start),
        });
        if unblocked {
            emit::grow_blocked(|| args::grow_blocked { arena, on: 0, cause });
        }
    }

    fn tell_backing(&self, backed: &Backed, before: Tier, from: u32, bytes: u64, pin: bool) {
        let arena = self.lock.arena();
        if before != Tier::None && before != backed.tier {
            let page = from as u64 * SLICE as u64 / memory::HUGE_PAGE as u64;
            emit::tier_change(|| args::tier_change { arena, page, from: before, to: backed.tier });
        }
        if pin {
            emit::pin(|| args::pin { arena, bytes, pinned: backed.pinned_bytes, errno: backed.pin_errno });
        }
    }
}

impl Grid {
    /// Whether a need can be served now.
    fn serves(&self, need: Need) -> bool {
        match need {
            Need::Slices(count) => {
                [Pool::Dirty, Pool::Fresh].iter().any(|pool| self.bins.find(&self.tables, *pool, count).is_some())
            }
            Need::More(_) => false,
            Need::States => self.states_used + tables::STATES_MARGIN + STATES_STEP / 2 < self.states_committed,
        }
    }

    /// Joins committed memory that nobody touched with the memory around it that was given back, to which it is equal: of
    /// pieces that earlier growths left, runs become that serve larger requests.
    fn gather_fresh(&mut self) {
        for _ in 0..GATHER_RUNS {
            let Some((head, length)) = self.bins.longest(&self.tables, Pool::Fresh) else { break };
            self.bins.remove(&self.tables, Pool::Fresh, head);
            self.bins.insert(&self.tables, Pool::Released, head, length);
        }
    }

    /// Whether more than half of the accessible memory is free, and yet no run of it serves a request.
    fn is_scattered(&self) -> bool {
        self.bins.slices(Pool::Dirty) + self.bins.slices(Pool::Released) > self.top / 2
    }

    /// Takes memory that was given back before: the longest run, if it has `need` slices, and then others up to `left` in
    /// all, so that a scattered arena does not grow run by run.
    fn recommit(&mut self, mut need: u32, mut left: u32) -> bool {
        for _ in 0..GATHER_RUNS {
            let Some((head, length)) = self.bins.longest(&self.tables, Pool::Released) else { break };
            if length < need || left == 0 {
                break;
            }
            let taken = length.min(left);
            self.bins.remove(&self.tables, Pool::Released, head);
            self.put_back(Pool::Released, head + taken, length - taken);
            self.bins.insert(&self.tables, Pool::Fresh, head, taken);
            left -= taken;
            need = 0;
        }
        let grew = need == 0;
        if grew && let Some(page) = self.page {
            crate::stats::add(&page.header.grows, 1);
        }
        grew
    }

    fn plan(&self, need: Need) -> Result<Plan, Cause> {
        let missing = match need {
            Need::States => return Ok(Plan::States { from: self.states_committed }),
            Need::Slices(count) => count - self.fresh_tail().min(count),
            Need::More(count) => count,
        };
        let from = self.top;
        let left = self.tables.cap - from;
        let granules = missing.div_ceil(GRANULE).max(1).saturating_mul(GRANULE);
        match missing {
            _ if missing > self.tables.cap => Err(Cause::TooLarge),
            _ if missing > left => Err(Cause::Cap),
            _ => Ok(Plan::Slices { from, to: from + granules.min(left).max(missing) }),
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

    /// Publishes what the second phase brought.
    fn adopt(&mut self, plan: &Plan, backed: Option<&Backed>) {
        match *plan {
            Plan::States { from } => self.states_committed = from + STATES_STEP,
            Plan::Slices { from, to } => {
                self.top = to;
                self.bins.insert(&self.tables, Pool::Fresh, from, to - from);
                let tier = backed.map_or(Tier::Base, |backed| backed.tier);
                let pinned = backed.is_some_and(|backed| backed.pinned_bytes > 0);
                for page in from as usize / tables::PAGE_SLICES..(to as usize).div_ceil(tables::PAGE_SLICES) {
                    self.tables.tier_byte(page).store(hg_probes::grid::tier_byte(tier, pinned), Relaxed);
                }
            }
        }
        if let Some(backed) = backed {
            self.tier = backed.tier;
            self.pinned_bytes += backed.pinned_bytes;
            if let Some(page) = self.page {
                page.header.tier_reason.store(backed.reason as u32, Relaxed);
                page.header.pin_errno.store(backed.pin_errno as u32, Relaxed);
                crate::stats::add(&page.header.grows, 1);
            }
        }
    }
}

/// Makes slices and their tables accessible, and backs them as asked. No lock is held.
fn back_slices(tables: &tables::Tables, from: u32, to: u32, backing: Backing) -> Result<Option<Backed>, Errno> {
    tables.commit_slices(from, to)?;
    let (address, bytes) = (tables.address(from), (to - from) as usize * SLICE);
    memory::commit(address, bytes)?;
    let (tier, reason) = match backing.tier {
        Tier::Thp => back_huge(address, bytes),
        _ => (Tier::Base, TierReason::NotAsked),
    };
    let mut backed = Backed { tier, reason, pinned_bytes: 0, pin_errno: 0 };
    if backing.pin {
        match memory::pin(address, bytes) {
            Ok(()) => backed.pinned_bytes = bytes as u64,
            Err(errno) => backed.pin_errno = errno.0,
        }
    }
    Ok(Some(backed))
}

/// Asks for transparent huge pages, and looks in the kernel's own counters whether the first one came: the call's success
/// tells nothing.
fn back_huge(address: usize, bytes: usize) -> (Tier, TierReason) {
    let mut setting = [0; 64];
    let never = memory::read_file(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut setting)
        .is_some_and(|text| text.windows(7).any(|word| word == b"[never]"));
    if never {
        return (Tier::Base, TierReason::SysfsNever);
    }
    if memory::advise_huge(address, bytes).is_err() {
        return (Tier::Base, TierReason::AdviceRefused);
    }
    let huge = || env::rollup_bytes(b"AnonHugePages:");
    let before = huge();
    if bytes < memory::HUGE_PAGE || memory::populate(address, memory::HUGE_PAGE).is_err() {
        return (Tier::Base, TierReason::NotBacked);
    }
    match (before, huge()) {
        (Some(before), Some(after)) if after >= before + memory::HUGE_PAGE => (Tier::Thp, TierReason::Obtained),
        (Some(_), Some(_)) => (Tier::Base, TierReason::NotBacked),
        _ => (Tier::Base, TierReason::Unverified),
    }
}
