//! The directory of an arena that several processes may use: who they are, what each does, and what each has in its hands.
//!
//! It lies in the arena's own mapping, where the header of the stats page says. Records are written by the process or thread
//! that they belong to, without a lock; a reader takes every number for hostile. A process that died keeps its record, with
//! [`state::DEAD`], until what it held is recovered and the place is needed.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Places for processes.
pub const PROCESSES: usize = 512;

/// Places for threads.
pub const THREADS: usize = 2048;

/// Bytes of a role, UTF-8, filled with zeros.
pub const ROLE_BYTES: usize = 64;

/// Cells of one batch.
pub const BATCH: usize = 64;

/// State of a process, in [`ProcessRecord::state`].
pub mod state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Its process uses the arena.
    pub const LIVE: u32 = 1;
    /// Its process is gone; threads of it may still have to be recovered.
    pub const DEAD: u32 = 2;
}

/// A process that uses the arena. Counts are since it first did.
#[repr(C, align(128))]
pub struct ProcessRecord {
    /// A constant of [`state`].
    pub state: AtomicU32,
    /// The process, in its own pid namespace.
    pub pid: AtomicU32,
    /// When it started, clock ticks after boot (field 22 of `/proc/PID/stat`): pids come again.
    pub start_ticks: AtomicU64,
    /// What it does, as it or its host says.
    pub role: [AtomicU64; ROLE_BYTES / 8],
    /// Refills and flushes of front caches by its threads.
    pub refills: AtomicU64,
    /// As `refills`.
    pub flushes: AtomicU64,
    /// Large objects that it allocated and freed.
    pub large_allocs: AtomicU64,
    /// As `large_allocs`.
    pub large_frees: AtomicU64,
    /// Growths and shrinks that it carried out.
    pub grows: AtomicU64,
    /// As `grows`.
    pub shrinks: AtomicU64,
    /// Allocations that failed.
    pub failed: AtomicU64,
    /// Bad calls of it that were refused.
    pub corruptions: AtomicU64,
    /// Critical sections of dead owners that it repaired, and cells that it recovered.
    pub repairs: AtomicU64,
    /// As `repairs`.
    pub recovered: AtomicU64,
    /// Waits and holds of it over the stall threshold.
    pub stalls: AtomicU64,
    /// The longest of the last one, ns, when, `CLOCK_MONOTONIC`, ns, and a [`LockId`](crate::words::LockId).
    pub stall_ns: AtomicU64,
    /// As `stall_ns`.
    pub stall_at_ns: AtomicU64,
    /// As `stall_ns`.
    pub stall_lock: AtomicU32,
    /// CPUs that the host gave it: how many, 0 if nobody did.
    pub cpus: AtomicU32,
}

/// A thread that uses the arena, and the cells that only it may have.
#[repr(C, align(128))]
pub struct ThreadRecord {
    /// A robust mutex of the C library, which the thread holds as long as it lives: the kernel tells when it does not.
    pub alive: [AtomicU64; 5],
    /// Whether the record is somebody's.
    pub used: AtomicU32,
    /// The thread, in its own pid namespace.
    pub tid: AtomicU32,
    /// Its process's place.
    pub process: AtomicU32,
    /// Entries of `batch` that it may have.
    pub batch_len: AtomicU32,
    /// Pages that it is committing or giving back: the first, and how many.
    pub busy_first: AtomicU32,
    /// As `busy_first`.
    pub busy_count: AtomicU32,
    /// The entry of the cell that a malloc or a free is at, 0 for none.
    pub in_flight: AtomicU64,
    /// Bytes that the thread may allocate until one of its allocations is a sample. Beside `in_flight`, as each malloc writes both.
    pub sample_left: AtomicU64,
    /// Entries of cells between two caches.
    pub batch: [AtomicU64; BATCH],
    /// The word in user memory that it is filling or emptying: bytes from the start, plus one; 0 for none.
    pub slot: AtomicU64,
}

/// Places for call sites.
pub const SITES: usize = 1024;

/// A call site of allocations, and what the sampled ones of it stand for. A place belongs to who put a nonzero `line_and_tag`
/// there; the rest is written by anybody, with atomic additions.
#[repr(C, align(64))]
pub struct SiteRecord {
    /// The line, above one bit that says the place is taken; 0 for a place that is nobody's. The last word that is written.
    pub line_and_tag: AtomicU64,
    /// Address of the file's name, a C string of the program that is never freed; 0 where the caller is not known.
    pub file: AtomicU64,
    /// As `file`, of the function's name.
    pub function: AtomicU64,
    /// Samples of it ever.
    pub samples: AtomicU64,
    /// Bytes that they stand for.
    pub bytes: AtomicU64,
    /// Samples that were freed.
    pub freed_samples: AtomicU64,
    /// Bytes that they stand for.
    pub freed_bytes: AtomicU64,
}

impl ProcessRecord {
    /// Sets the role: as much of it as has room, whole characters.
    pub fn set_role(&self, role: &str) {
        let mut end = role.len().min(ROLE_BYTES);
        while !role.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = role.as_bytes().get(..end).unwrap_or_default().chunks(8);
        for word in &self.role {
            let mut padded = [0; 8];
            padded.iter_mut().zip(bytes.next().unwrap_or_default()).for_each(|(to, from)| *to = *from);
            word.store(u64::from_le_bytes(padded), core::sync::atomic::Ordering::Relaxed);
        }
    }
}
