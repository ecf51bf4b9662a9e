//! A step of the ladder: what the administrator allows, and one try to have a range backed by one tier.
//!
//! Whether a try succeeded is looked up in the page tables, never told by the call: the memory is new and nobody else's, so
//! if one touch of one byte brought all of a huge page (or of 64 KiB), then it is one. The touched page is given back,
//! because fresh memory holds nothing; what its place will hold is looked up when it was used (`tend.rs`).
//!
//! Lock: none. Caller: `ladder.rs`, for memory that is not published yet.

use crate::sys::memory::{self, BASE_PAGE, HUGE_PAGE};
use crate::sys::pages::{self, BASE_PAGES};
use core::ffi::CStr;
use hg_probes::words::{Tier, TierReason};

/// Bytes of a page of the tier between base and huge pages.
const MID_PAGE: usize = 64 << 10;

/// What a setting of `/sys/kernel/mm/transparent_hugepage` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// The kernel has no such setting.
    Missing,
    Never,
    /// Where it is asked for by advice.
    Advised,
    Always,
    /// As the setting for all sizes.
    Inherit,
}

fn setting(path: &CStr) -> Setting {
    let mut buffer = [0; 64];
    memory::read_file(path, &mut buffer).map_or(Setting::Missing, parse)
}

/// The chosen word of a text such as `always [madvise] never`.
fn parse(text: &[u8]) -> Setting {
    let word = text.split(|byte| *byte == b'[').nth(1).and_then(|rest| rest.split(|byte| *byte == b']').next());
    match word {
        Some(b"always") => Setting::Always,
        Some(b"madvise") => Setting::Advised,
        Some(b"inherit") => Setting::Inherit,
        Some(b"never" | b"deny") => Setting::Never,
        _ => Setting::Missing,
    }
}

/// The setting for pages of one size: its own, or that for all.
fn setting_for(size: &CStr) -> Setting {
    let general = || setting(c"/sys/kernel/mm/transparent_hugepage/enabled");
    match setting(size) {
        Setting::Inherit => general(),
        own => own,
    }
}

fn huge_setting() -> Setting {
    match setting_for(c"/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled") {
        // Kernels before 6.8 have one setting.
        Setting::Missing => setting(c"/sys/kernel/mm/transparent_hugepage/enabled"),
        own => own,
    }
}

/// Whether huge pages may be made of pages in use, which the kernel itself does whatever the setting says.
pub(super) fn may_collapse(forced: bool) -> Result<(), TierReason> {
    match huge_setting() {
        Setting::Missing => Err(TierReason::NotOffered),
        Setting::Never if !forced => Err(TierReason::SysfsNever),
        _ => Ok(()),
    }
}

/// Huge pages at the first touch, by advice.
pub(super) fn advise(address: usize, bytes: usize) -> Result<Tier, TierReason> {
    match huge_setting() {
        Setting::Missing => return Err(TierReason::NotOffered),
        Setting::Never => return Err(TierReason::SysfsNever),
        _ => {}
    }
    memory::advise_huge(address, bytes).map_err(|_| TierReason::AdviceRefused)?;
    let outcome = touch(address, HUGE_PAGE);
    // A refusal leaves the first page as it is: fresh memory that holds something, zeros.
    let _ = memory::give_back(address, HUGE_PAGE);
    outcome.map(|()| Tier::Thp)
}

/// Huge pages by collapse, once the memory is in use: a try with the first page.
pub(super) fn collapse(address: usize, forced: bool) -> Result<Tier, TierReason> {
    may_collapse(forced)?;
    // Nothing can be collapsed where nothing is.
    memory::populate(address, BASE_PAGE).map_err(|_| TierReason::Unverified)?;
    let before = pages::resident(address, HUGE_PAGE);
    let outcome = match pages::collapse(address, HUGE_PAGE) {
        Ok(()) => match (before, pages::resident(address, HUGE_PAGE)) {
            (Some(before), Some(BASE_PAGES)) if before < BASE_PAGES => Ok(Tier::Collapsed),
            (Some(_), Some(_)) => Err(TierReason::NotBacked),
            _ => Err(TierReason::Unverified),
        },
        Err(errno) if errno.0 == libc::EINVAL => Err(TierReason::NotOffered),
        Err(_) => Err(TierReason::NotBacked),
    };
    let _ = memory::give_back(address, HUGE_PAGE);
    outcome
}

/// Pages of 64 KiB at the first touch.
pub(super) fn middle(address: usize, bytes: usize) -> Result<Tier, TierReason> {
    match setting_for(c"/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled") {
        Setting::Missing | Setting::Inherit => return Err(TierReason::NotOffered),
        Setting::Never => return Err(TierReason::SysfsNever),
        Setting::Advised => {
            // The advice is for huge pages as well, but not where a base page stands already: hence one in each.
            for page in (address..address + bytes).step_by(HUGE_PAGE) {
                memory::populate(page, BASE_PAGE).map_err(|_| TierReason::Unverified)?;
            }
            memory::advise_huge(address, bytes).map_err(|_| TierReason::AdviceRefused)?;
        }
        Setting::Always => {}
    }
    let second = address + MID_PAGE;
    let outcome = touch(second, MID_PAGE);
    let whole = pages::resident(address, HUGE_PAGE) == Some(BASE_PAGES);
    let _ = memory::give_back(second, MID_PAGE);
    // Where huge pages are for everybody the kernel gives those, which is better than what was asked for.
    outcome.map(|()| if whole { Tier::Thp } else { Tier::Mid })
}

/// Touches one byte, and looks whether that brought `bytes`.
fn touch(address: usize, bytes: usize) -> Result<(), TierReason> {
    memory::populate(address, BASE_PAGE).map_err(|_| TierReason::Unverified)?;
    match pages::resident(address, bytes) {
        None => Err(TierReason::Unverified),
        Some(count) if count * BASE_PAGE == bytes => Ok(()),
        Some(_) => Err(TierReason::NotBacked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_the_setting() {
        assert_eq!(parse(b"always [madvise] never\n"), Setting::Advised);
        assert_eq!(parse(b"[always] inherit madvise never\n"), Setting::Always);
        assert_eq!(parse(b"always [inherit] madvise never\n"), Setting::Inherit);
        assert_eq!(parse(b"always within_size advise never [deny] force"), Setting::Never);
        for odd in [&b""[..], b"always", b"[", b"[]", b"always [other]", b"]never["] {
            assert_eq!(parse(odd), Setting::Missing);
        }
    }
}
