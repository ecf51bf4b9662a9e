//! Limits and figures of this process and its machine, as the kernel tells them now.
//!
//! Nothing is kept between two calls: a figure is read when somebody asks (`backing/room.rs`, which knows how often). What
//! cannot be read is unknown, and limits nothing.

use super::memory::HUGE_PAGE;
use super::text::{self, Path};

/// Where the kernel's files are looked for: nothing in front of their paths, and in tests a directory of fixtures.
#[derive(Clone, Copy)]
pub(crate) struct Root(&'static [u8]);

impl Root {
    /// The files of the running kernel.
    pub(crate) const SYSTEM: Root = Root(b"");

    /// A directory with files of another kernel.
    #[cfg(test)]
    pub(crate) fn fixture(directory: &'static str) -> Root {
        Root(directory.as_bytes())
    }

    /// The path of a file.
    pub(crate) fn path(self, name: &[u8]) -> Path {
        Path::new().with(self.0).with(name)
    }
}

/// `/proc/meminfo`, bytes. In a container it may be made up by LXCFS, which shows the container as a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meminfo {
    pub(crate) total: Option<u64>,
    pub(crate) available: Option<u64>,
    pub(crate) commit_limit: Option<u64>,
    pub(crate) committed: Option<u64>,
}

impl Meminfo {
    pub(crate) fn read(root: Root) -> Meminfo {
        let mut info = Meminfo::default();
        text::lines(&root.path(b"/proc/meminfo"), |line| {
            info.see(line);
            // The last of the fields that matter.
            info.committed.is_none()
        });
        info
    }

    fn see(&mut self, line: &[u8]) {
        let fields = [
            (&b"MemTotal"[..], &mut self.total),
            (b"MemAvailable", &mut self.available),
            (b"CommitLimit", &mut self.commit_limit),
            (b"Committed_AS", &mut self.committed),
        ];
        for (name, value) in fields {
            *value = value.or(text::kib_field(line, name));
        }
    }
}

/// `/proc/self/status`, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Anonymous memory that is resident, and that is swapped out.
    pub(crate) anonymous: Option<u64>,
    pub(crate) swapped: Option<u64>,
    /// Memory locked into RAM.
    pub(crate) locked: Option<u64>,
    /// Private writable memory, touched or not: what RLIMIT_DATA limits.
    pub(crate) data: Option<u64>,
    /// All address space, reserved or not.
    pub(crate) mapped: Option<u64>,
    /// Effective capabilities, a bit each.
    pub(crate) capabilities: Option<u64>,
}

/// Bit of CAP_IPC_LOCK, which lifts RLIMIT_MEMLOCK.
const CAP_IPC_LOCK: u32 = 14;

/// Bit of CAP_SYS_ADMIN, which may have what strict overcommit keeps for an administrator.
const CAP_SYS_ADMIN: u32 = 21;

impl Status {
    pub(crate) fn read(root: Root) -> Status {
        let mut status = Status::default();
        text::lines(&root.path(b"/proc/self/status"), |line| {
            status.see(line);
            status.capabilities.is_none()
        });
        status
    }

    fn see(&mut self, line: &[u8]) {
        let fields = [
            (&b"VmSize"[..], &mut self.mapped),
            (b"RssAnon", &mut self.anonymous),
            (b"VmSwap", &mut self.swapped),
            (b"VmLck", &mut self.locked),
            (b"VmData", &mut self.data),
        ];
        for (name, value) in fields {
            *value = value.or(text::kib_field(line, name));
        }
        if let Some(digits) = line.strip_prefix(b"CapEff:") {
            let digits = core::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
            self.capabilities = u64::from_str_radix(digits, 16).ok();
        }
    }

    /// Whether RLIMIT_MEMLOCK does not hold for this process.
    pub(crate) fn may_lock_all(&self) -> bool {
        self.may(CAP_IPC_LOCK)
    }

    fn may(&self, capability: u32) -> bool {
        self.capabilities.is_some_and(|bits| bits >> capability & 1 != 0)
    }
}

/// A soft resource limit in bytes; `None` if there is none.
pub(crate) fn resource(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    // SAFETY: S9, the kernel writes the one structure given.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, core::ptr::null::<u8>(), &raw mut limit) };
    (limit.rlim_cur != libc::RLIM64_INFINITY).then_some(limit.rlim_cur)
}

/// Whether the kernel commits no more than it could back (vm.overcommit_memory=2).
fn overcommit_is_strict(root: Root) -> bool {
    text::number_in(&root.path(b"/proc/sys/vm/overcommit_memory")) == Some(2)
}

/// Bytes that strict overcommit leaves this process, if it is strict: the limit less all that is committed, less what is
/// kept for an administrator, less what the kernel keeps from each process for others to recover it (a 32nd of its address
/// space, reserved or not, up to a bound: `__vm_enough_memory` in the kernel's `mm/util.c`).
pub(crate) fn strict_commit_left(root: Root, info: &Meminfo, status: &Status) -> Option<u64> {
    let (limit, committed) = (info.commit_limit?, info.committed?);
    if !overcommit_is_strict(root) {
        return None;
    }
    let kept = |file| text::number_in(&root.path(b"/proc/sys/vm/").with(file)).unwrap_or(0).saturating_mul(1024);
    let administrator = if status.may(CAP_SYS_ADMIN) { 0 } else { kept(b"admin_reserve_kbytes") };
    let process = kept(b"user_reserve_kbytes").min(status.mapped.unwrap_or(0) / 32);
    Some(limit.saturating_sub(administrator).saturating_sub(process).saturating_sub(committed))
}

/// How many mappings this process may still make: the limit less the count. Dear: the kernel writes a line for each.
pub(crate) fn mappings_left(root: Root) -> Option<u64> {
    let limit = text::number_in(&root.path(b"/proc/sys/vm/max_map_count"))?;
    let mut count = 0;
    text::lines(&root.path(b"/proc/self/maps"), |_| {
        count += 1;
        true
    })
    .then(|| limit.saturating_sub(count))
}

/// Bytes of the hugetlb pool that are free and not promised to anybody.
pub(crate) fn pool_bytes(root: Root) -> u64 {
    let count =
        |file| text::number_in(&root.path(b"/sys/kernel/mm/hugepages/hugepages-2048kB/").with(file)).unwrap_or(0);
    count(b"free_hugepages").saturating_sub(count(b"resv_hugepages")).saturating_mul(HUGE_PAGE as u64)
}

/// The free pages of the hugetlb pool, by NUMA node, as text: ` (free: node 0: 3, node 1: 0)`. Empty where there is no pool.
pub(crate) struct Pools(Path<128>);

/// Nodes that are looked at.
const NODES: u64 = 64;

impl Pools {
    pub(crate) const fn new() -> Pools {
        Pools(Path::new())
    }

    pub(crate) fn read(&mut self, root: Root) {
        for node in 0..NODES {
            let (mut a, mut b) = ([0; 20], [0; 20]);
            let name = text::decimal(node, &mut a).as_bytes();
            let directory = root.path(b"/sys/devices/system/node/node").with(name);
            let file = directory.with(b"/hugepages/hugepages-2048kB/free_hugepages");
            let Some(free) = text::number_in(&file) else { continue };
            let start: &[u8] = if self.0.bytes().is_empty() { b" (free: node " } else { b", node " };
            self.0 = self.0.with(start).with(name).with(b": ").with(text::decimal(free, &mut b).as_bytes());
        }
        if !self.0.bytes().is_empty() {
            self.0.push(b")");
        }
    }

    pub(crate) fn text(&self) -> &str {
        core::str::from_utf8(self.0.bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::cgroup::tests::Machine;
    use super::*;
    use std::string::String;

    const STATUS: &str =
        "Name:\tx\nVmLck:\t      64 kB\nRssAnon:\t     160 kB\nVmData:\t     432 kB\nVmSwap:\t       8 kB\n";

    #[test]
    fn figures_of_the_machine_and_the_process() {
        let machine = Machine::new("figures");
        machine
            .file(
                "/proc/meminfo",
                "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable: 50 kB\nCommitLimit: 70 kB\nCommitted_AS: 60 kB\n",
            )
            .file("/proc/self/status", &(String::from(STATUS) + "CapEff:\t0000000000004000\n"))
            .file("/proc/sys/vm/max_map_count", "65530\n")
            .file("/proc/self/maps", "a\nb\nc\n");
        let root = machine.root();
        let kib = |kib: u64| Some(kib * 1024);
        let info = Meminfo { total: kib(100), available: kib(50), commit_limit: kib(70), committed: kib(60) };
        assert_eq!(Meminfo::read(root), info);
        let status = Status::read(root);
        assert_eq!((status.anonymous, status.swapped), (kib(160), kib(8)));
        assert_eq!((status.locked, status.data), (kib(64), kib(432)));
        assert!(status.may_lock_all());
        assert_eq!(mappings_left(root), Some(65527));
        machine.file("/proc/self/status", "CapEff:\t000000000000bfff\n");
        assert!(!Status::read(root).may_lock_all());
    }

    #[test]
    fn strict_overcommit_keeps_some_for_others() {
        let machine = Machine::new("strict");
        machine
            .file("/proc/sys/vm/overcommit_memory", "2\n")
            .file("/proc/sys/vm/admin_reserve_kbytes", "8\n")
            .file("/proc/sys/vm/user_reserve_kbytes", "128\n");
        let root = machine.root();
        let info = Meminfo { commit_limit: Some(1000 << 10), committed: Some(400 << 10), ..Meminfo::default() };
        let left = |mapped: u64, capabilities| {
            let status = Status { mapped: Some(mapped << 10), capabilities: Some(capabilities), ..Status::default() };
            strict_commit_left(root, &info, &status).map(|bytes| bytes >> 10)
        };
        let administrator = 1 << CAP_SYS_ADMIN;
        assert_eq!(left(0, administrator), Some(600));
        assert_eq!(left(64, 0), Some(590));
        assert_eq!(left(1 << 20, administrator), Some(472), "a large reservation costs no more than the bound");
        let full = Meminfo { committed: Some(1 << 30), ..info };
        assert_eq!(strict_commit_left(root, &full, &Status::default()), Some(0));
        assert_eq!(strict_commit_left(root, &Meminfo::default(), &Status::default()), None);
        machine.file("/proc/sys/vm/overcommit_memory", "0\n");
        assert_eq!(left(0, administrator), None);
    }

    #[test]
    fn a_pool_is_told_by_node() {
        let machine = Machine::new("nodes");
        let mut pools = Pools::new();
        pools.read(machine.root());
        assert_eq!(pools.text(), "");
        let file =
            |node| String::from("/sys/devices/system/node/node") + node + "/hugepages/hugepages-2048kB/free_hugepages";
        machine.file(&file("0"), "3\n").file(&file("2"), "0\n");
        pools.read(machine.root());
        assert_eq!(pools.text(), " (free: node 0: 3, node 2: 0)");
        assert_eq!(pool_bytes(machine.root()), 0);
        machine
            .file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "5\n")
            .file("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "2\n");
        assert_eq!(pool_bytes(machine.root()), 3 << 21);
    }

    #[test]
    fn limits_of_this_process() {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is the test's own.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        assert_eq!(resource(libc::RLIMIT_NOFILE), Some(limit.rlim_cur));
        assert!(Meminfo::read(Root::SYSTEM).available.is_some_and(|bytes| bytes > 0));
        assert!(Status::read(Root::SYSTEM).capabilities.is_some());
        assert!(mappings_left(Root::SYSTEM).is_some_and(|left| left > 0));
    }
}
