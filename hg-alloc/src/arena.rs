//! One arena, put together: front caches, one locked pool per class, the grid, the stats page.
//!
//! `small.rs` holds the paths of malloc and free for cells, `large.rs` those of large objects, `resize.rs` what is built
//! on both. An arena is a static, all zero until its first allocation starts it; the fast paths find out without a test
//! of their own, because the limits that they compare with are 0 until then.

use crate::backing::pages::Backing;
use crate::cell::Entry;
use crate::central::Central;
use crate::config::Config;
use crate::density::{Density, Mode};
use crate::elastic::Elastic;
use crate::fork;
use crate::front::drain::{Classes, Give, Which};
use crate::front::{self, Fronts};
use crate::grid::reserve;
use crate::grid::tables::Tables;
use crate::grid::{Need, SharedGrid};
use crate::lock::Lock;
use crate::maintain::Maintenance;
use crate::safety::deferred::Deferred;
use crate::sample::Sampler;
use crate::size_class::{self, CLASSES, COUNT};
use crate::stats;
use crate::sys::{Errno, KeepErrno, clock, env, futex, memory, rseq, thread};
use crate::transfer::{TRANSFER_BYTES, Transfer};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use hg_probes::page::{self, ClassStats, StatsPage};
use hg_probes::words::{Cause, LockId, Reason};

/// What stands under a class's lock.
pub(crate) struct Pool {
    pub(crate) transfer: Transfer,
    pub(crate) central: Central,
    /// Bytes of cells outstanding, and of those in the transfer cache, as the arena's sums of them know.
    outstanding: u64,
    in_transfer: u64,
    /// Refills and flushes that the last epoch of maintenance saw.
    seen: u64,
}

/// What the fast paths read. Written at the start, but for `limit`, which grows.
#[repr(C, align(128))]
pub(crate) struct Hot {
    /// Requests below this many bytes find their class by table: 0 until the arena is started.
    pub(crate) table_limit: AtomicUsize,
    /// Offset of the thread's id that indexes front caches, and of its pointer to the current sequence.
    pub(crate) id: AtomicIsize,
    pub(crate) sequence: AtomicIsize,
    /// Block 0 of the front caches.
    pub(crate) fronts: AtomicUsize,
    /// First address of user memory, and how many bytes of it are accessible: 0 until the arena is started.
    pub(crate) base: AtomicUsize,
    pub(crate) limit: AtomicUsize,
    /// Start of the descriptors.
    pub(crate) descriptors: AtomicUsize,
}

/// An arena of one process.
pub(crate) struct Arena {
    pub(crate) hot: Hot,
    pub(crate) fronts: Fronts,
    pub(crate) pools: [Lock<Pool>; COUNT],
    pub(crate) grid: SharedGrid,
    pub(crate) density: Density,
    pub(crate) deferred: Deferred,
    pub(crate) sampler: Sampler,
    pub(crate) elastic: Elastic,
    pub(crate) maintenance: Maintenance,
    page: AtomicPtr<StatsPage>,
    settings: UnsafeCell<Settings>,
    phase: AtomicU32,
    pub(crate) number: u32,
    name: &'static str,
}

/// What was decided at the start, and does not change.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) tables: Tables,
    pub(crate) backing: Backing,
    pub(crate) cap_bytes: usize,
}

// SAFETY: S7, `settings` is written by the one thread that starts the arena, before `phase` says started.
unsafe impl Sync for Arena {}

/// How often a slow path may find room made and still get none, because other threads took all of it.
pub(crate) const ATTEMPTS: u32 = 1000;

const NEW: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;

impl Arena {
    pub(crate) const fn new(number: u32, name: &'static str) -> Self {
        Arena {
            hot: Hot {
                table_limit: AtomicUsize::new(0),
                id: AtomicIsize::new(0),
                sequence: AtomicIsize::new(0),
                fronts: AtomicUsize::new(0),
                base: AtomicUsize::new(0),
                limit: AtomicUsize::new(0),
                descriptors: AtomicUsize::new(0),
            },
            fronts: Fronts::new(),
            pools: [const { Lock::new(Pool::new()) }; COUNT],
            grid: SharedGrid::new(),
            density: Density::new(),
            deferred: Deferred::new(),
            sampler: Sampler::new(),
            elastic: Elastic::new(),
            maintenance: Maintenance::new(),
            page: AtomicPtr::new(core::ptr::null_mut()),
            settings: UnsafeCell::new(Settings { tables: Tables::new(), backing: Backing::BASE, cap_bytes: 0 }),
            phase: AtomicU32::new(NEW),
            number,
            name,
        }
    }

    /// The stats page, once the arena is started.
    pub(crate) fn page(&self) -> Option<&'static StatsPage> {
        // SAFETY: S6, the page is never unmapped.
        unsafe { self.page.load(Acquire).as_ref() }
    }

    /// The settings, once the arena is started.
    pub(crate) fn settings(&self) -> Option<&Settings> {
        // SAFETY: S7, nobody writes them after the phase said started.
        (self.phase.load(Acquire) == STARTED).then(|| unsafe { &*self.settings.get() })
    }

    /// Starts the arena if nobody did. False if that failed, or if the calling thread is doing it further up its stack.
    #[cold]
    pub(crate) fn ensure_started(&'static self) -> bool {
        loop {
            match self.phase.compare_exchange(NEW, STARTING, Acquire, Acquire) {
                Ok(_) => {
                    let started = self.start().is_ok();
                    // What the system refused now it may grant later.
                    self.phase.store(if started { STARTED } else { NEW }, Release);
                    futex::wake(&self.phase, u32::MAX >> 1);
                    if started {
                        // May allocate, hence after the start.
                        fork::register();
                    }
                    return started;
                }
                Err(STARTING) => futex::wait(&self.phase, STARTING, 1_000_000_000),
                Err(phase) => return phase == STARTED,
            }
        }
    }

    fn start(&'static self) -> Result<(), Errno> {
        clock::start();
        let config = Config::read();
        let area = rseq::choose(config.rseq);
        let ids = if area.registered { env::possible_cpus() } else { 0 };
        self.sampler.start(config.sample_bytes);
        let (tables, reserved) = reserve::reserve(config.cap_bytes)?;
        let fronts = self.fronts.start(area, ids);
        let transfers = fronts.and_then(|()| memory::map_zero(COUNT * TRANSFER_BYTES));
        let stats = transfers.and_then(|_| memory::map_named(page::NAME, size_of::<StatsPage>()));
        let (transfers, page_address) = match (transfers, stats) {
            (Ok(transfers), Ok(page)) => (transfers, page),
            (transfers, Err(errno)) | (transfers @ Err(errno), _) => {
                memory::unmap(transfers.unwrap_or(0), transfers.map_or(0, |_| COUNT * TRANSFER_BYTES));
                self.fronts.end();
                reserve::unreserve(&tables, reserved);
                return Err(errno);
            }
        };
        // SAFETY: S6, the mapping has the page's size and alignment, reads as zero, and stays.
        let page: &'static StatsPage = unsafe { &*(page_address as *const StatsPage) };

        let drains = rseq::register_fence() || !area.registered;
        let header = &page.header;
        header.arena.store(self.number, Relaxed);
        header.stall_us.store(config.stall_us, Relaxed);
        header.features.store(
            if area.registered { page::feature::RSEQ } else { 0 }
                | if area.mm_cid { page::feature::MM_CID } else { 0 }
                | if drains { page::feature::DRAIN } else { 0 },
            Relaxed,
        );
        header.decay_ms.store(config.decay_ms.into(), Relaxed);
        self.maintenance.start(config.decay_ms, config.thread);
        header.pin_wanted.store(u32::from(config.backing.pin), Relaxed);
        header.tier_wanted.store(config.backing.tier as u32, Relaxed);
        self.describe(page, &tables, reserved);

        for (class, pool) in self.pools.iter().enumerate() {
            pool.name(LockId::class(CLASSES[class].size), class, page);
            if let Some(mut pool) = pool.lock(Reason::Policy) {
                pool.central.start(tables, class, self.fronts.array(class));
                pool.transfer.start(transfers + class * TRANSFER_BYTES);
            }
        }
        self.grid.start(tables, reserved, config.cap_bytes, &self.fronts, page);
        // SAFETY: S7, the arena is not started yet.
        unsafe {
            *self.settings.get() =
                Settings { tables, backing: config.backing, cap_bytes: (tables.cap as usize) * size_class::SLICE };
        }
        self.elastic.start(config.rules);
        self.commit_first(&config, u64::from(tables.cap) * size_class::SLICE as u64);
        self.hot.id.store(area.id, Relaxed);
        self.hot.sequence.store(area.sequence, Relaxed);
        self.hot.fronts.store(self.fronts.address(), Relaxed);
        self.hot.descriptors.store(tables.descriptors, Relaxed);
        self.hot.base.store(tables.base, Relaxed);
        header.magic.store(page::MAGIC, Release);
        self.page.store(core::ptr::from_ref(page).cast_mut(), Release);
        self.hot.table_limit.store(size_class::TABLE_MAX + 1, Release);
        Ok(())
    }

    /// Bounds the arena's size, and commits what it starts with.
    fn commit_first(&self, config: &Config, cap_bytes: u64) {
        let (floor, ceiling) = config.rules.bounds(config.init_bytes, cap_bytes);
        self.grid.set_floor(floor);
        self.grid.set_ceiling(ceiling);
        let first = config.init_bytes.max(floor).min(cap_bytes);
        let need = Need::More(first.div_ceil(size_class::SLICE as u64) as u32);
        if first > 0 && self.grid.grow(need, Cause::Initial, config.backing, &self.hot.limit).is_err() {
            env::complain(&["hg: what is to stay committed cannot be had now"]);
        }
    }

    /// Writes the identity of the arena into its stats page.
    fn describe(&self, page: &StatsPage, tables: &Tables, reserved: u32) {
        let header = &page.header;
        header.version.store(page::VERSION, Relaxed);
        header.header_size.store(size_of::<page::Header>() as u32, Relaxed);
        header.size.store(size_of::<StatsPage>() as u64, Relaxed);
        header.pid.store(thread::pid(), Relaxed);
        header.kind.store(page::kind::PRIVATE, Relaxed);
        for (word, bytes) in header.name.iter().zip(self.name.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            word.store(u64::from_le_bytes(padded), Relaxed);
        }
        header.created_ns.store(clock::now_ns(), Relaxed);
        header.class_count.store(COUNT as u32, Relaxed);
        header.fronts_address.store(self.fronts.address() as u64, Relaxed);
        header.fronts_stride.store(Fronts::stride() as u64, Relaxed);
        header.fronts_count.store((self.fronts.rseq_blocks() + front::slot::COUNT) as u32, Relaxed);
        header.fronts_rseq.store(self.fronts.rseq_blocks() as u32, Relaxed);
        header.base_address.store(tables.base as u64, Relaxed);
        header.runs_address.store(tables.runs as u64, Relaxed);
        header.spans_address.store(tables.spans as u64, Relaxed);
        header.descriptors_address.store(tables.descriptors as u64, Relaxed);
        header.tiers_address.store(tables.tiers as u64, Relaxed);
        header.states_address.store(tables.states as u64, Relaxed);
        header.page_bytes.store(memory::HUGE_PAGE as u64, Relaxed);
        header.slice_bytes.store(size_class::SLICE as u64, Relaxed);
        header.reserved_bytes.store(u64::from(reserved) * size_class::SLICE as u64, Relaxed);
        header.ceiling_bytes.store(u64::from(tables.cap) * size_class::SLICE as u64, Relaxed);
        for (class, block) in page.classes.iter().enumerate().take(COUNT) {
            block.size.store(CLASSES[class].size, Relaxed);
            block.front_offset.store(front::OFFSETS[class], Relaxed);
            block.entry_bytes.store(front::ENTRY_BYTES, Relaxed);
            block.front_zone.store(front::ZONES[class], Relaxed);
        }
    }

    /// Bytes of cells that the arrays of one block may hold in their zones: all blocks together a sixteenth of the committed
    /// memory. Transfer caches take about as much again, so caches hold an eighth. Less where spans are sparse.
    pub(crate) fn front_budget(&self) -> u64 {
        let blocks = self.fronts.blocks_in_use() as u64;
        match self.density.mode() {
            Mode::Dense => {
                let committed = self.page().map_or(0, |page| page.header.committed_bytes.load(Relaxed));
                (committed / 16 / blocks).clamp(4 << 20, 64 << 20)
            }
            Mode::Resigned => (self.density.outstanding() / 32 / blocks).max(128 << 10),
            Mode::Sparse => 0,
        }
    }

    /// Makes the grid able to serve a need. When it cannot, all caches are emptied once, so that no request fails while free
    /// memory can be reached; `pressed` says that this was done.
    pub(crate) fn make_room(&self, need: Need, pressed: &mut bool) -> Result<(), Cause> {
        let settings = self.settings().ok_or(Cause::NoReservation)?;
        let cause = if *pressed { Cause::Pressure } else { Cause::Exhausted };
        match self.grid.grow(need, cause, settings.backing, &self.hot.limit) {
            Err((Cause::Reentered, _)) => Err(Cause::Reentered),
            Err(_) if !*pressed => {
                *pressed = true;
                self.trim(Cause::Pressure);
                Ok(())
            }
            outcome => {
                self.refill_floor(settings);
                outcome.map_err(|(cause, _)| cause)
            }
        }
    }

    /// Commits again what joining free memory for a request took from below the floor.
    fn refill_floor(&self, settings: &Settings) {
        let Some(page) = self.page() else { return };
        let missing = page.header.floor_bytes.load(Relaxed).saturating_sub(page.header.committed_bytes.load(Relaxed));
        if missing > 0 {
            let need = Need::More((missing / size_class::SLICE as u64) as u32);
            // A refusal is counted; maintenance tries again.
            let _ = self.grid.grow(need, Cause::Initial, settings.backing, &self.hot.limit);
        }
    }

    /// Empties all caches into their spans and gives all free memory back. Returns the bytes given back.
    pub(crate) fn trim(&self, cause: Cause) -> u64 {
        let _errno = KeepErrno::new();
        if self.settings().is_none() {
            return 0;
        }
        self.empty_caches();
        self.grid.shrink(0, cause)
    }

    /// Empties all front and transfer caches into their spans, and gives wholly free spans to the grid.
    pub(crate) fn empty_caches(&self) {
        self.fronts.drain(Which::All, self);
        for (class, pool) in self.pools.iter().enumerate() {
            if let Some(mut pool) = pool.lock(Reason::Drain) {
                pool.empty_transfer(self);
                pool.central.detach_all_free(&self.grid);
                self.publish_class(class, &mut pool, |_| {});
            }
        }
    }

    /// Empties the front and transfer caches that nobody used since the last time, and gives wholly free spans of such classes to
    /// the grid.
    pub(crate) fn empty_idle_caches(&self) {
        let Some(page) = self.page() else { return };
        self.fronts.drain(Which::Idle, self);
        for (class, (pool, block)) in self.pools.iter().zip(&page.classes).enumerate() {
            let Some(mut pool) = pool.lock(Reason::Drain) else { continue };
            let calls = block.refills.load(Relaxed).wrapping_add(block.flushes.load(Relaxed));
            if core::mem::replace(&mut pool.seen, calls) == calls {
                pool.empty_transfer(self);
                pool.central.detach_all_free(&self.grid);
                self.publish_class(class, &mut pool, |_| {});
            }
        }
    }

    /// Gives free memory above the slack back, after frees, unless a profile decides about it. A few relaxed loads where there is
    /// none.
    pub(crate) fn shrink_above_slack(&self) {
        let (Some(page), false) = (self.page(), self.elastic.governs()) else { return };
        let header = &page.header;
        let used = header.span_bytes.load(Relaxed) + header.large_bytes.load(Relaxed);
        if let Some(keep) = self.grid.slack.exceeded(header.free_dirty_bytes.load(Relaxed), used) {
            self.grid.slack.given(clock::now_ns());
            self.grid.shrink(keep, Cause::Slack);
        }
    }

    /// Counts something in a class's block, and brings its gauges up to date. Under the class lock.
    pub(crate) fn publish_class(&self, class: usize, pool: &mut Pool, count: impl FnOnce(&ClassStats)) {
        let (Some(page), Some(shape)) = (self.page(), CLASSES.get(class)) else { return };
        let free = pool.central.free_cells - pool.central.uncarved();
        let outstanding = u64::from(pool.central.spans) * u64::from(shape.cells) - free;
        let before = core::mem::replace(&mut pool.outstanding, outstanding * u64::from(shape.size));
        self.density.changed(before, pool.outstanding);
        let in_transfer = pool.transfer.length() as u64 * u64::from(shape.size);
        let before = core::mem::replace(&mut pool.in_transfer, in_transfer);
        self.density.transfer_changed(before, in_transfer);
        stats::class(page, class, |block| {
            count(block);
            let spans = u64::from(pool.central.spans);
            block.transfer_cells.store(pool.transfer.length() as u64, Relaxed);
            block.spans.store(spans, Relaxed);
            block.cells.store(spans * u64::from(shape.cells), Relaxed);
            block.central_cells.store(pool.central.free_cells, Relaxed);
            block.span_bytes.store(spans * u64::from(shape.slices) * size_class::SLICE as u64, Relaxed);
        });
    }
}

impl Pool {
    const fn new() -> Self {
        Pool { transfer: Transfer::new(), central: Central::new(), outstanding: 0, in_transfer: 0, seen: 0 }
    }

    /// Gives a cell back to its span, and the span to the grid if it became free and is not needed.
    pub(crate) fn put_central(&mut self, entry: Entry, arena: &Arena) {
        let keep_last = arena.density.mode() != Mode::Sparse;
        if let Some(free_span) = self.central.put(entry, keep_last) {
            self.central.detach_span(free_span, &arena.grid);
        }
    }

    fn empty_transfer(&mut self, arena: &Arena) {
        let central = &mut self.central;
        self.transfer.take(usize::MAX, &mut |entry| {
            if let Some(free_span) = central.put(entry, true) {
                central.detach_span(free_span, &arena.grid);
            }
            true
        });
    }
}

impl Classes for Arena {
    fn under_lock(&self, class: usize, action: &mut dyn FnMut()) -> bool {
        let guard = self.pools.get(class).and_then(|pool| pool.lock(Reason::Drain));
        guard.is_some_and(|_guard| {
            action();
            true
        })
    }

    fn take_back(&self, class: usize, fill: &mut dyn FnMut(Give)) -> bool {
        let Some(mut pool) = self.pools.get(class).and_then(|pool| pool.lock(Reason::Drain)) else { return false };
        let mut cells = 0;
        fill(&mut |entry| {
            cells += 1;
            pool.put_central(entry, self);
        });
        self.publish_class(class, &mut pool, |block| stats::add(&block.drained, cells));
        true
    }
}
