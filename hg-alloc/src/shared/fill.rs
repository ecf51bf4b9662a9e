//! The beginning of an arena's tables and of its stats page: what is not zero in them, and the flags.

use super::Arena;
use super::core::{Core, FINGERPRINT, MAGIC, VERSION};
use super::front::BLOCK;
use super::options::Options;
use crate::config::Config;
use crate::elastic::policy::{Policy, Rules};
use crate::front::ENTRY_BYTES;
use crate::size_class::{COUNT, SLICE};
use crate::sys::memory::HUGE_PAGE;
use crate::sys::{clock, rseq, thread};
use core::sync::atomic::Ordering::*;
use hg_probes::page::{self, GRID_LOCK, StatsPage};
use hg_probes::words::{LockId, Tier};

/// Flags of an arena.
pub(super) const SHARED: u32 = 1;
pub(super) const HUGE: u32 = 2;
pub(super) const PIN: u32 = 4;
pub(super) const ODD: u32 = 8;
pub(super) const GROWS_INHERITED: u32 = 16;
pub(super) const POPULATE: u32 = 32;
pub(super) const IN_FILE: u32 = 64;
/// User memory has two windows, and the first one is of the hugetlb pool.
pub(super) const WINDOWS: u32 = 128;
pub(super) const POOL: u32 = 256;
/// No two calls are ever in it at the same time.
pub(super) const SINGLE: u32 = 512;

/// Whether these are flags of an arena in a file.
pub(super) fn is_in_file(flags: u32) -> bool {
    const WANTED: u32 = SHARED | IN_FILE | POPULATE;
    flags & WANTED == WANTED && flags & !(WANTED | HUGE | PIN | ODD | GROWS_INHERITED) == 0
}

/// Writes what is not zero in the tables and in the stats page.
pub(super) fn fill(arena: &Arena, options: &Options, config: &Config, area: rseq::Area) {
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
    let has_fronts = area.registered || arena.hot.is_single;
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
            | if area.registered { page::feature::RSEQ } else { 0 }
            | if has_fronts { page::feature::DRAIN } else { 0 }
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
    header.fronts_rseq.store(if has_fronts { arena.layout.blocks as u32 } else { 0 }, Relaxed);
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
