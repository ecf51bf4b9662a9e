//! Atomic operations on words of map values, which several tasks of one CPU change in turns.
//!
//! Rust's description of the BPF target knows no read-modify-write atomics, although BPF has them since its third
//! instruction set (kernel 5.12). So this module, and no other, uses the intrinsics behind them.

use core::intrinsics::{
    AtomicOrdering::{Relaxed, SeqCst},
    atomic_cxchg, atomic_xadd, atomic_xsub,
};

/// Attempts to raise a maximum; each failure means that another task raised it meanwhile.
const RAISE_TRIES: usize = 4;

/// Adds to a word.
///
/// # Safety
/// `word` is an aligned word of a live map value that is changed by this module only.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, amount: u64) {
    // SAFETY: as this function demands.
    unsafe { atomic_xadd::<u64, u64, { Relaxed }>(word, amount) };
}

/// Adds to a word and returns what it was.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn fetch_add(word: *mut u64, amount: u64) -> u64 {
    // Not relaxed: for that LLVM 22 picks the instruction that returns nothing and takes `amount` for the result.
    // SAFETY: as this function demands.
    unsafe { atomic_xadd::<u64, u64, { SeqCst }>(word, amount) }
}

/// Takes from a word.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn take(word: *mut u64, amount: u64) {
    // SAFETY: as this function demands.
    unsafe { atomic_xsub::<u64, u64, { Relaxed }>(word, amount) };
}

/// Raises a word to `value` if it is lower.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn raise(word: *mut u64, value: u64) {
    // SAFETY: as this function demands. A plain load of a word is atomic, and the backend knows no other.
    let mut seen = unsafe { word.read_volatile() };
    for _ in 0..RAISE_TRIES {
        if seen >= value {
            return;
        }
        // SAFETY: as this function demands.
        let (now, done) = unsafe { atomic_cxchg::<u64, { Relaxed }, { Relaxed }>(word, seen, value) };
        if done {
            return;
        }
        seen = now;
    }
}
