//! The configuration of the process's arena: `HG_*` variables, read once at the first allocation.
//!
//! | variable | values | default |
//! |---|---|---|
//! | `HG_CAP` | address space for the arena, with k, m, g or t | four times RAM, 64 GiB to 1 TiB |
//! | `HG_TIER` | `base`, `thp` | `base` |
//! | `HG_PIN` | `0`, `1` | `0` |
//! | `HG_RSEQ` | `0`, `1` | `1` |
//! | `HG_LOCK_STALL_US` | 1 to 10 000 000 | 1000 |
//! | `HG_SAMPLE_BYTES` | mean bytes between two samples, 4k to 1t | 512k |
//!
//! A value that does not parse gets one line on stderr, and the default.

use crate::grid::grow::Backing;
use crate::sys::env;
use hg_probes::words::Tier;

const GIB: usize = 1 << 30;
const LEAST_CAP: usize = 16 << 20;
const GREATEST_CAP: usize = 64 << 40;

/// What the environment asks for.
pub(crate) struct Config {
    pub(crate) cap_bytes: usize,
    pub(crate) backing: Backing,
    pub(crate) rseq: bool,
    pub(crate) stall_us: u32,
    pub(crate) sample_bytes: usize,
}

impl Config {
    /// Reads the environment.
    pub(crate) fn read() -> Config {
        let default_cap = env::ram_bytes().saturating_mul(4).next_power_of_two().clamp(64 * GIB, 1024 * GIB);
        let cap = |text: &str| size(text).filter(|bytes| (LEAST_CAP..=GREATEST_CAP).contains(bytes));
        let stall = |text: &str| text.parse().ok().filter(|us| (1..=10_000_000).contains(us));
        let sample = |text: &str| size(text).filter(|bytes| (4096..=1024 * GIB).contains(bytes));
        Config {
            cap_bytes: value("HG_CAP", cap, "a size from 16m to 64t").unwrap_or(default_cap),
            backing: Backing {
                tier: value("HG_TIER", tier, "base or thp").unwrap_or(Tier::Base),
                pin: value("HG_PIN", flag, "0 or 1").unwrap_or(false),
            },
            rseq: value("HG_RSEQ", flag, "0 or 1").unwrap_or(true),
            sample_bytes: value("HG_SAMPLE_BYTES", sample, "a size from 4k to 1t").unwrap_or(512 << 10),
            stall_us: value("HG_LOCK_STALL_US", stall, "microseconds from 1 to 10000000").unwrap_or(1000),
        }
    }
}

fn value<T>(name: &str, parse: impl FnOnce(&str) -> Option<T>, wanted: &str) -> Option<T> {
    let text = env::variable(name)?;
    let value = parse(text);
    if value.is_none() {
        env::complain(&["hg: ", name, "=", text, ": want ", wanted, "; using the default"]);
    }
    value
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn tier(text: &str) -> Option<Tier> {
    match text {
        "base" => Some(Tier::Base),
        "thp" => Some(Tier::Thp),
        _ => None,
    }
}

/// A size: digits, and k, m, g or t (powers of 1024) in either case.
fn size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("64"), Some(64));
        assert_eq!(size("64k"), Some(65536));
        assert_eq!(size("1G"), Some(GIB));
        assert_eq!(size("2t"), Some(2 << 40));
        for bad in ["", "k", "1kb", "-1", "1.5g", "99999999t", "0x10"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn flags_and_tiers() {
        assert_eq!(flag("1"), Some(true));
        assert_eq!(flag("yes"), None);
        assert_eq!(tier("thp"), Some(Tier::Thp));
        assert_eq!(tier("huge"), None);
    }
}
