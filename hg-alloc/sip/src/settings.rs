//! What the operator asks for by environment variables.
//!
//! | variable | values | default |
//! |---|---|---|
//! | `HG_SHM` | `CAP` or `INIT:CAP` of shared memory, with k, m or g | the server's `-m` |
//! | `HG_PKG` | the same of each process's private memory | the server's `-M` |
//! | `HG_PROFILE` | when shared memory grows ahead of demand and shrinks, see `elastic/profile.rs` of the core | none |
//! | `HG_TIER` | pages for shared memory: `base`, `thp`, `hugetlb`, or `auto` for `thp` | `base` |
//! | `HG_PIN` | `1`: shared memory is locked into RAM | `0` |
//! | `HG_SIP_HOOK` | `late`, `patch`, `off`: how to take over | `late` |
//! | `HG_CPUS` | CPUs of the workers, see `cpus.rs` | none |
//!
//! A value that does not parse gets one line, and the default.

use crate::report::report;
use core::ffi::CStr;
use hg_alloc::profile::Profile;
use hg_alloc::shared::Options;

/// The least and the greatest cap of an arena, bytes.
pub(crate) const LEAST_CAP: u64 = 4 << 20;
pub(crate) const GREATEST_CAP: u64 = 32 << 30;

/// What an arena starts with and grows to, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) init: u64,
    pub(crate) cap: u64,
}

impl Size {
    /// Where nothing but the server's own option says how much.
    pub(crate) fn of_server(bytes: u64) -> Size {
        Size { init: 0, cap: bytes.clamp(LEAST_CAP, GREATEST_CAP) }
    }
}

/// How the server's memory is taken over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Its function pointers are rewritten once it has set them.
    Late,
    /// Its functions that set up memory are replaced before they run.
    Patch,
    /// Not at all.
    Off,
}

/// The text of a variable.
pub(crate) fn variable(name: &CStr) -> Option<&'static str> {
    // SAFETY: the name is a C string. A set-user-id server must not be told where its memory comes from by its caller.
    let value = unsafe {
        if libc::getauxval(libc::AT_SECURE) != 0 {
            return None;
        }
        libc::getenv(name.as_ptr())
    };
    // SAFETY: the environment's strings stay where they are until somebody changes that variable, which no server does.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_str().unwrap_or("?"))
}

/// The size that a variable gives.
pub(crate) fn size(name: &CStr) -> Option<Size> {
    parse_size(variable(name)?)
}

/// Tells of sizes that cannot be understood. At the start.
pub(crate) fn check() {
    for name in [c"HG_SHM", c"HG_PKG"] {
        if let Some(text) = variable(name).filter(|text| parse_size(text).is_none()) {
            let name = name.to_str().unwrap_or_default();
            report!(Error, "{name}={text}: want CAP or INIT:CAP, CAP from 4m to 32g; using the server's own size");
        }
    }
}

/// The options of shared memory, with what the operator asks for beside its size.
pub(crate) fn shaped<'a>(options: Options<'a>) -> Options<'a> {
    let tier = variable(c"HG_TIER").unwrap_or("base");
    if !["base", "thp", "hugetlb", "auto"].contains(&tier) {
        report!(Error, "HG_TIER={tier}: want base, thp, hugetlb or auto for shared memory; using base");
    }
    // The core has told if it is none.
    let profile = variable(c"HG_PROFILE").and_then(|text| Profile::parse(text).ok());
    Options {
        profile,
        huge: matches!(tier, "thp" | "hugetlb" | "auto"),
        // Memory that the server mapped is not of the pool.
        hugetlb: tier == "hugetlb" && options.memory.is_none(),
        pin: variable(c"HG_PIN") == Some("1"),
        ..options
    }
}

/// `HG_SIP_HOOK`.
pub(crate) fn hook() -> Hook {
    match variable(c"HG_SIP_HOOK") {
        None | Some("late") => Hook::Late,
        Some("patch") => Hook::Patch,
        Some("off") => Hook::Off,
        Some(text) => {
            report!(Error, "HG_SIP_HOOK={text}: want late, patch or off; using late");
            Hook::Late
        }
    }
}

fn parse_size(text: &str) -> Option<Size> {
    let (init, cap) = match text.split_once(':') {
        Some((init, cap)) => (bytes(init)?, bytes(cap)?),
        None => (0, bytes(text)?),
    };
    (init <= cap && (LEAST_CAP..=GREATEST_CAP).contains(&cap)).then_some(Size { init, cap })
}

/// A size: digits, and k, m or g (powers of 1024) in either case.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_a_cap_or_an_initial_size_and_a_cap() {
        assert_eq!(parse_size("64m"), Some(Size { init: 0, cap: 64 << 20 }));
        assert_eq!(parse_size("16m:2g"), Some(Size { init: 16 << 20, cap: 2 << 30 }));
        assert_eq!(parse_size("8388608:16M"), Some(Size { init: 8 << 20, cap: 16 << 20 }));
        for bad in ["", "1m", "64", "64t", "2g:1g", "64m:", ":64m", "1m:2m", "-1", "99999999999g", "33g"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_size_of_the_server_fits_an_arena() {
        assert_eq!(Size::of_server(1 << 20).cap, LEAST_CAP);
        assert_eq!(Size::of_server(64 << 20).cap, 64 << 20);
        assert_eq!(Size::of_server(1 << 40).cap, GREATEST_CAP);
    }
}
