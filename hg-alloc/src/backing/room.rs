//! Room: whether this process may have so many bytes more, and if not, which limit is in the way.
//!
//! Two limits are looked at before any memory is committed, since the kernel enforces them by killing, long after it agreed
//! to the commit:
//!
//! * the control group: its limit, and those of all groups above it, less what they use (`sys/cgroup.rs`);
//! * the host floor: MemAvailable may not fall below a twentieth of MemTotal, at least 256 MiB, but on hosts that
//!   have less than 1 GiB at most a quarter of it. LXCFS shows a container as a host, so it has a floor too.
//!
//! Pages of the hugetlb pool are neither's. Both count memory once it is touched. What an arena committed and nobody touched
//! yet is promised, so it is taken off first: committed bytes less the anonymous memory that the process has. The others
//! (strict overcommit, RLIMIT_DATA, `vm.max_map_count`, RLIMIT_MEMLOCK) the kernel refuses at once; they are asked for to
//! [`explain`](Room::explain) its errno, which is ENOMEM for all of them.
//!
//! A look reads five files or more: 47 µs, the first one 120 µs (measured in a virtual machine, one level of groups), where a
//! granule of 16 MiB takes 6 ms and more to touch. It is not needed for each granule: an eighth of the room found is
//! credit for the next 100 ms, spent in 30 ns, so a process far from its limits looks ten times a second at most, and one
//! near to them each time. Only the places where control groups are mounted are kept; group, limits and usage are read anew.
//!
//! Lock: none, and none may be held by who looks. Callers: `grid/grow.rs`, one thread at a time.

use crate::sys::cgroup::{self, Mounts};
use crate::sys::limits::{self, Meminfo, Root, Status};
use crate::sys::{Errno, clock};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use hg_probes::words::Cause;

/// How long credit lasts, ns.
const CREDIT_NS: u64 = 100_000_000;

/// The part of the room that may be spent without another look.
const CREDIT_PART: u64 = 8;

/// The host floor: a part of its memory, and at least so much, bytes.
const FLOOR_PART: u64 = 20;
const FLOOR_LEAST: u64 = 256 << 20;

/// The kernel counts what is committed by CPU, and decides by a sum that may be off by so much of the host's memory
/// (`mm_compute_batch` in its `mm/mm_init.c`, where overcommit is strict).
const COMMIT_ERROR_PART: u64 = 256;

/// Mappings that others (stacks, libraries) may need before the allocator takes the last one.
const MAPPINGS_SPARE: u64 = 8;

/// What somebody wants to commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// The least that is of use, bytes.
    pub(crate) need: u64,
    /// As many as are wanted, bytes.
    pub(crate) want: u64,
    /// Bytes of anonymous memory that are committed already.
    pub(crate) committed: u64,
    /// Whether it comes from the hugetlb pool, if that has as much.
    pub(crate) pool: bool,
}

/// What is known of the limits of this process.
pub(crate) struct Room {
    /// Bytes that may be committed without a look, and until when.
    credit: AtomicU64,
    credit_until_ns: AtomicU64,
    /// Whether `mounts` is written: 0 no, 1 somebody writes, 2 yes, for ever.
    found: AtomicU32,
    mounts: UnsafeCell<Mounts>,
}

// SAFETY: S10, `mounts` is written by the one thread that brought `found` from 0 to 1, and read once it is 2.
unsafe impl Sync for Room {}

impl Room {
    pub(crate) const fn new() -> Self {
        Room {
            credit: AtomicU64::new(0),
            credit_until_ns: AtomicU64::new(0),
            found: AtomicU32::new(0),
            mounts: UnsafeCell::new(Mounts::NONE),
        }
    }

    /// Spends credit of the last look. False if there is not enough: the caller has to [`look`](Self::look). One spender at a
    /// time.
    pub(crate) fn spend(&self, bytes: u64, now_ns: u64) -> bool {
        let credit = self.credit.load(Relaxed);
        let enough = credit >= bytes && now_ns < self.credit_until_ns.load(Relaxed);
        if enough {
            self.credit.store(credit - bytes, Relaxed);
        }
        enough
    }

    /// How many of the bytes wanted there is room for, at least those needed; or the limit in the way.
    pub(crate) fn look(&self, ask: Ask) -> Result<u64, Cause> {
        if ask.pool && limits::pool_bytes(Root::SYSTEM) >= ask.want {
            // The host gave that memory away already.
            return Ok(ask.want);
        }
        let tightest = self.tightest(Root::SYSTEM, ask);
        let (room, cause) = tightest.unwrap_or((u64::MAX, Cause::Kernel));
        if room < ask.need {
            self.credit.store(0, Relaxed);
            return Err(cause);
        }
        let granted = ask.want.min(room);
        self.credit.store((room - granted) / CREDIT_PART, Relaxed);
        self.credit_until_ns.store(clock::now_ns().saturating_add(CREDIT_NS), Relaxed);
        Ok(granted)
    }

    /// The limit that leaves the least room, and how much; `None` if no limit is known.
    fn tightest(&self, root: Root, ask: Ask) -> Option<(u64, Cause)> {
        let promised = promised(ask.committed, &Status::read(root));
        let host = host_room(&Meminfo::read(root)).map(|room| (room, Cause::HostFloor));
        let enough = ask.want.saturating_add(promised);
        let group =
            self.with_mounts(root, |mounts| cgroup::room(root, mounts, enough)).map(|room| (room, Cause::Cgroup));
        let least = [group, host].into_iter().flatten().min_by_key(|(room, _)| *room);
        least.map(|(room, cause)| (room.saturating_sub(promised), cause))
    }

    /// The limit behind a kernel's refusal to commit as much as was wanted.
    #[cold]
    pub(crate) fn explain(&self, errno: Errno, ask: Ask) -> Cause {
        if errno.0 != libc::ENOMEM && errno.0 != libc::EAGAIN {
            return Cause::Kernel;
        }
        let info = Meminfo::read(Root::SYSTEM);
        self.in_the_way(ask, &info, info.total.unwrap_or(0) / COMMIT_ERROR_PART)
    }

    /// Whether no known limit is in the way of what is needed any more.
    pub(crate) fn allows(&self, ask: Ask) -> bool {
        self.in_the_way(Ask { want: ask.need, ..ask }, &Meminfo::read(Root::SYSTEM), 0) == Cause::Kernel
    }

    /// The limit that refuses what is wanted, `Kernel` if none does. `error` is how far the kernel's own count of committed
    /// bytes may be off.
    fn in_the_way(&self, ask: Ask, info: &Meminfo, error: u64) -> Cause {
        let root = Root::SYSTEM;
        let status = Status::read(root);
        let wanted = |used: u64| used.saturating_add(ask.want);
        if limits::strict_commit_left(root, info, &status).is_some_and(|left| left < wanted(error)) {
            return Cause::Overcommit;
        }
        let data = limits::resource(libc::RLIMIT_DATA).zip(status.data);
        if data.is_some_and(|(limit, used)| limit < wanted(used)) {
            return Cause::AddressSpace;
        }
        if limits::mappings_left(root).is_some_and(|left| left < MAPPINGS_SPARE) {
            return Cause::MapCount;
        }
        match self.tightest(root, ask) {
            Some((room, cause)) if room < ask.want => cause,
            _ => Cause::Kernel,
        }
    }

    fn with_mounts<R>(&self, root: Root, read: impl FnOnce(&Mounts) -> R) -> R {
        match self.found.compare_exchange(0, 1, Acquire, Acquire) {
            Ok(_) => {
                let found = Mounts::find(root);
                // SAFETY: S10, this thread brought the word from 0 to 1.
                unsafe { *self.mounts.get() = found };
                self.found.store(2, Release);
                read(&found)
            }
            // SAFETY: S10, the word says that they are written.
            Err(2) => read(unsafe { &*self.mounts.get() }),
            // A fork or a signal came between: rare, and only slower.
            Err(_) => read(&Mounts::find(root)),
        }
    }
}

/// The limit behind a kernel's refusal to lock `bytes` more into RAM.
#[cold]
pub(crate) fn explain_pin(errno: Errno, bytes: u64) -> Cause {
    let status = Status::read(Root::SYSTEM);
    let limit = limits::resource(libc::RLIMIT_MEMLOCK);
    pin_cause(errno, bytes, limit, &status)
}

fn pin_cause(errno: Errno, bytes: u64, limit: Option<u64>, status: &Status) -> Cause {
    let limited = match (limit, status.locked) {
        (Some(limit), Some(locked)) => locked.saturating_add(bytes) > limit,
        _ => false,
    };
    let refused = matches!(errno.0, libc::ENOMEM | libc::EPERM | libc::EAGAIN);
    if refused && limited && !status.may_lock_all() { Cause::Memlock } else { Cause::Kernel }
}

/// Bytes that were committed and not touched yet.
fn promised(committed: u64, status: &Status) -> u64 {
    let Some(resident) = status.anonymous else { return 0 };
    committed.saturating_sub(resident.saturating_add(status.swapped.unwrap_or(0)))
}

/// Bytes that the host has above its floor.
fn host_room(info: &Meminfo) -> Option<u64> {
    let (total, available) = (info.total?, info.available?);
    let floor = (total / FLOOR_PART).max(FLOOR_LEAST).min(total / 4);
    Some(available.saturating_sub(floor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cgroup::tests::Machine;

    const MIB: u64 = 1 << 20;

    fn ask(mib: u64) -> Ask {
        Ask { need: mib * MIB, want: mib * MIB, committed: 0, pool: false }
    }

    #[test]
    fn the_host_keeps_its_floor() {
        let room = |total: u64, available: u64| {
            host_room(&Meminfo { total: Some(total * MIB), available: Some(available * MIB), ..Meminfo::default() })
        };
        assert_eq!(room(100_000, 6_000), Some(1_000 * MIB));
        assert_eq!(room(2_000, 300), Some(44 * MIB));
        assert_eq!(room(2_000, 200), Some(0));
        assert_eq!(room(512, 200), Some(72 * MIB), "a small host is not all floor");
        assert_eq!(host_room(&Meminfo::default()), None);
    }

    #[test]
    fn what_is_promised_counts_as_used() {
        let status = Status { anonymous: Some(100), swapped: Some(20), ..Status::default() };
        assert_eq!(promised(150, &status), 30);
        assert_eq!(promised(90, &status), 0);
        assert_eq!(promised(90, &Status::default()), 0);
    }

    #[test]
    fn the_tightest_limit_is_named() {
        let machine = Machine::new("tightest");
        machine
            .file("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n")
            .file("/proc/self/status", "RssAnon: 102400 kB\nVmSwap: 0 kB\n")
            .file("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
            .file("/proc/self/cgroup", "0::/x\n");
        let room = Room::new();
        // A twentieth of 8 GiB is 409.6 MiB.
        let host = (1024 * 10 - 4096) * MIB / 10;
        let (found, cause) = room.tightest(machine.root(), ask(1)).expect("a limit");
        assert_eq!((found / MIB, cause), (host / MIB, Cause::HostFloor));
        machine
            .file("/sys/fs/cgroup/x/memory.max", "536870912\n")
            .file("/sys/fs/cgroup/x/memory.current", "104857600\n");
        assert_eq!(room.tightest(machine.root(), ask(1)), Some((396 * MIB, Cause::Cgroup)));
        let promised = Ask { committed: 200 * MIB, ..ask(1) };
        assert_eq!(room.tightest(machine.root(), promised), Some((296 * MIB, Cause::Cgroup)));
    }

    #[test]
    fn credit_is_spent_once_and_lapses() {
        let room = Room::new();
        assert!(!room.spend(1, 0));
        let granted = room.look(Ask { need: 1, want: 2, committed: 0, pool: false });
        assert_eq!(granted, Ok(2));
        let now = clock::now_ns();
        let credit = room.credit.load(Relaxed);
        assert!(credit > 0 && room.spend(credit, now));
        assert!(!room.spend(1, now));
        room.look(Ask { need: 1, want: 2, committed: 0, pool: false }).expect("room for two bytes");
        assert!(!room.spend(1, clock::now_ns() + CREDIT_NS));
    }

    #[test]
    fn a_pin_is_refused_by_the_limit_or_by_the_kernel() {
        let status = Status { locked: Some(MIB), capabilities: Some(0), ..Status::default() };
        let cause = |errno, limit, status: &Status| pin_cause(Errno(errno), MIB, limit, status);
        assert_eq!(cause(libc::ENOMEM, Some(MIB), &status), Cause::Memlock);
        assert_eq!(cause(libc::EPERM, Some(0), &status), Cause::Memlock);
        assert_eq!(cause(libc::ENOMEM, Some(2 * MIB), &status), Cause::Kernel);
        assert_eq!(cause(libc::ENOMEM, None, &status), Cause::Kernel);
        assert_eq!(cause(libc::EINVAL, Some(0), &status), Cause::Kernel);
        let mighty = Status { capabilities: Some(u64::MAX), ..status };
        assert_eq!(cause(libc::ENOMEM, Some(0), &mighty), Cause::Kernel);
    }
}
