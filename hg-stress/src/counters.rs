//! What the allocator counts: the figures of its stats page that a run is checked against.

use std::sync::atomic::Ordering::Relaxed;

use hg_probes::page::{CORRUPTION_KINDS, MAX_CLASSES, StatsPage};
use hg_probes::words::CorruptionKind;

/// Refused bad calls, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corruptions([u64; CORRUPTION_KINDS]);

impl Corruptions {
    /// The counts now.
    pub fn now(page: &StatsPage) -> Corruptions {
        Corruptions(std::array::from_fn(|kind| page.header.corruptions[kind].load(Relaxed)))
    }

    /// What was added since `earlier`.
    pub fn since(self, earlier: Corruptions) -> Corruptions {
        Corruptions(std::array::from_fn(|kind| self.0[kind] - earlier.0[kind]))
    }

    /// The count of one kind.
    pub fn of(self, kind: CorruptionKind) -> u64 {
        self.0[kind as usize]
    }

    /// All kinds together.
    pub fn total(self) -> u64 {
        self.0.iter().sum()
    }
}

/// Holds and waits over the stall threshold, of all locks.
pub fn stalls(page: &StatsPage) -> u64 {
    let locks = page.locks.iter().flatten();
    locks.map(|l| u64::from(l.hold.stalls.load(Relaxed)) + u64::from(l.wait.stalls.load(Relaxed))).sum()
}

/// Threshold of a stall, µs.
pub fn stall_us(page: &StatsPage) -> u64 {
    u64::from(page.header.stall_us.load(Relaxed))
}

/// Bytes of the allocator's own tables, by its count.
pub fn table_bytes(page: &StatsPage) -> u64 {
    page.header.metadata_bytes.load(Relaxed)
}

/// Cell sizes of the classes, ascending, bytes.
pub fn class_sizes(page: &StatsPage) -> Vec<usize> {
    let count = (page.header.class_count.load(Relaxed) as usize).min(MAX_CLASSES);
    page.classes[..count].iter().map(|c| c.size.load(Relaxed) as usize).filter(|&size| size != 0).collect()
}
