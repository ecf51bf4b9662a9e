//! What the allocator counts: the figures of its stats page that a run is checked against.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;
use std::time::Duration;

use hg_probes::page::{CORRUPTION_KINDS, MAX_CLASSES, StatsPage};
use hg_probes::words::CorruptionKind;
use serde::Serialize;

use crate::rss;

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

/// The memory of the arena, by its own count, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What user memory may occupy.
    pub committed: u64,
    /// What is kept committed whatever the load.
    pub floor: u64,
    /// What is on its way to the system; 0 whenever nobody gives memory back.
    pub limbo: u64,
    /// The allocator's own tables, which are not part of what is committed.
    pub tables: u64,
}

impl Memory {
    /// The figures now. They change together: a copy that changed meanwhile is taken again, a few times.
    pub fn now(page: &StatsPage) -> Memory {
        let header = &page.header;
        let copy = || Memory {
            committed: header.committed_bytes.load(Relaxed),
            floor: header.floor_bytes.load(Relaxed),
            limbo: header.limbo_bytes.load(Relaxed),
            tables: header.metadata_bytes.load(Relaxed),
        };
        for _ in 0..100 {
            let sequence = header.seq.load(Acquire);
            let memory = copy();
            fence(Acquire);
            if sequence.is_multiple_of(2) && header.seq.load(Relaxed) == sequence {
                return memory;
            }
            std::hint::spin_loop();
        }
        copy()
    }
}

/// The most that the arena may commit, bytes.
pub fn ceiling(page: &StatsPage) -> u64 {
    let (cap, ceiling) = (page.header.reserved_bytes.load(Relaxed), page.header.ceiling_bytes.load(Relaxed));
    if ceiling == 0 { cap } else { cap.min(ceiling) }
}

/// Refuses, in words, what the machine or the arena cannot hold: an eighth more than the live bytes goes to rounding and
/// tables.
pub fn fits(page: &StatsPage, live: u64, what: &str) -> Result<(), String> {
    let wanted = live.saturating_add(live / 8);
    let available = rss::available().map_err(|error| format!("/proc/meminfo: {error}"))?;
    let short = [("the machine has only", available), ("the arena's cap or ceiling is", ceiling(page))];
    match short.into_iter().find(|&(_, bytes)| bytes < wanted) {
        Some((who, bytes)) => Err(format!("{what} needs about {} MiB, but {who} {} MiB", wanted >> 20, bytes >> 20)),
        None => Ok(()),
    }
}

/// Whether a thread of the allocator's own maintains the arena.
pub fn maintained(page: &StatsPage) -> bool {
    page.header.maintenance_tid.load(Relaxed) != 0
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

/// How long free memory is kept while somebody maintains the arena.
pub fn decay(page: &StatsPage) -> Duration {
    // The page is in this process's memory, but a broken one must not make a run wait for ever.
    Duration::from_millis(page.header.decay_ms.load(Relaxed).min(600_000))
}

/// Cell sizes of the classes, ascending, bytes.
pub fn class_sizes(page: &StatsPage) -> Vec<usize> {
    let count = (page.header.class_count.load(Relaxed) as usize).min(MAX_CLASSES);
    page.classes[..count].iter().map(|c| c.size.load(Relaxed) as usize).filter(|&size| size != 0).collect()
}
