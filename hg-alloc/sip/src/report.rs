//! Lines for the operator: to stderr as long as that is the file it was when the library was loaded, to syslog after.
//!
//! A daemon closes its stderr or points it elsewhere; then syslog is where the server's own lines go. Lines are put together
//! in a buffer on the stack and allocate nothing, as some tell that there is no memory.

use core::ffi::{c_char, c_int};
use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a line, with its end.
const LINE: usize = 512;

/// Device and inode of stderr when the library was loaded; zeros if there was none.
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

unsafe extern "C" {
    fn syslog(priority: c_int, format: *const c_char, ...);
}

/// A place in the server's code: its file's name, a literal of the server or null, and the line.
pub(crate) struct Place(pub(crate) *const u8, pub(crate) u64);

impl core::fmt::Display for Place {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0.is_null() {
            return to.write_str("an unknown place");
        }
        // SAFETY: a literal of the server or of one of its modules, which it never unloads.
        let file = unsafe { core::ffi::CStr::from_ptr(self.0.cast()) };
        write!(to, "{}:{}", file.to_str().unwrap_or("?"), self.1)
    }
}

/// How much a line matters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Info,
    Error,
}

/// Writes a line: `report!(Info, "format", arguments)`.
macro_rules! report {
    ($level:ident, $($arg:tt)*) => {
        $crate::report::line($crate::report::Level::$level, format_args!($($arg)*))
    };
}
pub(crate) use report;

/// Remembers which file stderr is. Called when the library is loaded.
pub(crate) fn remember_stderr() {
    for (word, value) in STDERR.iter().zip(stderr().unwrap_or_default()) {
        word.store(value, Relaxed);
    }
}

fn stderr() -> Option<[u64; 2]> {
    // SAFETY: an all-zero `stat` is a valid one, and the C library writes no more than that.
    let (status, stat) = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(2, &mut stat), stat)
    };
    (status == 0).then_some([stat.st_dev, stat.st_ino])
}

struct Buffer {
    bytes: [u8; LINE],
    length: usize,
}

impl Write for Buffer {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            // Two bytes stay for the end. Names come from outside: no control character reaches a terminal.
            if self.length < LINE - 2 {
                self.bytes[self.length] = if byte.is_ascii_control() { b'?' } else { byte };
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// See [`report!`]. `errno` is preserved, as callers tell their own callers of it.
pub(crate) fn line(level: Level, text: Arguments<'_>) {
    let mut buffer = Buffer { bytes: [0; LINE], length: 0 };
    // The buffer takes everything, so this cannot fail.
    let _ = buffer.write_fmt(format_args!("hg: {text}"));
    // SAFETY: the location is the calling thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    if stderr().is_some_and(|file| file == [STDERR[0].load(Relaxed), STDERR[1].load(Relaxed)]) {
        buffer.bytes[buffer.length] = b'\n';
        // SAFETY: the buffer holds `length + 1` bytes.
        unsafe { libc::write(2, buffer.bytes.as_ptr().cast(), buffer.length + 1) };
    } else {
        let priority = if level == Level::Error { libc::LOG_ERR } else { libc::LOG_INFO };
        // SAFETY: the format names one C string, and the buffer ends with zeros.
        unsafe { syslog(priority, c"%s".as_ptr(), buffer.bytes.as_ptr()) };
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}
