//! What an operator does about a limit: one sentence each, with the command where there is one. Alerts, screens and
//! `hg-top advise` all say the same.

use hg_probes::words::{Cause, TierReason};

/// What lets a stopped process go on that others wait for.
pub const STOPPED: &str = "kill -CONT lets it go on, unless a tracer has it: whoever needs its locks waits";

/// What lets an arena grow again after a refusal.
pub fn of_cause(cause: Option<Cause>) -> &'static str {
    match cause {
        Some(Cause::Cap) => "restart with a higher cap (HG_SIZE=INIT:CAP), or find what grows in view 2",
        Some(Cause::Ceiling) => "raise `scale up to` of the profile, or find what grows in view 2",
        Some(Cause::HugetlbPool) => "sysctl -w vm.nr_hugepages=N, or take another tier (HG_TIER)",
        Some(Cause::Memlock) => "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity), or HG_PIN=0",
        Some(Cause::Cgroup) => "raise memory.max of the control group (v1: memory.limit_in_bytes)",
        Some(Cause::HostFloor) => "the host is nearly out of memory: free some, or move something away",
        Some(Cause::AddressSpace) => "ulimit -v unlimited",
        Some(Cause::MapCount) => "sysctl -w vm.max_map_count=262144",
        Some(Cause::Overcommit) => "raise vm.overcommit_ratio, or sysctl -w vm.overcommit_memory=0",
        Some(Cause::FileSystem) => "mount -o remount,size=SIZE the tmpfs that the arena lies on, or remove files there",
        _ => "raise the limit named: allocations fail next",
    }
}

/// What makes the kernel give a better tier; `None` where nothing is wrong, or nothing can be done.
pub fn of_tier(reason: Option<TierReason>) -> Option<&'static str> {
    match reason? {
        TierReason::SysfsNever => Some("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        TierReason::PoolEmpty => Some("sysctl -w vm.nr_hugepages=N, before the program starts"),
        TierReason::NotBacked => Some("echo 1 > /proc/sys/vm/compact_memory: memory is in pieces"),
        TierReason::AdviceRefused => Some("see whether prctl(PR_SET_THP_DISABLE) or a container forbids it"),
        TierReason::NotOffered => Some("this kernel has no such pages: take another tier (HG_TIER)"),
        _ => None,
    }
}

/// What lets memory be locked, by the errno of the attempt.
pub fn of_pin(errno: u32) -> &'static str {
    match errno as i32 {
        libc::EPERM | libc::ENOMEM | libc::EAGAIN => "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)",
        _ => "see the errno; the arena works on, unpinned",
    }
}
