//! The grid: an arena's address space, cut into slices, and who has them.
//!
//! The whole cap is reserved at once; slices below `top` are accessible. Each of these belongs to a *run*: a span, a large
//! object, or free memory of one of three [`Pool`]s. Runs are found by size in O(1) (`runs.rs`), memory is committed in
//! granules (`grow.rs`), as far as the limits of the system allow (`blocked.rs`), and given back (`shrink.rs`) by two-phase
//! commits: decide and mark under the lock, make the system call without it, publish under the lock.
//!
//! Lock: one [`Lock`] around [`Grid`], ranked after the class locks. Callers: `central.rs` (spans, under a class lock),
//! `large.rs`, and the two files above.

mod back;
mod blocked;
pub(crate) mod grow;
mod plan;
pub(crate) mod reserve;
pub(crate) mod runs;
pub(crate) mod shrink;
pub(crate) mod slack;
pub(crate) mod states;
pub(crate) mod tables;
pub(crate) mod walk;

use crate::backing::pages::Pages;
use crate::backing::room::Room;
use crate::front::Fronts;
use crate::lock::Lock;
use crate::size_class::{SLICE, SLICE_SHIFT};
use crate::stats;
use crate::sys::env;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use hg_probes::page::{GRID_LOCK, StatsPage};
use hg_probes::words::{Cause, LockId, Reason, Tier};
use runs::{Bins, Pool};
use slack::Slack;
use states::Chunks;
use tables::{Kind, Tables};

/// Memory is committed in granules of so many slices (16 MiB).
pub(crate) const GRANULE: u32 = (16 << 20) >> SLICE_SHIFT;

/// How far back the head of a large object is looked for, slices (32 MiB).
const LOOK_BACK: u32 = 1024;

/// Why the grid could not serve a request under its lock; the caller releases its locks, asks [`grow`], and tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// So many contiguous slices.
    Slices(u32),
    /// So many slices more than are committed now, wherever they lie: growth ahead of demand.
    More(u32),
    /// Room for cell states.
    States,
}

/// What stands under the grid lock.
pub(crate) struct Grid {
    /// Where everything lies. Fixed at the start.
    pub(crate) tables: Tables,
    /// Free runs by size.
    pub(crate) bins: Bins,
    /// Slices made accessible so far, and those whose address space is mapped.
    top: u32,
    reserved: u32,
    /// Slices that stay committed whatever the load.
    floor: u32,
    /// Chunks of cell states that no class has.
    chunks: Chunks,
    /// The fewest free slices, dirty or fresh, since the last epoch of maintenance.
    low_water: u32,
    /// The most that was committed since tables were last looked after, slices.
    table_mark: u32,
    /// Thread that makes system calls to grow, 0 for none.
    growing: u32,
    /// Number of batches of runs that somebody is giving back.
    releasing: u32,
    /// Slices in them that are in no pool meanwhile: of memory, and of memory given back before whose records go.
    limbo: u32,
    limbo_released: u32,
    /// Slices of spans and of large objects.
    span_slices: u32,
    large_slices: u32,
    large_count: u64,
    large_allocs: u64,
    large_frees: u64,
    /// The most that may be committed, slices: the cap, or a profile's ceiling.
    ceiling: u32,
    /// What the end of the reservation means: the cap, or a limit that made the reservation smaller.
    cap_cause: Cause,
    /// The episode of refused growth, if there is one, and when the last one was told on stderr.
    blocked: Option<blocked::Episode>,
    line_ns: u64,
    /// What backs each page, and the tier of the last growth.
    pub(crate) pages: Pages,
    tier: Tier,
    /// The arena's front caches, whose memory counts as tables.
    fronts: Option<&'static Fronts>,
    page: Option<&'static StatsPage>,
}

/// The grid, its lock, and the word that those sleep on who wait for somebody else's growth.
pub(crate) struct SharedGrid {
    pub(crate) lock: Lock<Grid>,
    grown: AtomicU32,
    /// What is known of the system's limits. Used by the thread that has `growing`, without the lock.
    room: Room,
    /// Whether an empty hugetlb pool was told of on stderr.
    pool_told: AtomicBool,
    /// How much free memory is kept.
    pub(crate) slack: Slack,
}

impl SharedGrid {
    pub(crate) const fn new() -> Self {
        SharedGrid {
            lock: Lock::new(Grid {
                tables: Tables::new(),
                bins: Bins::new(),
                top: 0,
                reserved: 0,
                floor: 0,
                chunks: Chunks::new(),
                low_water: 0,
                table_mark: 0,
                growing: 0,
                releasing: 0,
                limbo: 0,
                limbo_released: 0,
                span_slices: 0,
                large_slices: 0,
                large_count: 0,
                large_allocs: 0,
                large_frees: 0,
                ceiling: 0,
                cap_cause: Cause::Cap,
                blocked: None,
                line_ns: 0,
                pages: Pages::new(),
                tier: Tier::None,
                fronts: None,
                page: None,
            }),
            grown: AtomicU32::new(0),
            room: Room::new(),
            pool_told: AtomicBool::new(false),
            slack: Slack::new(),
        }
    }

    /// Gives the grid its tables, of which `reserved` slices are mapped, and its stats page. `wanted_bytes` is the cap that was
    /// asked for: less was reserved if a limit on address space was in the way. Called once, before anybody else can see the
    /// arena.
    pub(crate) fn start(
        &self,
        tables: Tables,
        reserved: u32,
        wanted_bytes: usize,
        fronts: &'static Fronts,
        page: &'static StatsPage,
    ) {
        env::remember_stderr();
        self.lock.name(LockId::GRID, GRID_LOCK, page);
        if let Some(mut grid) = self.lock.lock(Reason::Policy) {
            grid.tables = tables;
            grid.reserved = reserved;
            grid.ceiling = tables.cap;
            if ((reserved as usize) << SLICE_SHIFT) < wanted_bytes {
                grid.cap_cause = Cause::AddressSpace;
            }
            grid.fronts = Some(fronts);
            grid.page = Some(page);
            grid.publish();
        }
    }

    /// Sets the most that may be committed, bytes: a profile's ceiling, at most the cap. What is committed beyond stays.
    pub(crate) fn set_ceiling(&self, bytes: u64) {
        if let Some(mut grid) = self.lock.lock(Reason::Policy) {
            let slices = (bytes >> SLICE_SHIFT).min(u64::from(grid.tables.cap));
            grid.ceiling = slices as u32;
            if let Some(page) = grid.page {
                stats::change(&page.header.seq, || page.header.ceiling_bytes.store(slices << SLICE_SHIFT, Relaxed));
            }
        }
    }

    /// Sets what stays committed, bytes.
    pub(crate) fn set_floor(&self, bytes: u64) {
        if let Some(mut grid) = self.lock.lock(Reason::Policy) {
            grid.floor = (bytes >> SLICE_SHIFT) as u32;
            if let Some(page) = grid.page {
                stats::change(&page.header.seq, || page.header.floor_bytes.store(bytes, Relaxed));
            }
        }
    }

    /// Takes the lock for a fork, at a moment when nobody is between the two phases of a growth or a release, so that the
    /// child inherits no half-done one. Returns whether the lock was taken (not if the calling thread had it).
    pub(crate) fn lock_for_fork(&self) -> bool {
        for _ in 0..200 {
            if !self.lock.lock_for_fork() {
                return false;
            }
            // SAFETY: S2, the lock is held for the fork.
            let grid = unsafe { self.lock.value_in_fork() };
            if grid.growing == 0 && grid.releasing == 0 {
                return true;
            }
            // SAFETY: S2, taken above, and the reference has ended.
            unsafe { self.lock.unlock_after_fork() };
            crate::sys::futex::wait(&self.grown, self.grown.load(Relaxed), 1_000_000);
        }
        // The thread that forks is itself between two phases, in a signal handler: the child gives up what it was doing.
        self.lock.lock_for_fork()
    }

    /// Ends in a forked child what its parent's other threads were doing.
    ///
    /// # Safety
    /// The child has one thread, which holds the lock for the fork.
    pub(crate) unsafe fn end_inherited_phases(&self) {
        // SAFETY: S2, by the caller's promise.
        let grid = unsafe { self.lock.value_in_fork() };
        grid.growing = 0;
        grid.releasing = 0;
        let (tables, top) = (grid.tables, grid.top);
        if let Some(page) = grid.page {
            grid.pages.inherit(&tables, top, &page.header);
            grid.publish();
        }
    }
}

impl Grid {
    /// Takes `count` slices whose first is at a multiple of `align` slices. Returns the first and whether its memory is known
    /// to be zero.
    pub(crate) fn take(&mut self, count: u32, align: u32) -> Result<(u32, bool), Need> {
        // The tables start at a multiple of a huge page; greater alignments need room to move.
        let room = count.saturating_add(align.saturating_sub(1));
        for pool in [Pool::Dirty, Pool::Fresh] {
            if let Some((head, length)) = self.bins.find(&self.tables, pool, room) {
                self.bins.remove(&self.tables, pool, head);
                let first = self.tables.align_slice(head, align);
                self.put_back(pool, head, first - head);
                self.put_back(pool, first + count, head + length - first - count);
                return Ok((first, pool == Pool::Fresh));
            }
        }
        Err(Need::Slices(room))
    }

    /// Puts a run into a pool, if it has any slices.
    fn put_back(&mut self, pool: Pool, head: u32, length: u32) {
        if length > 0 {
            self.bins.insert(&self.tables, pool, head, length);
        }
    }

    /// Takes note that slices below `reserved` are mapped. Once all are, the cap is the only end.
    fn reserve_to(&mut self, reserved: u32) {
        self.reserved = reserved;
        if reserved == self.tables.cap {
            self.cap_cause = Cause::Cap;
        }
        if let Some(page) = self.page {
            let bytes = u64::from(reserved) << SLICE_SHIFT;
            stats::change(&page.header.seq, || page.header.reserved_bytes.store(bytes, Relaxed));
        }
    }

    /// Takes a span. The caller describes it.
    pub(crate) fn take_span(&mut self, slices: u32) -> Result<u32, Need> {
        let (head, _) = self.take(slices, 1)?;
        self.span_slices += slices;
        self.publish();
        Ok(head)
    }

    /// Takes a span back.
    pub(crate) fn return_span(&mut self, head: u32, slices: u32) {
        self.span_slices -= slices;
        self.bins.insert(&self.tables, Pool::Dirty, head, slices);
        self.publish();
    }

    /// Marks a run as a large object.
    pub(crate) fn open_large(&mut self, head: u32, slices: u32) {
        self.tables.set_run(head, Kind::Large, slices);
        self.large_slices += slices;
        self.large_count += 1;
        self.large_allocs += 1;
        self.publish();
    }

    /// Frees a large object.
    pub(crate) fn close_large(&mut self, head: u32, slices: u32) {
        self.large_slices -= slices;
        self.large_count -= 1;
        self.large_frees += 1;
        self.bins.insert(&self.tables, Pool::Dirty, head, slices);
        self.publish();
    }

    /// Whether a slice lies inside a large object, behind its first slice: looked for over a bounded distance, as nothing but
    /// the wording of a report depends on it.
    pub(crate) fn inside_large(&self, slice: u32) -> bool {
        let heads = slice.saturating_sub(LOOK_BACK)..slice;
        let head = heads.rev().find(|slice| self.tables.kind(*slice) != Kind::None);
        head.is_some_and(|head| self.tables.kind(head) == Kind::Large && slice - head < self.tables.length(head))
    }

    /// Changes the length of a large object in place, if the memory behind it allows.
    pub(crate) fn resize_large(&mut self, head: u32, old: u32, new: u32) -> bool {
        if new < old {
            self.bins.insert(&self.tables, Pool::Dirty, head + new, old - new);
        } else if new > old {
            let next = head + old;
            let Some((pool, length)) = self.tables.free_run(next, self.top) else { return false };
            if length < new - old || pool == Pool::Released {
                return false;
            }
            self.bins.remove(&self.tables, pool, next);
            self.put_back(pool, head + new, length - (new - old));
        }
        self.tables.set_run(head, Kind::Large, new);
        self.large_slices = self.large_slices + new - old;
        self.publish();
        true
    }

    /// Slices made accessible so far.
    pub(crate) fn top(&self) -> u32 {
        self.top
    }

    /// Whether somebody is giving memory back.
    pub(crate) fn is_releasing(&self) -> bool {
        self.releasing > 0
    }

    /// The arena's stats page, once it is started.
    pub(crate) fn page(&self) -> Option<&'static StatsPage> {
        self.page
    }

    /// Bytes committed: all accessible memory less what was given back.
    pub(crate) fn committed_bytes(&self) -> u64 {
        u64::from(self.committed_slices()) * SLICE as u64
    }

    fn committed_slices(&self) -> u32 {
        self.top - self.bins.slices(Pool::Released) - self.limbo_released
    }

    /// Committed slices that nobody has.
    fn free_slices(&self) -> u32 {
        self.bins.slices(Pool::Dirty) + self.bins.slices(Pool::Fresh)
    }

    /// Brings the stats page up to date, and the low-water mark.
    pub(crate) fn publish(&mut self) {
        self.low_water = self.low_water.min(self.free_slices());
        self.table_mark = self.table_mark.max(self.committed_slices());
        let Some(page) = self.page else { return };
        let header = &page.header;
        let bytes = |slices: u32| u64::from(slices) * SLICE as u64;
        stats::change(&header.seq, || {
            let committed = self.committed_bytes();
            header.committed_bytes.store(committed, Relaxed);
            if committed > header.committed_peak_bytes.load(Relaxed) {
                header.committed_peak_bytes.store(committed, Relaxed);
            }
            header.limbo_bytes.store(bytes(self.limbo + self.limbo_released), Relaxed);
            header.free_dirty_bytes.store(bytes(self.bins.slices(Pool::Dirty)), Relaxed);
            header.free_clean_bytes.store(bytes(self.bins.slices(Pool::Fresh)), Relaxed);
            header.span_bytes.store(bytes(self.span_slices), Relaxed);
            header.large_bytes.store(bytes(self.large_slices), Relaxed);
            header.large_count.store(self.large_count, Relaxed);
            header.large_allocs.store(self.large_allocs, Relaxed);
            header.large_frees.store(self.large_frees, Relaxed);
            // Records of long runs that were given back went with them.
            let records = (self.top - self.bins.slices(Pool::Released)) as usize * tables::SLICE_BYTES;
            let fronts = self.fronts.map_or(0, Fronts::bytes);
            let tables = self.chunks.bytes() + records + fronts + size_of::<StatsPage>();
            header.metadata_bytes.store(tables as u64, Relaxed);
            header.top_slices.store(u64::from(self.top), Relaxed);
            let used = bytes(self.span_slices + self.large_slices);
            if used > header.used_peak_bytes.load(Relaxed) {
                header.used_peak_bytes.store(used, Relaxed);
            }
            self.pages.publish(header);
            header.tier.store(self.tier as u32, Relaxed);
            header.grow_blocked.store(u32::from(self.blocked.is_some()), Relaxed);
        });
    }
}
