//! What is known of the watched processes at one moment: the one model that both sources feed and every view, alert and
//! export reads. It holds plain numbers; formatting is the views' business.
//!
//! Invariant: a figure that no source told is `None` or an empty collection, never a guessed 0.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hg_probes::maps::Lost;
use hg_probes::words::{Cause, LockId, Reason, Tier, TierReason};

pub mod decision;
pub mod histogram;
pub mod id;
pub mod map;
pub mod member;
pub mod reconcile;
pub mod scope;
pub mod shared;
pub mod timeline;

pub use decision::{Decision, Policy};
pub use histogram::Histogram;
pub use id::{ArenaId, FileId};
pub use map::Records;
pub use member::Member;
pub use shared::{ArenaRef, Shared};

/// A reading of a target's clock that all sources share: `CLOCK_MONOTONIC`, ns.
pub type MonotonicNs = u64;

/// All watched processes at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub at: MonotonicNs,
    /// The same for people.
    pub time: SystemTime,
    /// By pid, as hg-top sees it.
    pub processes: BTreeMap<u32, Process>,
    /// Arenas that several processes share: each once.
    pub shared: BTreeMap<FileId, Shared>,
    /// What eBPF can tell, or why it cannot.
    pub ebpf: EbpfState,
    /// Probe hits lost since the attach, by [`Lost`].
    pub lost: [u64; Lost::COUNT as usize],
}

impl Snapshot {
    /// Of no process.
    pub fn empty() -> Snapshot {
        Snapshot {
            at: 0,
            time: UNIX_EPOCH,
            processes: BTreeMap::new(),
            shared: BTreeMap::new(),
            ebpf: EbpfState::Off(String::new()),
            lost: [0; Lost::COUNT as usize],
        }
    }

    /// Probe hits that eBPF counted of all processes.
    pub fn hits(&self) -> u64 {
        let classes = self.arenas().flat_map(|of| of.arena.classes.values()).filter_map(|class| class.traced);
        let locks = self.arenas().flat_map(|of| of.arena.locks.values()).filter_map(|lock| lock.traced.as_ref());
        let hits = classes.flat_map(|counters| [counters.refills, counters.flushes]);
        hits.chain(locks.flat_map(|both| [both.hold.count, both.wait.count])).fold(0, u64::saturating_add)
    }

    /// Probe hits lost for any cause.
    pub fn lost_events(&self) -> u64 {
        self.lost.iter().fold(0, |sum, lost| sum.saturating_add(*lost))
    }
}

/// Whether the eBPF source works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EbpfState {
    /// It does, with this many of the probe sites found.
    On {
        /// Sites with a program attached.
        attached: usize,
        /// Sites found.
        found: usize,
    },
    /// It does not, and why: what failed, what is missing, and what still works.
    Off(String),
}

/// Who a process is; constant while it lives, but for an exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its pid, as hg-top sees it.
    pub pid: u32,
    /// Its pid as it knows itself: another one in a container.
    pub inner_pid: u32,
    /// Clock ticks from boot to its start: tells it from a later process of the same pid.
    pub start_ticks: u64,
    /// How long it had run when it was first seen.
    pub started: SystemTime,
    /// Path of its binary, escaped.
    pub exe: String,
    /// Its name, escaped.
    pub comm: String,
    /// What it does, from its command line, escaped.
    pub role: String,
}

impl Identity {
    /// Of a process of which nothing but its pid is known.
    pub fn unknown(pid: u32) -> Identity {
        let nothing = String::new;
        Identity {
            pid,
            inner_pid: pid,
            start_ticks: 1,
            started: UNIX_EPOCH,
            exe: nothing(),
            comm: nothing(),
            role: nothing(),
        }
    }
}

/// One process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Who it is.
    pub identity: Identity,
    /// When its figures were read. Older than the snapshot if it has exited or could not be read.
    pub read_at: MonotonicNs,
    /// What the kernel says about its memory.
    pub memory: Option<KernelMemory>,
    /// The arenas that are its alone, by their number in the process.
    pub arenas: BTreeMap<u32, Arena>,
    /// Those that it shares, which stand in the [`Snapshot`].
    pub shared: BTreeSet<FileId>,
    /// Names of the threads that its locks were held or waited for longest by, as they were when first seen.
    pub threads: BTreeMap<u32, String>,
    /// Whether eBPF counts this process.
    pub traced: bool,
    /// Why its stats page could not be read, if so.
    pub page_error: Option<String>,
    /// When it was found gone; its figures are the last ones seen.
    pub exited: Option<SystemTime>,
}

impl Process {
    /// A process that was not read yet.
    pub fn new(identity: Identity) -> Process {
        Process {
            identity,
            read_at: 0,
            memory: None,
            arenas: BTreeMap::new(),
            shared: BTreeSet::new(),
            threads: BTreeMap::new(),
            traced: false,
            page_error: None,
            exited: None,
        }
    }

    /// The names of the sources that its figures come from.
    pub fn sources(&self) -> Vec<&'static str> {
        let page = !self.shared.is_empty() || self.arenas.values().any(|arena| arena.figures.is_some());
        [(page, "stats-page"), (self.traced, "ebpf")].into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect()
    }

    /// Threads that its locks were held or waited for longest by.
    pub fn worst_threads(&self) -> impl Iterator<Item = u32> {
        let locks = self.arenas.values().flat_map(|arena| arena.locks.values()).filter_map(|lock| lock.total.as_ref());
        locks.flat_map(|both| [both.hold.max_tid, both.wait.max_tid]).filter(|tid| *tid != 0)
    }

    /// A thread as text: `4250 "io-2"`, or the number alone if its name is not known.
    pub fn thread(&self, tid: u32) -> String {
        self.threads.get(&tid).map_or_else(|| tid.to_string(), |name| format!("{tid} \"{name}\""))
    }

    /// How long it has run at `now`.
    pub fn uptime(&self, now: SystemTime) -> Duration {
        now.duration_since(self.identity.started).unwrap_or_default()
    }
}

/// Memory of a process by the kernel's own count, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelMemory {
    /// Resident set, without hugetlb pages.
    pub rss: u64,
    /// Hugetlb pages, which the resident set leaves out.
    pub hugetlb: u64,
    /// The part of the resident set that files back: code, mapped data.
    pub rss_file: u64,
    /// The part that is shared memory.
    pub rss_shmem: u64,
    /// Threads.
    pub threads: u64,
    /// Its part of what it shares with others; `None` if nobody asked for it.
    pub part: Option<Part>,
}

/// A process's part of the memory that it maps: of what several processes map, each has its share, so that the sum over all of
/// them counts every byte once. By the kernel's count, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Of its resident set, without hugetlb pages.
    pub resident: u64,
    /// Of that, of files.
    pub file: u64,
    /// Hugetlb pages that it alone maps.
    pub hugetlb_own: u64,
    /// Those that others map too, in full: the kernel does not divide them.
    pub hugetlb_shared: u64,
}

/// One arena.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    /// Its name, escaped; `arena N` where no page tells.
    pub name: String,
    /// The figures of its stats page; `None` if only eBPF knows the arena.
    pub figures: Option<Figures>,
    /// What maintenance decided; `None` if no page tells.
    pub policy: Option<Policy>,
    /// Its classes, by the size of their cells.
    pub classes: BTreeMap<u32, Class>,
    /// Its locks, by lock and reason. Those never taken are left out.
    pub locks: BTreeMap<(LockId, Reason), Lock>,
    /// Blocks of the page that were changing at each of four attempts to copy them.
    pub torn: u32,
}

/// The figures of an arena as a whole, as its stats page gives them. Bytes where nothing else is said.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Whether several processes share it; `None` for a kind this version does not know.
    pub shared: Option<bool>,
    /// What backs it.
    pub tier: Option<Tier>,
    /// What was to back it.
    pub tier_wanted: Option<Tier>,
    /// Why `tier` is what it is.
    pub tier_reason: Option<TierReason>,
    /// Its cap.
    pub reserved: u64,
    /// What user memory may occupy now.
    pub committed: u64,
    /// The most that ever was committed.
    pub committed_peak: u64,
    /// Free runs that still hold memory.
    pub free_dirty: u64,
    /// Free runs that hold none.
    pub free_clean: u64,
    /// Spans of classes.
    pub spans: u64,
    /// Large objects.
    pub large: u64,
    /// Number of live large objects.
    pub large_count: u64,
    /// Number of large objects ever allocated.
    pub large_allocs: u64,
    /// Number of large objects ever freed.
    pub large_frees: u64,
    /// Tables.
    pub metadata: u64,
    /// Locked into RAM.
    pub pinned: u64,
    /// Whether pinning was asked for.
    pub pin_wanted: bool,
    /// Errno of the last attempt to pin, 0 for none.
    pub pin_errno: u32,
    /// Whether growth is blocked.
    pub grow_blocked: bool,
    /// Growths.
    pub grows: u64,
    /// Shrinks.
    pub shrinks: u64,
    /// Refused growths by [`Cause`](hg_probes::words::Cause) number.
    pub grows_refused: Vec<u64>,
    /// Failed allocations by [`Cause`](hg_probes::words::Cause) number.
    pub allocs_failed: Vec<u64>,
    /// Refused bad calls by [`CorruptionKind`](hg_probes::words::CorruptionKind) number.
    pub corruptions: Vec<u64>,
    /// Cells deferred because a signal handler interrupted the allocator.
    pub cells_deferred: u64,
    /// Bytes of a page of the grid.
    pub page_bytes: u64,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Stall threshold of the locks, µs.
    pub stall_us: u32,
    /// Front caches: how many are guarded by restartable sequences, and how many there are.
    pub fronts: (u32, u32),
    /// Whether front caches go by concurrency id rather than by CPU.
    pub by_mm_cid: bool,
    /// When the arena was made.
    pub created_at: MonotonicNs,
    /// What each tier backs, by [`Tier`] number.
    pub tier_bytes: Vec<u64>,
    /// Steps down from the tier wanted, by [`TierReason`] number.
    pub tier_reasons: Vec<u64>,
    /// On the way to the system.
    pub limbo: u64,
    /// Kept whatever the load.
    pub floor: u64,
    /// The most that may be committed.
    pub ceiling: u64,
    /// What spans and large objects took at the moment when that was most.
    pub used_peak: u64,
    /// The refusal that blocks growth; `None` while it is not blocked, and for a cause this version does not know.
    pub blocked_cause: Option<Cause>,
    /// Since when growth is blocked; 0 if it is not.
    pub blocked_since: MonotonicNs,
    /// Thread that maintains the arena, in the process's own namespace; 0 for none.
    pub maintenance_tid: u32,
    /// How long free memory is kept while somebody maintains the arena, ms.
    pub decay_ms: u64,
    /// Critical sections that a dead owner left and another process repaired.
    pub owner_deaths: u64,
    /// Cells and large objects that only a dead thread had, and that were recovered.
    pub recovered: u64,
    /// Cells in front caches of CPUs that nobody there may use.
    pub stranded: u64,
    /// Whether it came over a fork: it takes frees and gives memory back, and does not grow.
    pub inherited: bool,
    /// Who made it, by its own pid namespace.
    pub creator: u32,
    /// Its number, as probes give it.
    pub number: u32,
    /// Where the grid's records lie in the process.
    pub records: Records,
}

impl Figures {
    /// What spans and large objects take.
    pub fn used(&self) -> u64 {
        self.spans.saturating_add(self.large)
    }

    /// Refused growths for any cause.
    pub fn refused(&self) -> u64 {
        self.grows_refused.iter().copied().fold(0, u64::saturating_add)
    }
}

/// Counters of a class's slow path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches into front caches.
    pub refills: u64,
    /// Recycled cells handed out by them.
    pub reused: u64,
    /// Never-used cells handed out by them.
    pub carved: u64,
    /// Batches out of front caches.
    pub flushes: u64,
    /// Cells taken back by them.
    pub flushed: u64,
    /// Cells taken out of front caches from outside.
    pub drained: u64,
}

impl Counters {
    /// What was counted since `earlier`; `None` if the counters were reset in between.
    pub fn since(&self, earlier: &Counters) -> Option<Counters> {
        Some(Counters {
            refills: self.refills.checked_sub(earlier.refills)?,
            reused: self.reused.checked_sub(earlier.reused)?,
            carved: self.carved.checked_sub(earlier.carved)?,
            flushes: self.flushes.checked_sub(earlier.flushes)?,
            flushed: self.flushed.checked_sub(earlier.flushed)?,
            drained: self.drained.checked_sub(earlier.drained)?,
        })
    }

    /// Both together.
    pub fn plus(&self, other: &Counters) -> Counters {
        Counters {
            refills: self.refills.saturating_add(other.refills),
            reused: self.reused.saturating_add(other.reused),
            carved: self.carved.saturating_add(other.carved),
            flushes: self.flushes.saturating_add(other.flushes),
            flushed: self.flushed.saturating_add(other.flushed),
            drained: self.drained.saturating_add(other.drained),
        }
    }

    /// Cells that left for front caches and have not come back: live ones and those in the caches.
    pub fn out(&self) -> u64 {
        self.reused.saturating_add(self.carved).saturating_sub(self.flushed).saturating_sub(self.drained)
    }
}

/// One size class of one arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Counted by the arena itself since its start; `None` if only eBPF knows the class.
    pub total: Option<Counters>,
    /// Counted by eBPF since the attach, for this process.
    pub traced: Option<Counters>,
    /// Cells in front caches now; `None` if they could not be read.
    pub front_cells: Option<u64>,
    /// Cells in the transfer cache now.
    pub transfer_cells: u64,
    /// Spans now.
    pub spans: u64,
    /// Cells of these spans.
    pub cells: u64,
    /// Cells of these spans that are free.
    pub central_cells: u64,
    /// Bytes of these spans.
    pub span_bytes: u64,
    /// Whether the block was changing at each attempt: the figures are the last whole ones, or none.
    pub torn: bool,
}

impl Class {
    /// Live cells; with unreadable front caches, the most they can be.
    pub fn live(&self) -> Option<u64> {
        Some(self.total?.out().saturating_sub(self.front_cells.unwrap_or(0)))
    }

    /// Free cells in front and transfer caches.
    pub fn cached(&self) -> u64 {
        self.front_cells.unwrap_or(0).saturating_add(self.transfer_cells)
    }
}

/// One lock of one arena, taken for one reason.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// Counted by the arena itself since its start.
    pub total: Option<HoldWait>,
    /// Counted by eBPF since the attach, for this process.
    pub traced: Option<HoldWait>,
    /// Whether the block was changing at each attempt.
    pub torn: bool,
}

impl Lock {
    /// The arena's own histograms, else those of eBPF.
    pub fn best(&self) -> Option<&HoldWait> {
        self.total.as_ref().or(self.traced.as_ref())
    }
}

/// How long a lock was held and waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldWait {
    /// From acquisition to release.
    pub hold: Histogram,
    /// From the attempt to the acquisition.
    pub wait: Histogram,
}

impl HoldWait {
    /// What was counted since `earlier`; `None` if the counters were reset in between.
    pub fn since(&self, earlier: &HoldWait) -> Option<HoldWait> {
        Some(HoldWait { hold: self.hold.since(&earlier.hold)?, wait: self.wait.since(&earlier.wait)? })
    }

    /// Adds another lock's.
    pub fn add(&mut self, other: &HoldWait) {
        self.hold.add(&other.hold);
        self.wait.add(&other.wait);
    }
}
