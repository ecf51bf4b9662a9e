//! The environment and the machine: `HG_*` variables, and the number of CPUs.
//!
//! Under AT_SECURE (set-user-id programs, file capabilities) every variable is ignored.

use super::memory;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// CPUs assumed where the kernel does not tell: address space is all a wrong guess costs.
const UNKNOWN_CPUS: usize = 1024;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The value of a variable, if it is set and may be looked at.
pub(crate) fn variable(name: &str) -> Option<&'static str> {
    // SAFETY: S9, reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    // SAFETY: the C library's list of C strings ends with a null pointer; before it is set up the list itself is null.
    // A program that changes its environment at the same time as it first allocates races with getenv as well.
    unsafe {
        let mut entry = environ;
        if entry.is_null() {
            return None;
        }
        while !(*entry).is_null() {
            let bytes = CStr::from_ptr(*entry).to_bytes();
            if let Some(value) = bytes.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
                return core::str::from_utf8(value).ok();
            }
            entry = entry.add(1);
        }
    }
    None
}

/// One more than the highest CPU number this machine can ever have.
pub(crate) fn possible_cpus() -> usize {
    let mut buffer = [0; 256];
    memory::read_file(c"/sys/devices/system/cpu/possible", &mut buffer)
        .and_then(last_number)
        .map_or(UNKNOWN_CPUS, |last| last + 1)
}

/// Bytes of RAM of this machine, 0 if unknown.
pub(crate) fn ram_bytes() -> usize {
    let mut buffer = [0; 128];
    // The first line of the file: "MemTotal:       24606472 kB".
    memory::read_file(c"/proc/meminfo", &mut buffer)
        .and_then(|text| text.split(|byte| *byte == b'\n').next())
        .and_then(last_number)
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// Fields of a file such as `/proc/self/status` in bytes, each named with its colon; the file's first 2 KiB are seen.
pub(crate) fn fields<const N: usize>(file: &CStr, names: [&[u8]; N]) -> [Option<u64>; N] {
    let mut buffer = [0; 2048];
    let text = memory::read_file(file, &mut buffer).unwrap_or_default();
    names.map(|name| {
        let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(name))?;
        Some((last_number(line)? as u64).saturating_mul(1024))
    })
}

/// The last decimal number in a text such as `0-3,8-11` or `MemTotal: 24606472 kB`.
fn last_number(text: &[u8]) -> Option<usize> {
    let mut groups = text.split(|byte| !byte.is_ascii_digit()).filter(|group| !group.is_empty());
    let last = groups.next_back()?;
    core::str::from_utf8(last).ok()?.parse().ok()
}

/// Device and inode of the file that was stderr at the start; 0 if there was none.
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn stderr_file() -> Option<[u64; 2]> {
    // SAFETY: an all-zero `stat` is a valid one.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: S9, the kernel writes the one structure given.
    let status = unsafe { libc::syscall(libc::SYS_fstat, 2, &raw mut stat) };
    (status == 0).then_some([stat.st_dev, stat.st_ino])
}

/// Remembers which file stderr is. Called once, by the first arena's start.
pub(crate) fn remember_stderr() {
    for (word, value) in STDERR.iter().zip(stderr_file().unwrap_or_default()) {
        word.store(value, Relaxed);
    }
}

/// Writes one line to stderr, long after the start: only if that is still the file that it was then (a daemon reuses the
/// number), and only if it takes a line now (a pipe that nobody reads must not stop an allocation).
pub(crate) fn report(parts: &[&str]) {
    let known = [STDERR[0].load(Relaxed), STDERR[1].load(Relaxed)];
    let mut poll = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // SAFETY: S9, the kernel writes the one structure given.
    let ready = unsafe { libc::syscall(libc::SYS_poll, &raw mut poll, 1, 0) } == 1 && poll.revents == libc::POLLOUT;
    if ready && known != [0; 2] && stderr_file() == Some(known) {
        complain(parts);
    }
}

/// Writes one line to stderr, for a user's mistake in the environment. No formatting, no allocation.
pub(crate) fn complain(parts: &[&str]) {
    let mut line = [0u8; 256];
    let mut length = 0;
    for byte in parts.iter().flat_map(|part| part.bytes()) {
        // Control characters of a hostile environment stay out of the terminal.
        let shown = if byte.is_ascii_graphic() || byte == b' ' { byte } else { b'?' };
        if let Some(place) = line.get_mut(length) {
            *place = shown;
            length += 1;
        }
    }
    if let Some(place) = line.get_mut(length.min(255)) {
        *place = b'\n';
    }
    // SAFETY: S9, the buffer holds `length + 1` bytes.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), length.min(255) + 1) };
}

#[cfg(test)]
mod tests {
    use super::last_number;

    #[test]
    fn last_number_of_kernel_texts() {
        assert_eq!(last_number(b"0-3,8-11\n"), Some(11));
        assert_eq!(last_number(b"0\n"), Some(0));
        assert_eq!(last_number(b"MemTotal:       24606472 kB"), Some(24_606_472));
        assert_eq!(last_number(b"none"), None);
        assert_eq!(last_number(b"99999999999999999999999"), None);
    }
}
