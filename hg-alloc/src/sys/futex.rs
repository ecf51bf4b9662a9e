//! The futex: sleep on a word, wake who sleeps on it.

use core::sync::atomic::AtomicU32;

/// Sleeps while `word` holds `expected`, for `timeout_ns` at most. Returns early for any reason; the caller looks again.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let timeout =
        libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as i64, tv_nsec: (timeout_ns % 1_000_000_000) as i64 };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: S9, the word and the structure outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, &timeout) };
}

/// Wakes up to `count` sleepers.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    // SAFETY: S9, the word is only used as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count) };
}
