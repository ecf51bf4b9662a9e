//! How an arena made by handle begins: its mappings, its tables, and the handle.
//!
//! The mapping is a memfd, so that it has a name in `/proc/PID/maps`, or anonymous memory where there are none; its descriptor is
//! closed at once, as daemons close all of theirs. Nothing is touched that is not needed. `file.rs` brings mappings of its own.

use super::core::{Core, FINGERPRINT, MAGIC, VERSION};
use super::front::{BLOCK, ZERO_BLOCKS};
use super::hot::Hot;
use super::layout::Layout;
use super::{ARENAS, Arena, fork};
use crate::backing::room::Room;
use crate::config::Config;
use crate::elastic::policy::{Policy, Rules};
use crate::elastic::profile::Profile;
use crate::front::ENTRY_BYTES;
use crate::size_class::{COUNT, SLICE};
use crate::sys::memory::{self, HUGE_PAGE};
use crate::sys::{Errno, clock, env, rseq, thread};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering::*};
use hg_probes::page::{self, GRID_LOCK, StatsPage};
use hg_probes::words::{Cause, LockId, Tier};

/// Who may use an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The process that makes it; a forked child has a copy.
    Private,
    /// That process and all its children.
    Shared,
}

/// What an arena is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Who may use it.
    pub kind: Kind,
    /// Its name on the screen, at most 31 bytes.
    pub name: &'a str,
    /// Bytes that are committed at once, and stay so.
    pub init_bytes: u64,
    /// The most that it may commit, bytes: 4 MiB to 32 GiB, rounded up to whole pages of 2 MiB.
    pub cap_bytes: u64,
    /// When it grows ahead of demand and shrinks; see [`profile`](crate::profile).
    pub profile: Option<Profile>,
    /// Whether transparent huge pages are asked for. Memory is filled then when it is committed.
    pub huge: bool,
    /// Whether pages of the hugetlb pool are taken first, as long as it has some. In shared arenas without memory of the caller;
    /// the cap is then 16 GiB at most.
    pub hugetlb: bool,
    /// Whether its memory is locked into RAM, as far as that is allowed.
    pub pin: bool,
    /// Whether cells are odd multiples of 8 bytes, so that hashes of their addresses spread. Blocks are then aligned to 8, else to
    /// 16.
    pub odd_strides: bool,
    /// Memory of the caller to be used: where, and how many bytes. It has to be mapped readable and writable for ever, shared by all
    /// processes if the arena is; tables lie elsewhere. The cap is then what fits, whatever `cap_bytes` says.
    pub memory: Option<(*mut u8, usize)>,
    /// Whether a forked child may let its copy of a private arena grow.
    pub grows_inherited: bool,
}

impl<'a> Options<'a> {
    /// A shared arena with nothing special about it.
    pub const fn shared(name: &'a str, init_bytes: u64, cap_bytes: u64) -> Options<'a> {
        Options {
            kind: Kind::Shared,
            name,
            init_bytes,
            cap_bytes,
            profile: None,
            huge: false,
            hugetlb: false,
            pin: false,
            odd_strides: false,
            memory: None,
            grows_inherited: false,
        }
    }

    /// A private arena with nothing special about it.
    pub const fn private(name: &'a str, init_bytes: u64, cap_bytes: u64) -> Options<'a> {
        Options { kind: Kind::Private, ..Options::shared(name, init_bytes, cap_bytes) }
    }
}

/// Why there is no arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The cap is not between 4 MiB and 32 GiB.
    Cap,
    /// More is to be committed at once than the cap.
    Init,
    /// The name is empty or too long.
    Name,
    /// The caller's memory has no room for two pages of 2 MiB at multiples of that.
    Memory,
    /// The process has as many arenas as it can have.
    TooMany,
    /// The system refused memory or address space, with this errno.
    System(i32),
    /// What is to be committed at once cannot be had, for this cause.
    Refused(Cause),
    /// An arena of that name is there already.
    Exists,
    /// There is no arena of that name, or its descriptor was closed.
    Absent,
    /// The folder of named arenas, or a file in it, is not this user's alone, or does not lie in memory.
    Unsafe,
    /// Something else is mapped where the arena has to be.
    AddressTaken,
    /// The file is no arena of this version.
    NotAnArena,
    /// The arena was not made to be passed on.
    NotPassed,
}

impl Error {
    /// In a few words.
    pub const fn label(&self) -> &'static str {
        match self {
            Error::Cap => "the cap is not between 4 MiB and 32 GiB",
            Error::Init => "the initial size is above the cap",
            Error::Name => "the name is empty or longer than 31 bytes",
            Error::Memory => "the memory given has no room for an arena",
            Error::TooMany => "this process has as many arenas as it can have",
            Error::System(_) => "the system refused memory or address space",
            Error::Refused(_) => "the initial size cannot be committed",
            Error::Exists => "an arena of that name is there already",
            Error::Absent => "there is no arena of that name",
            Error::Unsafe => "the arena's folder or file is not this user's alone, or not in memory",
            Error::AddressTaken => "something else is mapped where the arena has to be",
            Error::NotAnArena => "the file is no arena of this version",
            Error::NotPassed => "the arena was not made to be passed on",
        }
    }

    /// As an errno value.
    pub const fn errno(&self) -> i32 {
        match self {
            Error::Cap | Error::Init | Error::Name | Error::Memory | Error::NotAnArena | Error::NotPassed => {
                libc::EINVAL
            }
            Error::Exists | Error::AddressTaken => libc::EEXIST,
            Error::Absent => libc::ENOENT,
            Error::Unsafe => libc::EACCES,
            Error::TooMany => libc::EMFILE,
            Error::System(errno) => *errno,
            Error::Refused(_) => libc::ENOMEM,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::System(errno.0)
    }
}

const LEAST_CAP: u64 = 4 << 20;
const GREATEST_CAP: u64 = 32 << 30;

/// Flags of an arena.
const SHARED: u32 = 1;
const HUGE: u32 = 2;
const PIN: u32 = 4;
const ODD: u32 = 8;
const GROWS_INHERITED: u32 = 16;
const POPULATE: u32 = 32;
const IN_FILE: u32 = 64;
/// User memory has two windows, and the first one is of the hugetlb pool.
const WINDOWS: u32 = 128;
const POOL: u32 = 256;

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
    Ok(arena)
}

/// Whether the options make sense, and the cap in whole pages.
fn check(options: &Options) -> Result<usize, Error> {
    if options.name.is_empty() || options.name.len() > 31 {
        return Err(Error::Name);
    }
    let cap = match options.memory {
        Some((start, bytes)) => {
            let first = (start as usize).next_multiple_of(HUGE_PAGE);
            ((start as usize).saturating_add(bytes)).saturating_sub(first) as u64 / HUGE_PAGE as u64 * HUGE_PAGE as u64
        }
        None => options.cap_bytes,
    };
    let greatest = if options.hugetlb { GREATEST_CAP / 2 } else { GREATEST_CAP };
    match options.memory {
        Some(_) if cap < LEAST_CAP => Err(Error::Memory),
        _ if !(LEAST_CAP..=greatest).contains(&cap) => Err(Error::Cap),
        _ if options.init_bytes > cap.next_multiple_of(HUGE_PAGE as u64) => Err(Error::Init),
        _ => Ok((cap as usize).next_multiple_of(HUGE_PAGE)),
    }
}

fn start(
    options: &Options,
    cap: usize,
    index: usize,
    map: impl FnOnce(usize) -> Result<Place, Errno>,
) -> Result<Arena, Error> {
    let config = Config::read();
    let shared = options.kind == Kind::Shared;
    let area = rseq::choose_for(config.rseq, shared);
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
    let flags = wants(SHARED, shared)
        | wants(HUGE, options.huge)
        | wants(PIN, options.pin)
        | wants(ODD, options.odd_strides)
        | wants(GROWS_INHERITED, options.grows_inherited)
        | wants(IN_FILE, in_file)
        | wants(WINDOWS, windows)
        | wants(POOL, pool)
        | wants(POPULATE, in_file || shared && memory::overcommit_is_strict());
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
        hot: Hot::new(index, tables, user, cap_bytes, &layout, flags & ODD != 0, area),
        tables,
        user,
        cap_bytes,
        fronts: tables + layout.fronts + ZERO_BLOCKS * BLOCK,
        id: area.id,
        sequence: area.sequence,
        standin: !area.registered,
        index,
        bias: if flags & ODD != 0 { 8 } else { 0 },
        flags,
        // The process's own arena is number 1.
        number: index as u32 + 2,
        layout,
        stats,
        room: Room::new(),
    }
}

/// Whether an arena may have such a cap, in whole pages.
pub(super) fn is_cap(bytes: u64) -> bool {
    (LEAST_CAP..=GREATEST_CAP).contains(&bytes) && bytes.is_multiple_of(HUGE_PAGE as u64)
}

/// Whether these are flags of an arena in a file.
pub(super) fn is_in_file(flags: u32) -> bool {
    const WANTED: u32 = SHARED | IN_FILE | POPULATE;
    flags & WANTED == WANTED && flags & !(WANTED | HUGE | PIN | ODD | GROWS_INHERITED) == 0
}

/// Writes what is not zero in the tables and in the stats page.
fn fill(arena: &Arena, options: &Options, config: &Config, area: rseq::Area) {
    let (core, page): (&Core, &StatsPage) = (arena.core(), arena.stats_page());
    core.version.store(VERSION, Relaxed);
    core.cpus.store(arena.layout.blocks as u32, Relaxed);
    core.cap_bytes.store(arena.cap_bytes as u64, Relaxed);
    core.tables.store(arena.tables as u64, Relaxed);
    core.user.store(arena.user as u64, Relaxed);
    core.stats.store(arena.stats as u64, Relaxed);
    core.creator.store(thread::pid(), Relaxed);
    core.flags.store(arena.flags, Relaxed);
    core.fingerprint.store(FINGERPRINT, Relaxed);
    core.epoch_ns.store(u64::from(config.decay_ms) * 1_000_000 / 5, Relaxed);
    let cap_bytes = arena.cap_bytes();
    let rules = Rules::new(options.profile);
    let (floor, ceiling) = rules.bounds(options.init_bytes, cap_bytes);
    core.floor_pages.store(floor.div_ceil(HUGE_PAGE as u64) as u32, Relaxed);
    core.ceiling_pages.store((ceiling / HUGE_PAGE as u64) as u32, Relaxed);
    core.turn.mutex.initialise();
    // SAFETY: S14, nobody else knows the arena yet.
    unsafe { *core.turn.policy.get() = Some(Policy::new(rules)) };
    core.grid.lock.initialise(LockId::GRID, GRID_LOCK);
    for (class, pool) in core.pools.iter().enumerate() {
        pool.lock.initialise(LockId::class(arena.cell_size(class)), class);
    }

    let header = &page.header;
    header.version.store(page::VERSION, Relaxed);
    header.header_size.store(size_of::<page::Header>() as u32, Relaxed);
    header.size.store(size_of::<StatsPage>() as u64, Relaxed);
    header.pid.store(thread::pid(), Relaxed);
    header.arena.store(arena.number, Relaxed);
    header.kind.store(if arena.is_shared() { page::kind::SHARED } else { page::kind::PRIVATE }, Relaxed);
    for (word, bytes) in header.name.iter().zip(options.name.as_bytes().chunks(8)) {
        let mut padded = [0; 8];
        padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        word.store(u64::from_le_bytes(padded), Relaxed);
    }
    header.features.store(
        page::feature::DIRECTORY
            | if area.registered { page::feature::RSEQ | page::feature::DRAIN } else { 0 }
            | if area.mm_cid { page::feature::MM_CID } else { 0 },
        Relaxed,
    );
    header.stall_us.store(config.stall_us, Relaxed);
    header.decay_ms.store(config.decay_ms.into(), Relaxed);
    header.created_ns.store(clock::now_ns(), Relaxed);
    header.class_count.store(COUNT as u32, Relaxed);
    header.fronts_address.store(arena.fronts as u64, Relaxed);
    header.fronts_stride.store(BLOCK as u64, Relaxed);
    header.fronts_count.store(arena.layout.blocks as u32, Relaxed);
    header.fronts_rseq.store(if area.registered { arena.layout.blocks as u32 } else { 0 }, Relaxed);
    header.base_address.store(arena.user as u64, Relaxed);
    header.page_bytes.store(HUGE_PAGE as u64, Relaxed);
    header.slice_bytes.store(SLICE as u64, Relaxed);
    header.processes_address.store((arena.tables + arena.layout.processes) as u64, Relaxed);
    header.threads_address.store((arena.tables + arena.layout.threads) as u64, Relaxed);
    header.sites_address.store((arena.tables + arena.layout.sites) as u64, Relaxed);
    header.sample_bytes.store(config.sample_bytes as u64, Relaxed);
    header.reserved_bytes.store(cap_bytes, Relaxed);
    header.floor_bytes.store(u64::from(core.floor_pages.load(Relaxed)) * HUGE_PAGE as u64, Relaxed);
    header.ceiling_bytes.store(ceiling, Relaxed);
    header.pin_wanted.store(u32::from(options.pin), Relaxed);
    let wanted = match options {
        _ if options.hugetlb => Tier::Hugetlb,
        _ if options.huge => Tier::Thp,
        _ => Tier::Base,
    };
    header.tier_wanted.store(wanted as u32, Relaxed);
    header.tier.store(Tier::None as u32, Relaxed);
    header.tiers_address.store((arena.tables + arena.layout.tiers) as u64, Relaxed);
    for (class, block) in page.classes.iter().enumerate().take(COUNT) {
        block.size.store(arena.cell_size(class), Relaxed);
        block.front_offset.store(super::front::OFFSETS.get(class).copied().unwrap_or(0), Relaxed);
        // An entry counts one in the head's word, which a reader takes for units of 8 bytes.
        block.entry_bytes.store(ENTRY_BYTES / 2, Relaxed);
        block.front_zone.store(u32::MAX, Relaxed);
    }
    core.magic.store(MAGIC, Release);
    header.magic.store(page::MAGIC, Release);
}

fn commit_first(arena: &Arena, options: &Options) -> Result<(), Error> {
    while options.init_bytes > arena.committed_bytes() {
        let missing = (options.init_bytes - arena.committed_bytes()).div_ceil(SLICE as u64) as usize;
        // By pieces: contiguous memory is not needed.
        arena.grow(missing.min(HUGE_PAGE / SLICE), 1, Cause::Initial).map_err(Error::Refused)?;
    }
    Ok(())
}

impl Arena {
    /// Whether all processes that have the arena see the same memory.
    #[inline(always)]
    pub fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }

    /// Whether this process has the arena from a parent that made it for itself.
    pub fn is_inherited(&self) -> bool {
        self.stats_page().header.features.load(Relaxed) & page::feature::INHERITED != 0
    }

    pub(super) fn may_grow(&self) -> bool {
        !self.is_inherited() || self.flags & GROWS_INHERITED != 0
    }

    pub(super) fn wants_huge(&self) -> bool {
        self.flags & HUGE != 0
    }

    /// Whether there are two windows, each as large as the cap, and whether the first is of the hugetlb pool.
    pub(super) fn has_windows(&self) -> bool {
        self.flags & WINDOWS != 0
    }

    pub(super) fn has_pool_window(&self) -> bool {
        self.flags & POOL != 0
    }

    pub(super) fn pins(&self) -> bool {
        self.flags & PIN != 0
    }

    pub(super) fn populates(&self) -> bool {
        self.flags & POPULATE != 0
    }

    pub(super) fn is_in_file(&self) -> bool {
        self.flags & IN_FILE != 0
    }
}
