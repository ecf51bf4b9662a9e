//! How an arena made by handle begins: its mappings, its tables, and the handle.
//!
//! The mapping is a memfd, so that it has a name in `/proc/PID/maps`, or anonymous memory where there are none; its descriptor is
//! closed at once, as daemons close all of theirs. Nothing is touched that is not needed. `file.rs` brings mappings of its own.

use super::fill::{self, fill};
use super::front::{BLOCK, ZERO_BLOCKS};
use super::hot::Hot;
use super::layout::Layout;
use super::options::{Error, Kind, Options, check};
use super::{ARENAS, Arena, fork};
use crate::backing::room::Room;
use crate::config::Config;
use crate::others;
use crate::size_class::SLICE;
use crate::sys::memory::{self, HUGE_PAGE};
use crate::sys::{Errno, clock, env, rseq};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering::*};
use hg_probes::page::{self, StatsPage};
use hg_probes::words::Cause;

/// The handles of this process, of which the first [`TAKEN`] are in use.
struct Handles([UnsafeCell<MaybeUninit<Arena>>; ARENAS]);

// SAFETY: S14, a handle is written by the thread that took its place, and known to others afterwards only.
unsafe impl Sync for Handles {}

static HANDLES: Handles = Handles([const { UnsafeCell::new(MaybeUninit::uninit()) }; ARENAS]);
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// A bit for each handle that is written.
static READY: AtomicU32 = AtomicU32::new(0);

/// All handles of this process.
pub(super) fn handles() -> impl Iterator<Item = &'static Arena> {
    let ready = READY.load(Acquire);
    HANDLES.0.iter().enumerate().filter(move |(index, _)| ready >> index & 1 != 0).map(|(_, handle)| {
        // SAFETY: S14, its bit says that it is written; it never changes again.
        unsafe { (*handle.get()).assume_init_ref() }
    })
}

/// Where an arena was mapped.
pub(super) struct Place {
    /// The guard before the tables.
    pub(super) mapping: usize,
    pub(super) stats: usize,
    /// Whether it is a file, which other processes may open, and whose file system may be full.
    pub(super) in_file: bool,
    /// A number of its own, where that of the handle will not do.
    pub(super) number: Option<u32>,
}

/// Makes an arena. Its handle is good for ever, in this process and in all its children.
pub fn create(options: &Options) -> Result<&'static Arena, Error> {
    let shared = options.kind == Kind::Shared;
    create_at(options, |bytes| {
        let mapping = memory::map_arena(c"hg.arena", bytes, shared)?;
        let stats = memory::map_stats(page::NAME, size_of::<StatsPage>(), shared)
            .inspect_err(|_| memory::unmap(mapping, bytes))?;
        Ok(Place { mapping, stats, in_file: false, number: None })
    })
}

/// Makes an arena where `map` maps so many bytes for it.
pub(super) fn create_at(
    options: &Options,
    map: impl FnOnce(usize) -> Result<Place, Errno>,
) -> Result<&'static Arena, Error> {
    let cap = check(options)?;
    let index = begin()?;
    let arena = publish(start(options, cap, index, map)?)?;
    commit_first(arena, options)?;
    Ok(arena)
}

/// The handle of an arena that another process made, and that is mapped here now.
pub(super) fn open_at(place: Place, layout: Layout, cap: usize, flags: u32) -> Result<&'static Arena, Error> {
    let area = rseq::choose_for(Config::read().rseq, true);
    let index = begin()?;
    let tables = place.mapping + HUGE_PAGE;
    let user = tables + layout.bytes + HUGE_PAGE;
    protect_guards(place.mapping, tables + layout.bytes, user + cap);
    let mut arena = handle(index, tables, user, cap, layout, place.stats, flags, area);
    arena.number = arena.stats_page().header.arena.load(Relaxed);
    publish(arena)
}

/// Takes a place for a handle. It is not used twice, even if the rest fails: a forked child may be counting on its number.
fn begin() -> Result<usize, Error> {
    clock::start();
    env::remember_stderr();
    TAKEN
        .fetch_update(AcqRel, Acquire, |taken| (taken < ARENAS as u32).then_some(taken + 1))
        .map(|index| index as usize)
        .map_err(|_| Error::TooMany)
}

/// Makes a handle known to the whole process.
fn publish(arena: Arena) -> Result<&'static Arena, Error> {
    let index = arena.index;
    let place = HANDLES.0.get(index).ok_or(Error::TooMany)?;
    // SAFETY: S14, the place is this thread's, and nobody knows it yet.
    let arena: &'static Arena = unsafe {
        (*place.get()).write(arena);
        (*place.get()).assume_init_ref()
    };
    READY.fetch_or(1 << index, Release);
    fork::register();
    others::set_tick(super::tick_all);
    Ok(arena)
}

fn start(
    options: &Options,
    cap: usize,
    index: usize,
    map: impl FnOnce(usize) -> Result<Place, Errno>,
) -> Result<Arena, Error> {
    let config = Config::read();
    let shared = options.kind == Kind::Shared;
    let single = options.single_threaded && !shared;
    let area = if single { rseq::single() } else { rseq::choose_for(config.rseq, shared) };
    let windows = options.hugetlb && shared && options.memory.is_none();
    let space = if windows { 2 * cap } else { cap };
    let layout = Layout::new(space, env::possible_cpus());
    // Tables first, then a guard of a page, so that no overrun of user memory gets to them from below or above.
    let own_user = if options.memory.is_some() { 0 } else { HUGE_PAGE + space };
    let bytes = HUGE_PAGE + layout.bytes + own_user + HUGE_PAGE;
    let Place { mapping, stats, in_file, number } = map(bytes)?;
    let tables = mapping + HUGE_PAGE;
    let user = match options.memory {
        Some((start, _)) => (start as usize).next_multiple_of(HUGE_PAGE),
        None => tables + layout.bytes + HUGE_PAGE,
    };
    protect_guards(mapping, tables + layout.bytes, mapping + bytes - HUGE_PAGE);
    // A kernel without the pool leaves one window of plain memory, as large as two.
    let pool = windows && !in_file && memory::map_pool_window(user, cap).is_ok();
    if !shared && area.registered {
        rseq::register_fence();
    }
    let wants = |flag: u32, wanted: bool| if wanted { flag } else { 0 };
    let flags = wants(fill::SHARED, shared)
        | wants(fill::HUGE, options.huge)
        | wants(fill::PIN, options.pin)
        | wants(fill::ODD, options.odd_strides)
        | wants(fill::GROWS_INHERITED, options.grows_inherited)
        | wants(fill::SINGLE, single)
        | wants(fill::IN_FILE, in_file)
        | wants(fill::WINDOWS, windows)
        | wants(fill::POOL, pool)
        | wants(fill::POPULATE, in_file || shared && memory::overcommit_is_strict());
    let mut arena = handle(index, tables, user, space, layout, stats, flags, area);
    arena.number = number.unwrap_or(arena.number);
    fill(&arena, options, &config, area);
    Ok(arena)
}

fn protect_guards(first: usize, middle: usize, last: usize) {
    for guard in [first, middle, last] {
        let _ = memory::protect(guard, HUGE_PAGE);
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one structure")]
fn handle(
    index: usize,
    tables: usize,
    user: usize,
    cap_bytes: usize,
    layout: Layout,
    stats: usize,
    flags: u32,
    area: rseq::Area,
) -> Arena {
    Arena {
        hot: Hot::new(index, tables, user, cap_bytes, &layout, flags, area),
        tables,
        user,
        cap_bytes,
        fronts: tables + layout.fronts + ZERO_BLOCKS * BLOCK,
        id: area.id,
        sequence: area.sequence,
        standin: !area.registered,
        index,
        bias: if flags & fill::ODD != 0 { 8 } else { 0 },
        flags,
        // The process's own arena is number 1.
        number: index as u32 + 2,
        layout,
        stats,
        room: Room::new(),
    }
}

fn commit_first(arena: &Arena, options: &Options) -> Result<(), Error> {
    while options.init_bytes > arena.committed_bytes() {
        let missing = (options.init_bytes - arena.committed_bytes()).div_ceil(SLICE as u64) as usize;
        // By pieces: contiguous memory is not needed.
        arena.grow(missing.min(HUGE_PAGE / SLICE), 1, Cause::Initial).map_err(Error::Refused)?;
    }
    Ok(())
}
