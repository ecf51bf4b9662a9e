//! The stats page: what an arena shows of itself, readable without a lock, a signal or the target's help.
//!
//! # Where it is
//! A memfd named [`NAME`], visible as `/memfd:hg.stats` in `/proc/PID/maps`; one mapping is one [`StatsPage`], and one
//! arena. For a private arena the mapping is `MAP_PRIVATE`, so a forked child has a page of its own.
//!
//! # How it is written
//! Every block is written under the lock that its documentation names, between two increments of its `seq`: odd while
//! it changes. Words written without a lock say so. A 64-bit word is never torn.
//!
//! # How it is read
//! Copy it (`process_vm_readv`), check [`Header::magic`], `version` and `size`; take a block whose `seq` was even and equal
//! before and after the copy, else copy again, thrice at most, then show it as torn. Sums over blocks are approximate
//! while the target runs. A reader must take every number for hostile: counts are bounds-checked against the
//! constants of this module, names need not be terminated.
//!
//! # How it may change
//! Fields are appended where reserved words stand, and a feature bit tells of them; anything else raises [`VERSION`].

#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;

/// BPF has no atomics of 32 bits; its program uses the constants of this module only.
#[cfg(target_arch = "bpf")]
type AtomicU32 = core::cell::UnsafeCell<u32>;

/// Name of the memfd; the kernel shows it as `/memfd:hg.stats`.
pub const NAME: &core::ffi::CStr = c"hg.stats";

/// First word of the page: `hg.stats` in ASCII, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hg.stats");

/// Version of the layout. A reader that knows an older one says so and reads nothing.
pub const VERSION: u32 = 2;

/// Places for size classes; the header tells how many are in use.
pub const MAX_CLASSES: usize = 64;

/// Places for locks: one for each class at the class's index, then the grid at [`GRID_LOCK`].
pub const MAX_LOCKS: usize = MAX_CLASSES + 1;

/// Place of the grid's lock.
pub const GRID_LOCK: usize = MAX_CLASSES;

/// Places for reasons, as many as [`Reason`](crate::words::Reason) has words.
pub const REASONS: usize = 8;

/// Buckets of a histogram: bucket `i` counts durations of 2^i to 2^(i+1)-1 ns, the first takes 0 too, the last (from
/// 2.1 s) takes all longer ones.
pub const BUCKETS: usize = 32;

/// Places for kinds of corruption.
pub const CORRUPTION_KINDS: usize = 8;

/// Places for causes of a refused growth or a failed allocation.
pub const CAUSES: usize = 32;

/// Places for tiers.
pub const TIERS: usize = 8;

/// Places for reasons of a tier.
pub const TIER_REASONS: usize = 16;

/// Places for decisions of maintenance.
pub const DECISIONS: usize = 32;

/// The part of an array's first word that says where its topmost entry is, in units of [`FRONT_UNIT`] bytes.
pub const FRONT_MASK: u32 = 0xffff;

/// Unit of the places in an array, bytes.
pub const FRONT_UNIT: u32 = 8;

/// Number of entries in an array whose first word is `word`: its first few stand behind that word, and if it was ever
/// larger, all stand from `zone` on ([`ClassStats::front_zone`]).
pub const fn front_entries(word: u32, zone: u32, entry_bytes: u32) -> u32 {
    let top = word & FRONT_MASK;
    let units = if top >= zone { top - zone } else { top };
    match (units * FRONT_UNIT).checked_div(entry_bytes) {
        Some(entries) => entries,
        None => 0,
    }
}

/// Feature bits of [`Header::features`].
pub mod feature {
    /// Front caches are indexed by the kernel's concurrency id (else by CPU number).
    pub const MM_CID: u64 = 1 << 0;
    /// Front caches are guarded by restartable sequences (else by slot locks alone).
    pub const RSEQ: u64 = 1 << 1;
    /// Front caches can be drained from another CPU.
    pub const DRAIN: u64 = 1 << 2;
    /// There is a directory of processes and threads.
    pub const DIRECTORY: u64 = 1 << 3;
    /// The arena came over a fork: it takes frees and gives memory back, and does not grow.
    pub const INHERITED: u64 = 1 << 4;
}

/// Kind of an arena, in [`Header::kind`].
pub mod kind {
    /// Memory of one process.
    pub const PRIVATE: u32 = 0;
    /// Memory that several processes share.
    pub const SHARED: u32 = 1;
}

/// The whole page.
#[repr(C, align(4096))]
pub struct StatsPage {
    /// Identity, and the figures of the arena as a whole.
    pub header: Header,
    /// Per class, by class index.
    pub classes: [ClassStats; MAX_CLASSES],
    /// Per reason and lock. The reason stands outside, so that a small program touches few pages.
    pub locks: [[LockStats; MAX_LOCKS]; REASONS],
    /// What maintenance decided and why, a ring.
    pub policy: Policy,
}

/// Identity, and the figures of the arena as a whole. Written under the grid lock unless a field says otherwise.
#[repr(C, align(4096))]
pub struct Header {
    /// [`MAGIC`], written last at start.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Size of this header, bytes.
    pub header_size: AtomicU32,
    /// Size of the page, bytes.
    pub size: AtomicU64,
    /// Bits of [`feature`].
    pub features: AtomicU64,
    /// Odd while the fields from `committed_bytes` on change.
    pub seq: AtomicU32,
    /// Process that writes the page, in its own pid namespace.
    pub pid: AtomicU32,
    /// Number of the arena in its process, from 1.
    pub arena: AtomicU32,
    /// A constant of [`kind`].
    pub kind: AtomicU32,
    /// Name of the arena, UTF-8, filled with zeros.
    pub name: [AtomicU64; 4],
    /// `CLOCK_MONOTONIC` at creation, ns.
    pub created_ns: AtomicU64,
    /// Classes in use.
    pub class_count: AtomicU32,
    /// Stall threshold of this arena's locks, µs.
    pub stall_us: AtomicU32,
    /// Front caches: address of the first block in the target.
    pub fronts_address: AtomicU64,
    /// Distance of two blocks, bytes.
    pub fronts_stride: AtomicU64,
    /// Number of blocks; those after `fronts_rseq` belong to slot locks.
    pub fronts_count: AtomicU32,
    /// Number of blocks guarded by restartable sequences.
    pub fronts_rseq: AtomicU32,
    /// The arena's memory: first address.
    pub base_address: AtomicU64,
    /// Bytes of a page of the grid.
    pub page_bytes: AtomicU64,
    /// Bytes of a slice, the unit of spans and large objects.
    pub slice_bytes: AtomicU64,
    /// Records of the grid, arrays by slice: [`RunRecord`](crate::grid::RunRecord), first address.
    pub runs_address: AtomicU64,
    /// [`SpanRecord`](crate::grid::SpanRecord), first address.
    pub spans_address: AtomicU64,
    /// [`DescriptorRecord`](crate::grid::DescriptorRecord), first address.
    pub descriptors_address: AtomicU64,
    /// What backs each page of the grid, a byte of [`tier_byte`](crate::grid::tier_byte) each, first address.
    pub tiers_address: AtomicU64,
    /// Cell states, first address; span records count from it.
    pub states_address: AtomicU64,
    /// Records of the processes that use the arena ([`ProcessRecord`](crate::directory::ProcessRecord)), first address; with
    /// [`feature::DIRECTORY`] only.
    pub processes_address: AtomicU64,
    /// Records of their threads ([`ThreadRecord`](crate::directory::ThreadRecord)), first address.
    pub threads_address: AtomicU64,
    /// Critical sections that a dead owner left and another process repaired. Atomic, no lock.
    pub owner_deaths: AtomicU64,
    /// Cells and large objects that only a dead thread had in its hands, and that were recovered. Atomic, no lock.
    pub recovered: AtomicU64,
    /// Bytes of cells in front caches of CPUs that nobody here may use. Atomic, no lock.
    pub stranded_bytes: AtomicU64,
    /// Records of call sites ([`SiteRecord`](crate::directory::SiteRecord)), first address; with [`feature::DIRECTORY`] only.
    pub sites_address: AtomicU64,
    /// Mean bytes between two samples of them.
    pub sample_bytes: AtomicU64,
    /// Room for identity yet to come.
    pub reserved_identity: [AtomicU64; 1],

    /// Bytes of address space reserved for user memory: the cap.
    pub reserved_bytes: AtomicU64,
    /// Bytes that user memory may occupy now: granules committed less pages given back.
    pub committed_bytes: AtomicU64,
    /// The most that `committed_bytes` ever was.
    pub committed_peak_bytes: AtomicU64,
    /// Committed bytes in free runs that were used before and not given back yet.
    pub free_dirty_bytes: AtomicU64,
    /// Committed bytes in free runs that hold no memory: not touched since they were committed.
    pub free_clean_bytes: AtomicU64,
    /// Bytes of spans that belong to classes.
    pub span_bytes: AtomicU64,
    /// Bytes of large objects (whole slices).
    pub large_bytes: AtomicU64,
    /// Live large objects.
    pub large_count: AtomicU64,
    /// Large objects ever allocated.
    pub large_allocs: AtomicU64,
    /// Large objects ever freed.
    pub large_frees: AtomicU64,
    /// Bytes of tables committed: descriptors, cell states, front and transfer caches.
    pub metadata_bytes: AtomicU64,
    /// Bytes locked into RAM, no more than the kernel counts.
    pub pinned_bytes: AtomicU64,
    /// Whether pinning was asked for.
    pub pin_wanted: AtomicU32,
    /// Errno of the last attempt to pin, 0 for none.
    pub pin_errno: AtomicU32,
    /// [`Tier`](crate::words::Tier) that was asked for.
    pub tier_wanted: AtomicU32,
    /// [`Tier`](crate::words::Tier) of the last growth, verified.
    pub tier: AtomicU32,
    /// [`TierReason`](crate::words::TierReason) of it.
    pub tier_reason: AtomicU32,
    /// Whether growth is blocked.
    pub grow_blocked: AtomicU32,
    /// Growths.
    pub grows: AtomicU64,
    /// Shrinks.
    pub shrinks: AtomicU64,
    /// Slices below this one are or were accessible: records beyond it mean nothing.
    pub top_slices: AtomicU64,
    /// Bytes on their way to the system: 0 whenever nobody is giving memory back.
    pub limbo_bytes: AtomicU64,
    /// Committed bytes that are kept whatever the load.
    pub floor_bytes: AtomicU64,
    /// The most that may be committed: the cap, or the ceiling of a profile.
    pub ceiling_bytes: AtomicU64,
    /// Bytes that were in use by spans and large objects at the moment when they were most.
    pub used_peak_bytes: AtomicU64,
    /// [`Cause`](crate::words::Cause) of the refusal that blocks growth, and since when, `CLOCK_MONOTONIC`, ns.
    pub blocked_cause: AtomicU32,
    /// Thread that maintains the arena, in its own pid namespace; 0 for none.
    pub maintenance_tid: AtomicU32,
    /// Since when growth is blocked, `CLOCK_MONOTONIC`, ns; 0 if it is not.
    pub blocked_since_ns: AtomicU64,
    /// How long free memory is kept while somebody maintains the arena, ms.
    pub decay_ms: AtomicU64,
    /// Committed bytes by the [`Tier`](crate::words::Tier) of the page they lie on: what the growth that brought the page got,
    /// verified, and what it is seen to be once it was used. Their sum is `committed_bytes` while nobody grows or shrinks.
    pub tier_bytes: [AtomicU64; TIERS],
    /// Steps down from the tier wanted, by [`TierReason`](crate::words::TierReason).
    pub tier_reasons: [AtomicU64; TIER_REASONS],
    /// Refused growths, by [`Cause`](crate::words::Cause).
    pub grows_refused: [AtomicU64; CAUSES],

    /// Failed allocations, by [`Cause`](crate::words::Cause). Atomic, no lock.
    pub allocs_failed: [AtomicU64; CAUSES],
    /// Refused bad calls, by [`CorruptionKind`](crate::words::CorruptionKind). Atomic, no lock.
    pub corruptions: [AtomicU64; CORRUPTION_KINDS],
    /// Cells that could not be put back because a signal handler interrupted the allocator. Atomic, no lock.
    pub cells_deferred: AtomicU64,
}

/// Figures of one class. Written under the class's lock.
#[repr(C, align(128))]
pub struct ClassStats {
    /// Odd while the block changes.
    pub seq: AtomicU32,
    /// Size of a cell, bytes; 0 marks an unused place.
    pub size: AtomicU32,
    /// Where the class's array lies in each block of front caches, bytes. Its first 32-bit word holds the bytes of entries
    /// in the array, see [`front_entries`].
    pub front_offset: AtomicU32,
    /// Bytes of an entry of that array.
    pub entry_bytes: AtomicU32,
    /// Where the array's entries stand once it is a large one, in units of [`FRONT_UNIT`] bytes from its first word.
    pub front_zone: AtomicU32,
    /// Nothing yet.
    pub reserved: AtomicU32,
    /// Refills of front caches.
    pub refills: AtomicU64,
    /// Recycled cells they handed out.
    pub reused: AtomicU64,
    /// Never-used cells they handed out.
    pub carved: AtomicU64,
    /// Flushes of front caches.
    pub flushes: AtomicU64,
    /// Cells they took back.
    pub flushed: AtomicU64,
    /// Cells in the transfer cache now.
    pub transfer_cells: AtomicU64,
    /// Spans of the class now.
    pub spans: AtomicU64,
    /// Cells of these spans.
    pub cells: AtomicU64,
    /// Cells of these spans that are free and recycled, or never used.
    pub central_cells: AtomicU64,
    /// Cells taken out of front caches from outside (drains), which are no flushes.
    pub drained: AtomicU64,
    /// Bytes of slices of these spans.
    pub span_bytes: AtomicU64,
}

/// What maintenance decided and why. Written by whoever maintains the arena, one at a time.
#[repr(C, align(128))]
pub struct Policy {
    /// Odd while the ring changes.
    pub seq: AtomicU32,
    /// Nothing yet.
    pub reserved: AtomicU32,
    /// Decisions ever written; the last stands at `(written - 1) % DECISIONS`.
    pub written: AtomicU64,
    /// Ticks of maintenance.
    pub ticks: AtomicU64,
    /// The last of them, `CLOCK_MONOTONIC`, ns.
    pub last_tick_ns: AtomicU64,
    /// The ring.
    pub decisions: [Decision; DECISIONS],
}

/// One decision of maintenance. Equal ones in a row are one, counted.
#[repr(C)]
pub struct Decision {
    /// The last time, `CLOCK_MONOTONIC`, ns.
    pub at_ns: AtomicU64,
    /// How many times in a row.
    pub times: AtomicU64,
    /// A [`Verdict`](crate::words::Verdict).
    pub verdict: AtomicU32,
    /// A [`Why`](crate::words::Why).
    pub why: AtomicU32,
    /// Bytes that moved, or that the decision is about.
    pub bytes: AtomicU64,
    /// The page in the way, where one was.
    pub page: AtomicU32,
    /// What has most of the bytes in use there: size of the cells of that class, bytes; 0 for large objects.
    pub class: AtomicU32,
    /// How many cells of that class, or large objects, stand there. Other classes may have some too.
    pub cells: AtomicU64,
    /// A percentage that was compared, and with what: `usage << 32 | limit`.
    pub percent: AtomicU64,
}

/// Figures of one lock for one reason. Written under that lock.
#[repr(C, align(128))]
pub struct LockStats {
    /// Odd while the block changes.
    pub seq: AtomicU32,
    /// A [`LockId`](crate::words::LockId), valid once the counts are not 0.
    pub lock: AtomicU32,
    /// How long it was held.
    pub hold: Histogram,
    /// How long it was waited for; an acquisition without contention counts as 0 ns.
    pub wait: Histogram,
}

/// A log2 histogram, see [`BUCKETS`].
#[repr(C)]
pub struct Histogram {
    /// Number of durations.
    pub count: AtomicU64,
    /// Their sum, ns.
    pub sum_ns: AtomicU64,
    /// The longest, ns.
    pub max_ns: AtomicU64,
    /// When the longest ended, `CLOCK_MONOTONIC`, ns.
    pub max_at_ns: AtomicU64,
    /// Thread that held or waited that long, in its own pid namespace.
    pub max_tid: AtomicU32,
    /// Durations over the stall threshold.
    pub stalls: AtomicU32,
    /// Counts per bucket.
    pub buckets: [AtomicU64; BUCKETS],
}

/// The bucket of a duration.
pub const fn bucket(ns: u64) -> usize {
    let log2 = (63 - (ns | 1).leading_zeros()) as usize;
    if log2 < BUCKETS { log2 } else { BUCKETS - 1 }
}

/// The first duration that a bucket does not hold any more, ns; `u64::MAX` for the last bucket.
pub const fn bucket_end(index: usize) -> u64 {
    if index + 1 >= BUCKETS { u64::MAX } else { 1 << (index + 1) }
}
