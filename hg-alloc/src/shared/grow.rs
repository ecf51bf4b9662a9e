//! Growing and shrinking: pages committed and given back in two phases, without a system call under the lock.
//!
//! The first phase makes pages busy, with the record of the thread that does it, which has noted them before; then the system calls;
//! the second phase makes them committed or uncommitted. Whoever finds pages busy with a dead thread gives them back
//! ([`abandon_pages`](Arena::abandon_pages)): so none is ever in limbo.
//!
//! Memory of a shared arena is there when it is touched, as anonymous memory is; where overcommit is strict, or memory is to be
//! pinned, it is touched before anybody may have it, since a refusal later is a signal and no error.

use super::Arena;
use super::backing::Refused;
use super::grid::{BUSY, COMMITTED, UNCOMMITTED};
use super::hook::Event;
use super::layout::PAGE_SLICES;
use super::lock::Guard;
use super::named;
use crate::backing::room::Ask;
use crate::stats;
use crate::sys::memory::HUGE_PAGE;
use crate::sys::{Errno, clock, thread};
use core::sync::atomic::Ordering::*;
use hg_probes::catalogue::args;
use hg_probes::directory::ThreadRecord;
use hg_probes::emit;
use hg_probes::words::{Cause, Reason};

/// Pages of a granule; a small arena's are a sixteenth of its cap.
const GRANULE: usize = 8;

/// How long a refusal is answered without another look at the limits.
const BACK_OFF_NS: u64 = 100_000_000;

/// Pages that one call gives back at most under one hold of the lock.
const RELEASES: usize = 64;

/// How often somebody else's growth is waited for, a moment each.
const WAITS: u32 = 2000;

impl Arena {
    /// Makes `count` contiguous slices at a multiple of `align` available, unless they are already.
    pub(super) fn grow(&self, count: usize, align: usize, cause: Cause) -> Result<(), Cause> {
        match self.grow_in_window(count, align, cause) {
            Err(Cause::HugetlbPool) => {
                self.pass_pool_by();
                self.grow_in_window(count, align, cause)
            }
            outcome => outcome,
        }
    }

    fn grow_in_window(&self, count: usize, align: usize, cause: Cause) -> Result<(), Cause> {
        let record = self.record().ok_or(Cause::Reentered)?;
        let start = clock::now_ns();
        let refused = |limit: Cause, errno: i32| {
            if let Some(counter) = self.stats_page().header.grows_refused.get(limit as usize) {
                counter.fetch_add(1, Relaxed);
            }
            let wanted_bytes = (count * crate::size_class::SLICE) as u64;
            emit::grow_refused(|| args::grow_refused { arena: self.number, wanted_bytes, cause: limit, errno });
            Err(limit)
        };
        if !self.may_grow() {
            return refused(Cause::Ceiling, 0);
        }
        if start < self.core().blocked_until_ns.load(Relaxed) {
            return Err(self.blocked_cause());
        }
        let left = if self.is_in_file() { named::bytes_to_commit(self) } else { u64::MAX };
        let mut grid = self.turn_to_grow(record)?;
        if !matches!(cause, Cause::Initial | Cause::Ahead) && self.find_run(count, align).is_some() {
            self.core().grid.growing.store(0, Relaxed);
            return Ok(());
        }
        let pages = (count + align - 1).div_ceil(PAGE_SLICES);
        let granule = match cause {
            Cause::Initial => 1,
            _ => (self.cap_bytes().min(left.saturating_mul(16)) as usize / HUGE_PAGE / 16).clamp(1, GRANULE),
        };
        let Some((first, found)) = self.choose_pages(pages, granule) else {
            self.core().grid.growing.store(0, Relaxed);
            drop(grid);
            return refused(self.policy_limit(), 0);
        };
        let old_bytes = self.committed_bytes();
        self.make_busy(&grid, record, first, found, UNCOMMITTED);
        drop(grid);

        let busy = self.busy_of(record);
        let done = self.commit_pages(busy, pages, left);

        grid = self.core().grid.lock.lock_again(self, Reason::Grow);
        let to = if done.is_ok() { COMMITTED } else { UNCOMMITTED };
        self.settle_pages(&grid, record, to);
        self.core().grid.growing.store(0, Relaxed);
        if done.is_ok() {
            stats::add(&self.stats_page().header.grows, 1);
        }
        let new_bytes = self.committed_bytes();
        drop(grid);
        match done {
            Ok(()) => {
                self.count(|process| &process.grows, 1);
                self.unlatch();
                let ns = clock::now_ns().saturating_sub(start);
                emit::grow(|| args::grow { arena: self.number, old_bytes, new_bytes, tier: self.tier(), cause, ns });
                Ok(())
            }
            Err((limit, errno)) => {
                if limit != Cause::HugetlbPool {
                    self.latch(limit);
                }
                refused(limit, errno.0)
            }
        }
    }

    /// The grid's lock, once nobody else grows the arena.
    fn turn_to_grow(&self, record: &ThreadRecord) -> Result<Guard<'_>, Cause> {
        let grid = &self.core().grid;
        for _ in 0..WAITS {
            let guard = grid.lock.lock(self, Reason::Grow).ok_or(Cause::Reentered)?;
            let other = (grid.growing.load(Relaxed) as usize).checked_sub(1);
            if other.is_none_or(|other| !self.thread_lives(other)) {
                grid.growing.store(self.index_of(record) as u32 + 1, Relaxed);
                return Ok(guard);
            }
            drop(guard);
            thread::pause(50_000);
        }
        Err(Cause::Exhausted)
    }

    /// Pages to commit so that `pages` contiguous ones are to be had: the first, and how many, some of which may be free already.
    fn choose_pages(&self, pages: usize, granule: usize) -> Option<(usize, usize)> {
        let (core, last) = (self.core(), self.layout.pages);
        let room = core.ceiling_pages.load(Relaxed).saturating_sub(core.grid.committed_pages.load(Relaxed)) as usize;
        let (mut start, mut length, mut new) = (0, 0, 0);
        for page in self.first_page()..last {
            let usable = match self.page_state(page) {
                UNCOMMITTED => {
                    new += 1;
                    true
                }
                COMMITTED => self.is_free_page(page),
                _ => false,
            };
            if !usable {
                (length, new) = (0, 0);
                continue;
            }
            start = if length == 0 { page } else { start };
            length += 1;
            if length >= pages && new > 0 {
                // Free pages farther back are not needed.
                let start = start.max(page + 1 - pages);
                // As much more as a granule has, while it costs nothing but the limit.
                let most = (start + granule.max(pages)).min(last);
                let end = (page + 1..most).find(|page| self.page_state(*page) != UNCOMMITTED).unwrap_or(most);
                let extra = end.saturating_sub(page + 1).min(room.saturating_sub(new));
                return (new <= room).then_some((start, page + 1 - start + extra));
            }
        }
        None
    }

    fn is_free_page(&self, page: usize) -> bool {
        self.free_word(page).is_some_and(|word| word.load(Relaxed) == u64::MAX)
    }

    /// Makes those of `count` pages busy that are in state `from`.
    fn make_busy(&self, grid: &Guard, record: &ThreadRecord, first: usize, count: usize, from: u32) {
        let state = &self.core().grid;
        record.busy_first.store(first as u32, Relaxed);
        record.busy_count.store(count as u32, Release);
        let word = BUSY | (self.index_of(record) as u32 + 1) << 8;
        for page in first..first + count {
            let Some(at) = self.page_word(page).filter(|at| at.load(Relaxed) == from) else { continue };
            grid.set(at, word);
            grid.set(&state.busy_pages, state.busy_pages.load(Relaxed) + 1);
            if from == COMMITTED {
                self.move_tier_bytes(page, false);
                if let Some(free) = self.free_word(page) {
                    grid.set_long(free, 0);
                }
                grid.set(&state.free_slices, state.free_slices.load(Relaxed).saturating_sub(PAGE_SLICES as u32));
                grid.set(&state.committed_pages, state.committed_pages.load(Relaxed).saturating_sub(1));
            }
            if grid.room() < 8 {
                grid.commit();
            }
        }
        self.publish_grid();
    }

    /// Gives the pages that are busy with a record a new state.
    fn settle_pages(&self, grid: &Guard, record: &ThreadRecord, to: u32) {
        let state = &self.core().grid;
        for page in self.busy_of(record) {
            let Some(at) = self.page_word(page) else { continue };
            if grid.room() < 8 {
                grid.commit();
            }
            grid.set(at, to);
            if to == COMMITTED {
                self.move_tier_bytes(page, true);
            }
            grid.set(&state.busy_pages, state.busy_pages.load(Relaxed).saturating_sub(1));
            if to == COMMITTED {
                if let Some(free) = self.free_word(page) {
                    grid.set_long(free, u64::MAX);
                }
                grid.set(&state.free_slices, state.free_slices.load(Relaxed) + PAGE_SLICES as u32);
                grid.set(&state.committed_pages, state.committed_pages.load(Relaxed) + 1);
                if (page as u32) < state.first_free.load(Relaxed) {
                    state.first_free.store(page as u32, Relaxed);
                }
            }
        }
        grid.commit();
        record.busy_count.store(0, Relaxed);
        self.publish_grid();
    }

    /// Pages that are busy with a record.
    fn busy_of<'a>(&'a self, record: &'a ThreadRecord) -> impl Iterator<Item = usize> + Clone + 'a {
        let first = record.busy_first.load(Relaxed) as usize;
        let count = (record.busy_count.load(Relaxed) as usize).min(self.layout.pages);
        let word = BUSY | (self.index_of(record) as u32 + 1) << 8;
        (first..first.saturating_add(count))
            .filter(move |page| self.page_word(*page).is_some_and(|at| at.load(Relaxed) == word))
    }

    /// The system calls of a growth: looks at the limits, and has the memory there where it must be.
    fn commit_pages(
        &self,
        busy: impl Iterator<Item = usize> + Clone,
        need: usize,
        left: u64,
    ) -> Result<(), (Cause, Errno)> {
        let want = busy.clone().count() as u64 * HUGE_PAGE as u64;
        let ask = Ask { need: want.min((need * HUGE_PAGE) as u64), want, committed: 0, pool: false };
        if !self.room().spend(want, clock::now_ns()) {
            match self.room().look(ask) {
                Ok(room) if room >= want => {}
                Ok(_) => return Err((Cause::HostFloor, Errno(0))),
                Err(cause) => return Err((cause, Errno(0))),
            }
        }
        if want > left {
            return Err((Cause::FileSystem, Errno(libc::ENOSPC)));
        }
        for page in busy.clone() {
            if let Err(refused) = self.back_page(page) {
                busy.for_each(|page| self.release_page(page));
                return Err(match refused {
                    Refused::Pool(errno) => (Cause::HugetlbPool, errno),
                    Refused::System(errno) => (self.room().explain(errno, ask), errno),
                });
            }
        }
        Ok(())
    }

    /// Gives wholly free pages back, the highest first, until `keep` free ones are left or the floor is reached. Returns the bytes.
    pub(super) fn shrink(&self, keep: usize, cause: Cause) -> u64 {
        let Some(record) = self.record() else { return 0 };
        let mut given = 0;
        for _ in 0..self.layout.pages {
            let start = clock::now_ns();
            let Some(grid) = self.core().grid.lock.lock(self, Reason::Shrink) else { break };
            // A growth of this thread further up the stack has noted its pages in the record.
            let Some((first, count)) = self.releasable(keep).filter(|_| record.busy_count.load(Relaxed) == 0) else {
                break;
            };
            let old_bytes = self.committed_bytes();
            self.make_busy(&grid, record, first, count, COMMITTED);
            drop(grid);

            self.busy_of(record).for_each(|page| self.release_page(page));

            let grid = self.core().grid.lock.lock_again(self, Reason::Shrink);
            self.settle_pages(&grid, record, UNCOMMITTED);
            stats::add(&self.stats_page().header.shrinks, 1);
            let new_bytes = self.committed_bytes();
            drop(grid);
            given += (count * HUGE_PAGE) as u64;
            self.count(|process| &process.shrinks, 1);
            let ns = clock::now_ns().saturating_sub(start);
            emit::shrink(|| args::shrink { arena: self.number, old_bytes, new_bytes, cause, ns });
        }
        given
    }

    /// The highest run of wholly free pages that may go.
    fn releasable(&self, keep: usize) -> Option<(usize, usize)> {
        let core = self.core();
        let above = core.grid.committed_pages.load(Relaxed).saturating_sub(core.floor_pages.load(Relaxed)) as usize;
        let is_free = |page: &usize| self.page_state(*page) == COMMITTED && self.is_free_page(*page);
        let most = above.min(self.free_pages().saturating_sub(keep)).min(RELEASES);
        let last = (0..self.layout.pages).rev().find(is_free).filter(|_| most > 0)?;
        let count = (0..=last).rev().take_while(is_free).take(most).count();
        Some((last + 1 - count, count))
    }

    /// Committed pages of which nobody has anything.
    pub(super) fn free_pages(&self) -> usize {
        (0..self.layout.pages).filter(|page| self.page_state(*page) == COMMITTED && self.is_free_page(*page)).count()
    }

    /// Gives the pages back that are busy with a record whose thread is dead, and ends its growth. Returns how many.
    pub(super) fn abandon_pages(&self, record: &ThreadRecord) -> usize {
        // What it had not committed is undone first: such pages may be anybody's by now.
        drop(self.core().grid.lock.lock_again(self, Reason::Policy));
        let busy = self.busy_of(record);
        let count = busy.clone().count();
        busy.for_each(|page| self.release_page(page));
        let grid = self.core().grid.lock.lock_again(self, Reason::Policy);
        self.settle_pages(&grid, record, UNCOMMITTED);
        let growing = &self.core().grid.growing;
        if growing.load(Relaxed) as usize == self.index_of(record) + 1 {
            growing.store(0, Relaxed);
        }
        count
    }

    /// The limit that somebody set: the cap, or a ceiling below it.
    fn policy_limit(&self) -> Cause {
        let ceiling = self.core().ceiling_pages.load(Relaxed) as u64;
        if ceiling * (HUGE_PAGE as u64) < self.cap_bytes() { Cause::Ceiling } else { Cause::Cap }
    }

    fn blocked_cause(&self) -> Cause {
        Cause::from_u64(self.core().blocked_cause.load(Relaxed).into()).unwrap_or(Cause::Kernel)
    }

    fn latch(&self, cause: Cause) {
        let header = &self.stats_page().header;
        self.core().blocked_cause.store(cause as u32, Relaxed);
        self.core().blocked_until_ns.store(clock::now_ns().saturating_add(BACK_OFF_NS), Relaxed);
        if header.grow_blocked.swap(1, Relaxed) == 0 {
            header.blocked_cause.store(cause as u32, Relaxed);
            header.blocked_since_ns.store(clock::now_ns(), Relaxed);
            emit::grow_blocked(|| args::grow_blocked { arena: self.number, on: 1, cause });
            self.tell(Event::GrowBlocked { on: true, cause });
        }
    }

    fn unlatch(&self) {
        let header = &self.stats_page().header;
        if header.grow_blocked.load(Relaxed) != 0 && header.grow_blocked.swap(0, Relaxed) != 0 {
            header.blocked_since_ns.store(0, Relaxed);
            let cause = self.blocked_cause();
            emit::grow_blocked(|| args::grow_blocked { arena: self.number, on: 0, cause });
            self.tell(Event::GrowBlocked { on: false, cause });
        }
    }
}
