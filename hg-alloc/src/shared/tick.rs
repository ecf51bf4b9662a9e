//! Maintenance of an arena made by handle: by whatever process calls the tick, one at a time, the others leave.
//!
//! A tick recovers what the dead had, lets the profile decide, and once an epoch empties the caches of classes that nobody used
//! and gives pages back that were free throughout. Whoever dies at it is replaced by the next: the right to do it is a robust
//! mutex.

use super::Arena;
use super::create::handles;
use super::layout::PAGE_SLICES;
use super::mutex::Taken;
use crate::elastic::{self, policy::Decision, policy::Policy};
use crate::size_class::{COUNT, SLICE};
use crate::stats;
use crate::sys::memory::HUGE_PAGE;
use crate::sys::{KeepErrno, clock, thread};
use core::sync::atomic::Ordering::*;
use hg_probes::page::ClassStats;
use hg_probes::words::{Cause, Verdict, Why};

/// Free pages that frees leave behind before the highest go back at once: an eighth of what is committed, within these bounds.
const SLACK_PAGES: core::ops::RangeInclusive<usize> = 4..=16;

/// One step of maintenance of every arena that this process has a handle of and that any thread may use.
pub fn tick_all() {
    handles().filter(|arena| !arena.hot.is_single).for_each(Arena::tick);
}

impl Arena {
    /// One step of maintenance, if nobody else is at it.
    pub fn tick(&self) {
        let _errno = KeepErrno::new();
        let turn = &self.core().turn;
        match turn.mutex.try_lock() {
            Taken::No => return,
            Taken::Yes => {}
            Taken::FromDead => {
                turn.mutex.consistent();
                elastic::close(self.stats_page());
                // SAFETY: S14, it is this thread's turn. What the dead one remembered may be half of it.
                let policy = unsafe { &mut *turn.policy.get() };
                *policy = policy.as_ref().map(|policy| Policy::new(*policy.rules()));
            }
        }
        let now_ns = clock::now_ns();
        let page = self.stats_page();
        page.policy.ticks.store(page.policy.ticks.load(Relaxed) + 1, Relaxed);
        page.policy.last_tick_ns.store(now_ns, Relaxed);
        page.header.maintenance_tid.store(thread::tid(), Relaxed);
        self.recover();
        self.decide(now_ns);
        let core = self.core();
        if now_ns.saturating_sub(core.epoch_began_ns.load(Relaxed)) >= core.epoch_ns.load(Relaxed) {
            core.epoch_began_ns.store(now_ns, Relaxed);
            self.end_epoch(now_ns);
        }
        turn.mutex.unlock();
    }

    fn decide(&self, now_ns: u64) {
        let page = self.stats_page();
        // SAFETY: S14, it is this thread's turn.
        let policy = unsafe { &mut *self.core().turn.policy.get() };
        let Some(decision) = policy.as_mut().and_then(|policy| policy.step(&elastic::gather(page, now_ns))) else {
            return;
        };
        let done = match decision.verdict {
            _ if decision.why == Why::DryRun => decision,
            Verdict::Grow => match self.grow_by(decision.bytes) {
                (0, Some(Cause::Cap | Cause::Ceiling)) => {
                    Decision { verdict: Verdict::Keep, why: Why::Ceiling, ..decision }
                }
                (0, _) => Decision { verdict: Verdict::Keep, why: Why::Blocked, ..decision },
                (bytes, _) => Decision { bytes, ..decision },
            },
            Verdict::Shrink => {
                let pages = (decision.bytes as usize).div_ceil(HUGE_PAGE);
                match self.shrink(self.free_pages().saturating_sub(pages), Cause::Idle) {
                    0 => Decision { verdict: Verdict::Keep, why: Why::NothingFree, ..decision },
                    bytes => Decision { bytes, ..decision },
                }
            }
            Verdict::Keep | Verdict::Drain => decision,
        };
        elastic::record(page, &done, now_ns);
    }

    /// Commits more, page by page where there is no more in one piece. Returns the bytes, and why it is not more.
    fn grow_by(&self, bytes: u64) -> (u64, Option<Cause>) {
        let before = self.committed_bytes();
        loop {
            let grown = self.committed_bytes().saturating_sub(before);
            if grown >= bytes {
                return (grown, None);
            }
            if let Err(cause) = self.grow(PAGE_SLICES, 1, Cause::Ahead) {
                return (grown, Some(cause));
            }
            if self.committed_bytes().saturating_sub(before) <= grown {
                // Somebody else gives back what this gets.
                return (grown, None);
            }
        }
    }

    /// Takes away what was idle for an epoch.
    fn end_epoch(&self, now_ns: u64) {
        let (core, page) = (self.core(), self.stats_page());
        let before = core.grid.free_slices.load(Relaxed);
        let idle = core.low_water.swap(u32::MAX, Relaxed).min(before);
        for (class, block) in page.classes.iter().enumerate().take(COUNT) {
            let calls = block.refills.load(Relaxed).wrapping_add(block.flushes.load(Relaxed)) as u32;
            if core.pool(class).seen.swap(calls, Relaxed) == calls {
                self.empty_class(class);
            }
        }
        page.header.stranded_bytes.store(self.stranded_bytes(), Relaxed);
        self.sum_tiers();
        if self.is_governed() {
            return;
        }
        let freed = core.grid.free_slices.load(Relaxed).saturating_sub(before);
        let pages = (idle.saturating_add(freed)) as usize / PAGE_SLICES;
        let given = if pages > 0 { self.shrink(self.free_pages().saturating_sub(pages), Cause::Idle) } else { 0 };
        if given > 0 {
            elastic::record(page, &Decision::new(Verdict::Shrink, Why::Idle, given), now_ns);
        }
    }

    /// Bytes of cells in front caches of CPUs that this process may not run on.
    fn stranded_bytes(&self) -> u64 {
        let Some(allowed) = thread::affinity().filter(|_| self.is_shared()) else { return 0 };
        let blocks = (0..self.layout.blocks).filter(|block| !thread::contains(&allowed, *block));
        let of_block = |block: usize| {
            (0..COUNT)
                .map(|class| self.front_length(block, class) as u64 * u64::from(self.cell_size(class)))
                .sum::<u64>()
        };
        blocks.map(of_block).sum()
    }

    /// Whether a profile decides when memory goes back.
    fn is_governed(&self) -> bool {
        // SAFETY: S14, read where the turn is held; otherwise only whether there is a profile, which never changes.
        let policy = unsafe { &*self.core().turn.policy.get() };
        policy.as_ref().is_some_and(|policy| policy.rules().profile.is_some() && !policy.rules().dry_run)
    }

    /// Gives free pages above the slack back, after frees, unless a profile decides about it.
    pub(super) fn shrink_above_slack(&self) {
        let grid = &self.core().grid;
        let committed = grid.committed_pages.load(Relaxed) as usize;
        let slack = (committed / 8).clamp(*SLACK_PAGES.start(), *SLACK_PAGES.end());
        if grid.free_slices.load(Relaxed) as usize > slack * PAGE_SLICES && !self.is_governed() {
            self.shrink(slack / 2, Cause::Slack);
        }
    }

    /// Empties all caches and gives all free pages above the floor back. Returns the bytes given back.
    pub fn trim(&self) -> u64 {
        let _errno = KeepErrno::new();
        self.recover();
        self.empty_caches();
        self.shrink(0, Cause::Trim)
    }

    /// Counts something in a class's block, and brings its gauges up to date. Under the class's lock.
    pub(super) fn publish_class(&self, class: usize, count: impl FnOnce(&ClassStats)) {
        let (pool, cells) = (self.core().pool(class), self.cells_of(class) as u64);
        let slices = self.shapes().get(class).map_or(0, |shape| u64::from(shape.slices));
        stats::class(self.stats_page(), class, |block| {
            count(block);
            let spans = u64::from(pool.spans.load(Relaxed));
            block.transfer_cells.store(pool.transfer_len.load(Relaxed).into(), Relaxed);
            block.spans.store(spans, Relaxed);
            block.cells.store(spans * cells, Relaxed);
            block.central_cells.store(pool.free_cells.load(Relaxed) + pool.uncarved.load(Relaxed), Relaxed);
            block.span_bytes.store(spans * slices * SLICE as u64, Relaxed);
        });
    }
}
