//! Keys and values of the kernel maps that hg-ebpf fills and hg-top reads: plain old data, no padding left implicit.
//!
//! Every value is per CPU and is changed by atomic adds only; hg-top adds the CPUs up. Keys hold the *thread group id in
//! the initial pid namespace* as `tgid`, so that two containers' pid 1 differ.

use crate::ProbeId;
use crate::catalogue::Rate;
use crate::page::BUCKETS;

/// Whether the BPF program does anything with a probe. hg-top attaches to no other: a hit costs the process half a
/// microsecond, and large objects and samples are counted by the stats page already.
pub const fn is_watched(probe: ProbeId) -> bool {
    use ProbeId::{Flush, LockAcquire, LockRelease, Refill};
    matches!(probe, Refill | Flush | LockAcquire | LockRelease) || is_event(probe)
}

/// Whether each hit of a probe becomes an [`Event`].
pub const fn is_event(probe: ProbeId) -> bool {
    matches!(probe.probe().rate, Rate::Rare)
}

/// Whether the event of a probe carries the stack of its thread.
pub const fn has_stack(probe: ProbeId) -> bool {
    matches!(probe, ProbeId::LockStall | ProbeId::Corruption)
}

/// Entries of the filter map: processes that can be watched at once.
pub const MAX_PROCESSES: u32 = 4096;

/// Keys of the class and lock maps that one process may create, so that a hostile target cannot fill them for the others.
pub const MAX_KEYS_PER_PROCESS: u32 = 2048;

/// Value of the filter map, whose key is the `tgid`: a process that is watched.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Keys of the class and lock maps that its hits created, see [`MAX_KEYS_PER_PROCESS`].
    pub keys: u64,
    /// The watched process that forked it, or 0 for one that the user named.
    pub parent: u32,
    /// Zero.
    pub reserved: u32,
}

/// Key of the class map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassKey {
    /// Process.
    pub tgid: u32,
    /// Arena number in the process.
    pub arena: u32,
    /// Size of the class's cells, bytes.
    pub class: u32,
}

/// Value of the class map: sums over the probes `refill` and `flush`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassValue {
    /// Hits of `refill`.
    pub refills: u64,
    /// Recycled cells handed out by them.
    pub reused: u64,
    /// Never-used cells handed out by them.
    pub carved: u64,
    /// Hits of `flush`.
    pub flushes: u64,
    /// Cells taken back by them.
    pub flushed: u64,
}

/// Key of the lock map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey {
    /// Process.
    pub tgid: u32,
    /// Arena number in the process.
    pub arena: u32,
    /// A [`LockId`](crate::words::LockId).
    pub lock: u32,
    /// A [`Reason`](crate::words::Reason).
    pub reason: u32,
}

/// A log2 histogram as BPF keeps it: bucket `i` counts durations of 2^i to 2^(i+1)-1 ns, the first takes 0 too, the last
/// takes all longer ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramValue {
    /// Number of durations.
    pub count: u64,
    /// Their sum, ns.
    pub sum_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Counts per bucket.
    pub buckets: [u64; BUCKETS],
}

/// Value of the lock map: `lock_acquire` fills `wait`, `lock_release` fills `hold`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockValue {
    /// How long the lock was held.
    pub hold: HistogramValue,
    /// How long it was waited for.
    pub wait: HistogramValue,
}

/// One rare event, as it stands in the ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, ns.
    pub ns: u64,
    /// A [`ProbeId`](crate::ProbeId).
    pub probe: u32,
    /// Process, initial pid namespace.
    pub tgid: u32,
    /// Thread, initial pid namespace.
    pub tid: u32,
    /// Id of the user stack in the stack map, or a negative errno; -1 where none was taken.
    pub stack: i32,
    /// The probe's arguments in the order of the catalogue; those it does not have are 0.
    pub args: [u64; 6],
}

/// Why a hit was lost; the index of the lost-hits array.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The ring buffer was full.
    RingFull = 0,
    /// The class or lock map was full.
    MapFull = 1,
    /// The process had used up its keys.
    KeysSpent = 2,
    /// A child could not be added to the filter.
    FilterFull = 3,
    /// The kernel skipped a run of the program (recursion), by its own count.
    Recursion = 4,
}

impl Lost {
    /// Entries of the lost-hits array.
    pub const COUNT: u32 = 5;
}
