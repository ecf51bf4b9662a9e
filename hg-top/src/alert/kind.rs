//! Kinds of alerts: their names, how grave they are, what to do.

use crate::remedy;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A bad call was refused.
    Corruption,
    /// A caller got NULL.
    AllocFailed,
    /// A lock was held or waited for longer than the threshold.
    LockStall,
    /// An arena cannot grow.
    GrowBlocked,
    /// Memory is on its way to the system for too long.
    Limbo,
    /// A process died while it had a lock of a shared arena; others put right what it left.
    OwnerDead,
    /// Memory was to be locked into RAM and is not.
    Unpinned,
    /// Something else backs an arena than was asked for.
    TierFallback,
    /// Probe hits were lost: traced figures are too low.
    ProbesDropped,
    /// Parts of a stats page could not be copied whole.
    StatsTorn,
}

impl Kind {
    /// Its name on screen and in JSON.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Corruption => "corruption",
            Kind::AllocFailed => "alloc-failed",
            Kind::LockStall => "lock-stall",
            Kind::GrowBlocked => "grow-blocked",
            Kind::Limbo => "limbo",
            Kind::OwnerDead => "owner-dead",
            Kind::Unpinned => "unpinned",
            Kind::TierFallback => "tier-fallback",
            Kind::ProbesDropped => "probes-dropped",
            Kind::StatsTorn => "stats-torn",
        }
    }

    /// Whether the target itself is in trouble, rather than our view of it.
    pub fn severe(self) -> bool {
        !matches!(self, Kind::OwnerDead | Kind::Unpinned | Kind::TierFallback | Kind::ProbesDropped | Kind::StatsTorn)
    }

    /// What to do about it, where no more is known.
    pub fn next_step(self) -> &'static str {
        match self {
            Kind::Corruption => "find the caller by its stack; its call was refused",
            Kind::AllocFailed => "raise the limit named, or find what grows in view 2",
            Kind::LockStall => "look at the holder: a stopped one stalls all others",
            Kind::GrowBlocked => remedy::of_cause(None),
            Kind::Limbo => "see whether its threads are stopped: memory is neither in use nor given back",
            Kind::OwnerDead => "none for the arena, which was put right; find out what killed the process",
            Kind::Unpinned => remedy::of_pin(0),
            Kind::TierFallback => "view 4 says why; the arena works on, with smaller pages",
            Kind::ProbesDropped => "trust the stats page: what eBPF counts is too low",
            Kind::StatsTorn => "none: older figures are shown until a copy is whole",
        }
    }
}
