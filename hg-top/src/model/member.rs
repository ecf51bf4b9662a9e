//! A process as the directory of a shared arena has it.

use hg_probes::words::LockId;

use super::MonotonicNs;

/// A process that uses a shared arena, by its record in the arena's directory. Counts are since it first did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its pid as it knows itself.
    pub inner_pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
    /// Its pid as hg-top sees it, while it lives and can be found.
    pub pid: Option<u32>,
    /// Whether it is watched, alive.
    pub watched: bool,
    /// Whether it has ended, by its record or by the kernel.
    pub gone: bool,
    /// What it does, as it says, escaped; may be empty.
    pub role: String,
    /// What it did.
    pub counts: Counts,
    /// The last wait or hold of it over the stall threshold.
    pub stall: Option<Stall>,
    /// CPUs that its host gave it; 0 if nobody did.
    pub cpus: u32,
}

impl Member {
    /// The pid to show: hg-top's own where it is known.
    pub fn shown_pid(&self) -> u32 {
        self.pid.unwrap_or(self.inner_pid)
    }
}

/// What a process did with an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches into front caches.
    pub refills: u64,
    /// Batches out of them.
    pub flushes: u64,
    /// Large objects allocated.
    pub large_allocs: u64,
    /// Large objects freed.
    pub large_frees: u64,
    /// Growths carried out.
    pub grows: u64,
    /// Shrinks carried out.
    pub shrinks: u64,
    /// Allocations that failed.
    pub failed: u64,
    /// Bad calls that were refused.
    pub corruptions: u64,
    /// Critical sections of dead owners repaired.
    pub repairs: u64,
    /// Cells recovered.
    pub recovered: u64,
    /// Waits and holds over the stall threshold.
    pub stalls: u64,
}

impl Counts {
    /// Those of two records, added up.
    pub fn plus(&self, other: &Counts) -> Counts {
        self.with(other, u64::saturating_add)
    }

    /// What came since `earlier`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(&self, other: &Counts, op: fn(u64, u64) -> u64) -> Counts {
        Counts {
            refills: op(self.refills, other.refills),
            flushes: op(self.flushes, other.flushes),
            large_allocs: op(self.large_allocs, other.large_allocs),
            large_frees: op(self.large_frees, other.large_frees),
            grows: op(self.grows, other.grows),
            shrinks: op(self.shrinks, other.shrinks),
            failed: op(self.failed, other.failed),
            corruptions: op(self.corruptions, other.corruptions),
            repairs: op(self.repairs, other.repairs),
            recovered: op(self.recovered, other.recovered),
            stalls: op(self.stalls, other.stalls),
        }
    }
}

/// A wait or hold over the stall threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// How long, ns.
    pub ns: u64,
    /// When it was.
    pub at: MonotonicNs,
    /// Of which lock.
    pub lock: LockId,
}
