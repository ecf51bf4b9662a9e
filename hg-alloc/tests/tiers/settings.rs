//! What the administrator set, and what a container shows.

use super::{MIB, PAGE, filled, first_page, kernel, page_tier, stage, steps, tier, tier_bytes};
use hg_probes::words::{Tier, TierReason};

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const NEVER: &str = "always madvise [never]\n";

/// In the parent: true, after the child ran. Without root: true, saying so.
fn as_root(name: &str, variables: &[(&str, &str)]) -> bool {
    if !stage::is_root() {
        println!("skipped: {name} needs root for a mount namespace");
        return true;
    }
    stage::in_child(name, variables, &[stage::User::Same])
}

#[test]
fn never_is_respected_by_auto() {
    if as_root("settings::never_is_respected_by_auto", &[("HG_TIER", "auto")]) {
        return;
    }
    if !kernel::replace(ENABLED, NEVER) {
        return;
    }
    let block = filled(12 * MIB, 1);
    assert_eq!(tier(), (Some(Tier::Base), Some(TierReason::SysfsNever)));
    // By advice, and by collapse; the third is for 64 KiB, unless the machine has them.
    assert!(steps(TierReason::SysfsNever) >= 2);
    let first = first_page(block);
    assert_eq!(kernel::smaps(first, first + 4 * PAGE).huge_kib, 0);
}

#[test]
fn never_is_respected_by_what_a_named_tier_steps_down_to() {
    if as_root("settings::never_is_respected_by_what_a_named_tier_steps_down_to", &[("HG_TIER", "thp")]) {
        return;
    }
    if !kernel::replace(ENABLED, NEVER) {
        return;
    }
    let _block = filled(12 * MIB, 1);
    assert_eq!(tier(), (Some(Tier::Base), Some(TierReason::SysfsNever)));
}

#[test]
fn never_does_not_hold_for_a_collapse_that_was_named() {
    if as_root("settings::never_does_not_hold_for_a_collapse_that_was_named", &[("HG_TIER", "collapse")]) {
        return;
    }
    if !kernel::replace(ENABLED, NEVER) {
        return;
    }
    let _block = filled(12 * MIB, 1);
    assert_eq!(tier(), (Some(Tier::Collapsed), Some(TierReason::Obtained)));
}

#[test]
fn a_container_that_shows_no_huge_pages_hides_none() {
    if as_root("settings::a_container_that_shows_no_huge_pages_hides_none", &[("HG_TIER", "thp")]) {
        return;
    }
    let zeroed = |line: &str| match line.split_once(':') {
        Some((name, _)) if name.contains("Huge") => format!("{name}:       0 kB\n"),
        _ => format!("{line}\n"),
    };
    let text: String = std::fs::read_to_string("/proc/meminfo").expect("meminfo").lines().map(zeroed).collect();
    if !kernel::replace("/proc/meminfo", &text) {
        return;
    }
    let block = filled(12 * MIB, 1);
    if kernel::chosen("enabled").is_some_and(|word| word == "never") {
        return println!("skipped: this kernel gives no huge pages");
    }
    assert_eq!(tier(), (Some(Tier::Thp), Some(TierReason::Obtained)));
    let first = first_page(block);
    assert_eq!(kernel::smaps(first, first + 5 * PAGE).huge_kib, 5 * 2048);
}

#[test]
fn a_tier_is_verified_where_proc_is_closed() {
    if stage::in_child(
        "settings::a_tier_is_verified_where_proc_is_closed",
        &[("HG_TIER", "thp")],
        &[stage::User::Same, stage::User::Nobody],
    ) {
        return;
    }
    // For root the file stays open to read; nobody cannot.
    stage::hide_proc();
    let _block = filled(12 * MIB, 1);
    let _more = filled(24 * MIB, 1);
    let setting = kernel::chosen("enabled");
    if setting.is_some_and(|word| word != "never") {
        assert_eq!(tier(), (Some(Tier::Thp), Some(TierReason::Obtained)));
    }
}

#[test]
fn pages_of_64_kib_where_they_are_for_everybody() {
    middle("settings::pages_of_64_kib_where_they_are_for_everybody", "always");
}

#[test]
fn pages_of_64_kib_where_they_are_by_advice() {
    middle("settings::pages_of_64_kib_where_they_are_by_advice", "madvise");
}

/// The setting is the machine's: there is no other way to have the kernel act by it.
fn middle(name: &str, word: &str) {
    let set_up = || kernel::change("hugepages-64kB/enabled", word);
    if stage::in_child_with(name, &[("HG_TIER", "64k")], &[stage::User::Same, stage::User::Nobody], set_up) {
        return;
    }
    if kernel::chosen("enabled").is_some_and(|word| word == "always") {
        return println!("skipped: huge pages are for everybody here");
    }
    let block = super::raw::malloc(12 * MIB);
    let first = first_page(block);
    // One touch brings 64 KiB, and no more.
    let place = (first + PAGE + MIB) as *mut u8;
    // SAFETY: within the block.
    unsafe { place.write_volatile(1) };
    assert_eq!(tier(), (Some(Tier::Mid), Some(TierReason::Obtained)));
    assert_eq!(page_tier(first + PAGE), Some(Tier::Mid));
    assert_eq!(tier_bytes(Tier::Mid), 16 * MIB);
    let around = kernel::smaps(first + PAGE + MIB, first + PAGE + MIB + MIB / 2);
    assert_eq!((around.resident_kib, around.huge_kib), (64, 0));
}

#[test]
fn pages_of_64_kib_that_are_switched_off() {
    let name = "settings::pages_of_64_kib_that_are_switched_off";
    if stage::in_child(name, &[("HG_TIER", "64k")], &[stage::User::Same, stage::User::Nobody]) {
        return;
    }
    let reason = match kernel::chosen("hugepages-64kB/enabled").as_deref() {
        Some("never") => TierReason::SysfsNever,
        None => TierReason::NotOffered,
        Some(_) => return println!("skipped: pages of 64 KiB are switched on"),
    };
    let _block = filled(12 * MIB, 1);
    assert_eq!(tier(), (Some(Tier::Base), Some(reason)));
}
