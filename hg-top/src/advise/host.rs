//! What the host offers and forbids: the huge page pool, memory, the limit of locked memory of a process.

use std::fs::File;
use std::io::Read;

/// What could be read; `None` where it could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Pages of the pool.
    pub huge_pages: Option<u64>,
    /// Those that are free.
    pub huge_pages_free: Option<u64>,
    /// Memory, bytes.
    pub memory: Option<u64>,
    /// What is available of it, bytes.
    pub available: Option<u64>,
    /// The process's limit of locked memory, bytes; `None` also if there is none.
    pub memlock: Option<u64>,
}

/// Bytes of a file that are read.
const CAP: u64 = 64 << 10;

impl Host {
    /// Reads it for process `pid`, or for none in particular.
    pub fn read(pid: Option<u32>) -> Host {
        let meminfo = text("/proc/meminfo").unwrap_or_default();
        let limits = pid.and_then(|pid| text(&format!("/proc/{pid}/limits"))).unwrap_or_default();
        Host::parse(&meminfo, &limits)
    }

    fn parse(meminfo: &str, limits: &str) -> Host {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let kib = |name| field(name).map(|kib: u64| kib.saturating_mul(1024));
        let memlock = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        Host {
            huge_pages: field("HugePages_Total"),
            huge_pages_free: field("HugePages_Free"),
            memory: kib("MemTotal"),
            available: kib("MemAvailable"),
            memlock: memlock.and_then(|line| line.split_whitespace().next()?.parse().ok()),
        }
    }
}

fn text(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(CAP).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_by_name() {
        let meminfo =
            "MemTotal:       24000 kB\nMemAvailable:    1 kB\nHugePages_Total:      64\nHugePages_Free:       60\n";
        let limits =
            "Limit   Soft Limit  Hard Limit  Units\nMax locked memory         8388608              8388608    bytes\n";
        let host = Host::parse(meminfo, limits);
        assert_eq!((host.huge_pages, host.huge_pages_free), (Some(64), Some(60)));
        assert_eq!((host.memory, host.memlock), (Some(24_576_000), Some(8 << 20)));
        let unlimited = Host::parse("", "Max locked memory         unlimited            unlimited  bytes\n");
        assert_eq!(unlimited, Host::default());
    }

    #[test]
    fn this_host() {
        let host = Host::read(Some(std::process::id()));
        assert!(host.memory > host.available && host.available > Some(1 << 20), "{host:?}");
    }
}
