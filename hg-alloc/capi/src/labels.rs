//! Words for the numbers of statistics and callbacks: the same as in the probes and on the screen of hg-top.

use core::ffi::c_char;
use hg_probes::words;

crate::versioned!("hg_tier_label" "hg_cause_label" "hg_reason_label" "hg_corruption_label");

/// Bytes of a label with its zero.
const BYTES: usize = 96;

/// A label as a C string.
const fn terminated(label: &str) -> [u8; BYTES] {
    let mut text = [0; BYTES];
    let bytes = label.as_bytes();
    assert!(bytes.len() < BYTES, "a label is too long");
    let mut index = 0;
    while index < bytes.len() {
        text[index] = bytes[index];
        index += 1;
    }
    text
}

/// The labels of one kind of words, by number.
macro_rules! table {
    ($word:ident) => {{
        static LABELS: [[u8; BYTES]; words::$word::ALL.len()] = {
            let mut labels = [[0; BYTES]; words::$word::ALL.len()];
            let mut index = 0;
            while index < labels.len() {
                labels[index] = terminated(words::$word::ALL[index].label());
                index += 1;
            }
            labels
        };
        LABELS.as_slice()
    }};
}

fn label(labels: &'static [[u8; BYTES]], number: u32) -> *const c_char {
    labels.get(number as usize).map_or(c"unknown".as_ptr(), |label| label.as_ptr().cast())
}

/// The word for a tier: what backs memory, such as "4K" or "THP". "unknown" for a number that is none. Lasts for ever.
#[unsafe(no_mangle)]
pub extern "C" fn hg_tier_label(tier: u32) -> *const c_char {
    label(table!(Tier), tier)
}

/// The word for why an arena grew, shrank or was refused, such as "cgroup limit". "unknown" for a number that is none.
/// Lasts for ever.
#[unsafe(no_mangle)]
pub extern "C" fn hg_cause_label(cause: u32) -> *const c_char {
    label(table!(Cause), cause)
}

/// The word for why a lock was taken, such as "refill". "unknown" for a number that is none. Lasts for ever.
#[unsafe(no_mangle)]
pub extern "C" fn hg_reason_label(reason: u32) -> *const c_char {
    label(table!(Reason), reason)
}

/// The word for what was wrong with a refused call, such as "double free". "unknown" for a number that is none. Lasts
/// for ever.
#[unsafe(no_mangle)]
pub extern "C" fn hg_corruption_label(kind: u32) -> *const c_char {
    label(table!(CorruptionKind), kind)
}
