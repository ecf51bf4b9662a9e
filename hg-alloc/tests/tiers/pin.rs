//! Memory that is locked into RAM, with and without permission.

use super::{MIB, filled, first_page, holds, kernel, page, page_pinned, raw, stage};
use hg_probes::words::Cause;
use std::sync::atomic::Ordering::Relaxed;

fn pinned() -> u64 {
    page().header.pinned_bytes.load(Relaxed)
}

#[test]
fn pinned_memory_is_what_the_kernel_locked() {
    if stage::in_child("pin::pinned_memory_is_what_the_kernel_locked", &[("HG_PIN", "1")], &[stage::User::Same]) {
        return;
    }
    if !super::capability::may_lock() {
        return println!("skipped: without privileges the limit decides");
    }
    let block = filled(30 * MIB, 1);
    assert_eq!((pinned(), kernel::status_kib("VmLck")), (32 << 20, 32 << 10));
    let first = first_page(block);
    assert_eq!(kernel::smaps(first, first + 14 * 2 * MIB).locked_kib, 28 << 10);
    assert!(page_pinned(first));
    raw::free(block);
    assert!(hg_alloc::trim(), "locked memory goes back");
    assert!(kernel::status_kib("VmLck") <= 4 << 10 && kernel::status_kib("VmRSS") < 24 << 10);
    assert_eq!(pinned(), kernel::status_kib("VmLck") * 1024);
    // What is used again is locked again, before anybody has it.
    let block = raw::malloc(28 * MIB);
    assert!(kernel::status_kib("VmLck") >= 28 << 10);
    assert_eq!(pinned(), kernel::status_kib("VmLck") * 1024);
    let first = first_page(block);
    assert_eq!(kernel::smaps(first, first + 12 * 2 * MIB).resident_kib, 24 << 10);
    // Whoever unlocks all there is, is found out at the next growth.
    // SAFETY: no preconditions.
    assert_eq!(unsafe { libc::munlockall() }, 0);
    let _more = filled(64 * MIB, 2);
    assert_eq!(pinned(), kernel::status_kib("VmLck") * 1024);
}

#[test]
fn growth_goes_on_without_permission_and_says_so() {
    let name = "pin::growth_goes_on_without_permission_and_says_so";
    if stage::in_child(name, &[("HG_PIN", "1"), (stage::MEMLOCK, "65536")], &[stage::User::Nobody]) {
        return;
    }
    let block = filled(12 * MIB, 1);
    assert_eq!((pinned(), kernel::status_kib("VmLck")), (0, 0));
    assert_eq!(page().header.pin_errno.load(Relaxed), libc::ENOMEM as u32);
    assert_eq!(page().header.pin_wanted.load(Relaxed), 1);
    assert!(!page_pinned(first_page(block)));
    assert!(page().header.grows_refused[Cause::Memlock as usize].load(Relaxed) >= 1);
    assert!(holds(block, 12 * MIB, 1));
}

#[test]
fn a_limit_with_some_room_is_filled() {
    let variables = [("HG_PIN", "1"), (stage::MEMLOCK, "6291456")];
    if stage::in_child("pin::a_limit_with_some_room_is_filled", &variables, &[stage::User::Nobody]) {
        return;
    }
    // A growth is more than the limit allows, but the next one locks pages of it, one by one.
    let first = filled(12 * MIB, 1);
    assert_eq!((pinned(), kernel::status_kib("VmLck")), (0, 0));
    let second = filled(12 * MIB, 2);
    assert_eq!((pinned(), kernel::status_kib("VmLck")), (6 << 20, 6 << 10));
    assert!(page_pinned(first_page(first)) && !page_pinned(first_page(second)));
    assert_eq!(page().header.pin_errno.load(Relaxed), libc::ENOMEM as u32);
    // Locked or not, all of it goes back, and comes again.
    raw::free(first);
    raw::free(second);
    hg_alloc::trim();
    assert_eq!(pinned(), kernel::status_kib("VmLck") * 1024);
    assert!(page().header.committed_bytes.load(Relaxed) <= 8 << 20);
    let block = filled(26 * MIB, 3);
    assert!(holds(block, 26 * MIB, 3));
    assert!(kernel::status_kib("VmLck") <= 6 << 10);
    assert_eq!(pinned(), kernel::status_kib("VmLck") * 1024);
}
