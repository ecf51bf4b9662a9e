//! Waiting for whatever comes first: a key, an event of the ring buffer, a signal, or the next sample.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits until one of `fds` is readable, at most `timeout`; tells which are.
pub fn wait<const N: usize>(fds: [Option<BorrowedFd<'_>>; N], timeout: Duration) -> [bool; N] {
    // A negative fd is ignored by the call.
    let mut polls =
        fds.map(|fd| libc::pollfd { fd: fd.map_or(-1, |fd| fd.as_raw_fd()), events: libc::POLLIN, revents: 0 });
    let ms = i32::try_from(timeout.as_millis().max(u128::from(!timeout.is_zero()))).unwrap_or(i32::MAX);
    // SAFETY: the array and its length belong together, and the descriptors are borrowed for the call.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, ms) };
    polls.map(|poll| ready > 0 && poll.revents != 0)
}

/// Whether `fd` can be read without waiting.
pub fn readable(fd: BorrowedFd<'_>) -> bool {
    wait([Some(fd)], Duration::ZERO)[0]
}

/// Whether the other end of `fd` is gone for good: the terminal was closed. Reading on would find its end for ever.
pub fn hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure, and the descriptor is borrowed for the call.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    ready > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_what_is_readable_wakes() {
        let (mut near, far) = UnixStream::pair().unwrap();
        assert!(!readable(far.as_fd()));
        near.write_all(b"x").unwrap();
        assert!(!hung_up(far.as_fd()));
        assert_eq!(wait([None, Some(far.as_fd()), Some(near.as_fd())], Duration::from_secs(1)), [false, true, false]);
        drop(near);
        assert!(hung_up(far.as_fd()));
    }
}
