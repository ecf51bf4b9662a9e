//! Capabilities of the test's process, which is what a test needs where it seems to need root: root in a container may lack most.

/// Whether this process has a capability, by its number (linux/capability.h).
fn has(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    effective.and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|bits| bits >> capability & 1 != 0)
}

/// Whether it may trace others with probes.
pub(crate) fn may_trace() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    has(CAP_SYS_ADMIN)
}

/// Whether it may lock memory beyond its limit.
pub(crate) fn may_lock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    has(CAP_IPC_LOCK)
}
