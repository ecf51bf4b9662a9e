//! The configuration of the process's arena: `HG_*` variables, read once at the first allocation.
//!
//! | variable | values | default |
//! |---|---|---|
//! | `HG_CAP` | address space for the arena, with k, m, g or t | four times RAM, 64 GiB to 1 TiB |
//! | `HG_SIZE` | `INIT:CAP`: committed at the start and never given back, and the same as `HG_CAP` | `HG_CAP` alone |
//! | `HG_PROFILE` | when to grow and shrink, see `elastic/profile.rs` | none |
//! | `HG_PROFILE_DRY_RUN` | `1`: only tell what the profile would do | `0` |
//! | `HG_PROFILE_CYCLE_MS` | length of a cycle of the profile, 10 to 3 600 000 | 1000 |
//! | `HG_TIER` | `auto`, `hugetlb`, `thp`, `collapse`, `64k`, `base` | `base` |
//! | `HG_PIN` | `0`, `1` | `0` |
//! | `HG_RSEQ` | `0`, `1` | `1` |
//! | `HG_LOCK_STALL_US` | 1 to 10 000 000 | 1000 |
//! | `HG_THREAD` | `1`: a thread maintains the arena | `0`; with a profile `1` |
//! | `HG_DECAY_MS` | how long free memory is kept where somebody maintains the arena, 10 to 3 600 000 | 10000 |
//! | `HG_SAMPLE_BYTES` | mean bytes between two samples, 4k to 1t | 512k |
//!
//! A value that does not parse gets one line on stderr, and the default. So does a value that another one contradicts.

use crate::backing::pages::Backing;
use crate::elastic::policy::Rules;
use crate::elastic::profile::{Error, Profile, Size};
use crate::sys::{env, text};
use hg_probes::words::Tier;

const GIB: usize = 1 << 30;
const LEAST_CAP: usize = 16 << 20;
const GREATEST_CAP: usize = 64 << 40;

/// What the environment asks for.
pub(crate) struct Config {
    pub(crate) cap_bytes: usize,
    /// Committed at the start.
    pub(crate) init_bytes: u64,
    pub(crate) rules: Rules,
    pub(crate) backing: Backing,
    pub(crate) rseq: bool,
    pub(crate) stall_us: u32,
    /// Whether a thread is to maintain the arena.
    pub(crate) thread: bool,
    pub(crate) decay_ms: u32,
    pub(crate) sample_bytes: usize,
}

impl Config {
    /// Reads the environment.
    pub(crate) fn read() -> Config {
        let default_cap = env::ram_bytes().saturating_mul(4).next_power_of_two().clamp(64 * GIB, 1024 * GIB);
        let stall = |text: &str| text.parse().ok().filter(|us| (1..=10_000_000).contains(us));
        let decay = |text: &str| text.parse().ok().filter(|ms| (10..=3_600_000).contains(ms));
        let sample = |text: &str| size(text).filter(|bytes| (4096..=1024 * GIB).contains(bytes));
        let cycle = |text: &str| text.parse().ok().filter(|ms| (10..=3_600_000).contains(ms));
        let (init_bytes, cap_bytes) = init_and_cap(default_cap);
        let profile = profile(init_bytes, cap_bytes);
        Config {
            cap_bytes,
            init_bytes,
            rules: Rules {
                dry_run: value("HG_PROFILE_DRY_RUN", flag, "0 or 1").unwrap_or(false),
                cycle_ns: value("HG_PROFILE_CYCLE_MS", cycle, "milliseconds from 10 to 3600000").unwrap_or(1000)
                    * 1_000_000,
                ..Rules::new(profile)
            },
            backing: Backing {
                pin: value("HG_PIN", flag, "0 or 1").unwrap_or(false),
                ..value("HG_TIER", tier, "auto, hugetlb, thp, collapse, 64k or base").unwrap_or(Backing::BASE)
            },
            rseq: value("HG_RSEQ", flag, "0 or 1").unwrap_or(true),
            // Without one a profile would have to wait for a program that ticks.
            thread: value("HG_THREAD", flag, "0 or 1").unwrap_or(profile.is_some()),
            decay_ms: value("HG_DECAY_MS", decay, "milliseconds from 10 to 3600000").unwrap_or(10_000),
            sample_bytes: value("HG_SAMPLE_BYTES", sample, "a size from 4k to 1t").unwrap_or(512 << 10),
            stall_us: value("HG_LOCK_STALL_US", stall, "microseconds from 1 to 10000000").unwrap_or(1000),
        }
    }
}

/// Whether a thread is asked for. Without a word about values that do not parse: [`Config::read`] has it.
pub(crate) fn wants_thread() -> bool {
    let by_profile = || env::variable("HG_PROFILE").is_some_and(|text| Profile::parse(text).is_ok());
    env::variable("HG_THREAD").and_then(flag).unwrap_or_else(by_profile)
}

fn value<T>(name: &str, parse: impl FnOnce(&str) -> Option<T>, wanted: &str) -> Option<T> {
    let text = env::variable(name)?;
    let value = parse(text);
    if value.is_none() {
        env::complain(&["hg: ", name, "=", text, ": want ", wanted, "; using the default"]);
    }
    value
}

/// As [`value`], of a grammar that knows the place of an error.
fn placed<T>(name: &str, parse: impl FnOnce(&str) -> Result<T, Error>, instead: &str) -> Option<T> {
    match parse(env::variable(name)?) {
        Ok(value) => Some(value),
        Err(error) => {
            let (mut line, mut column) = ([0; 20], [0; 20]);
            let line = text::decimal(error.line.into(), &mut line);
            let column = text::decimal(error.column.into(), &mut column);
            // Few values have several lines.
            let (before, line) = if error.line > 1 { (" line ", line) } else { ("", "") };
            let reason = error.reason.label();
            env::complain(&["hg: ", name, ":", before, line, " column ", column, ": ", reason, "; using ", instead]);
            None
        }
    }
}

/// What `HG_SIZE` and `HG_CAP` say.
fn init_and_cap(default_cap: usize) -> (u64, usize) {
    let cap = |text: &str| size(text).filter(|bytes| (LEAST_CAP..=GREATEST_CAP).contains(bytes));
    let cap = value("HG_CAP", cap, "a size from 16m to 64t");
    let Some(both) = placed("HG_SIZE", Size::parse, "HG_CAP or its default") else {
        return (0, cap.unwrap_or(default_cap));
    };
    let size_cap = both.cap_bytes as usize;
    if cap.is_some_and(|cap| cap != size_cap) {
        env::complain(&["hg: HG_SIZE and HG_CAP name different caps; using that of HG_SIZE"]);
    }
    (both.init_bytes, size_cap)
}

/// What `HG_PROFILE` says, if it fits the size.
fn profile(init_bytes: u64, cap_bytes: usize) -> Option<Profile> {
    let profile = placed("HG_PROFILE", Profile::parse, "none")?;
    if profile.up.to_bytes <= init_bytes {
        env::complain(&["hg: HG_PROFILE: `scale up` ends at or below the initial size of HG_SIZE; using none"]);
        return None;
    }
    if profile.up.to_bytes > cap_bytes as u64 {
        env::complain(&["hg: HG_PROFILE: `scale up` ends above the cap, which stays the limit"]);
    }
    Some(profile)
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// A tier by its name, which then outweighs what speaks against it; or the best one to be had.
fn tier(text: &str) -> Option<Backing> {
    let tier = match text {
        "auto" | "hugetlb" => Tier::Hugetlb,
        "thp" => Tier::Thp,
        "collapse" => Tier::Collapsed,
        "64k" => Tier::Mid,
        "base" => Tier::Base,
        _ => return None,
    };
    Some(Backing { tier, forced: text != "auto", pin: false })
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
        let named = |text| tier(text).map(|backing| (backing.tier, backing.forced));
        assert_eq!(named("thp"), Some((Tier::Thp, true)));
        assert_eq!(named("hugetlb"), Some((Tier::Hugetlb, true)));
        assert_eq!(named("auto"), Some((Tier::Hugetlb, false)));
        assert_eq!(named("huge"), None);
    }
}
