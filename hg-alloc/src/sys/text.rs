//! Texts of the kernel: files of `/proc`, `/sys` and control groups, read line by line, and what stands in a line.
//!
//! A malloc may run on a small stack, so a file goes through a buffer of 1 KiB, and a path has at most 512 bytes; a longer
//! line is cut, a longer path names no file. The parsers are functions of the bytes alone.

use core::ffi::CStr;

/// Bytes of a line that are seen.
const LINE: usize = 1024;

/// A path under construction: a root, and parts behind it. One that is too long names no file.
#[derive(Clone, Copy)]
pub(crate) struct Path<const N: usize = 512> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Path<N> {
    pub(crate) const fn new() -> Self {
        Path { bytes: [0; N], length: 0 }
    }

    /// The path with a part behind it, as it is: slashes are the caller's.
    pub(crate) fn with(mut self, part: &[u8]) -> Self {
        self.push(part);
        self
    }

    /// Puts a part behind the path.
    pub(crate) fn push(&mut self, part: &[u8]) {
        let end = self.length.saturating_add(part.len());
        // One byte stays for the zero that ends a C string.
        match self.bytes.get_mut(self.length..end) {
            Some(place) if end < N => place.copy_from_slice(part),
            _ => {}
        }
        self.length = end;
    }

    /// Cuts the path behind its first `length` bytes.
    pub(crate) fn cut(&mut self, length: usize) {
        if length < self.length {
            self.length = length;
            if let Some(rest) = self.bytes.get_mut(length..) {
                rest.fill(0);
            }
        }
    }

    /// The bytes, without the zero; none if the path is too long.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.length < N { self.bytes.get(..self.length).unwrap_or_default() } else { &[] }
    }

    /// As a C string; none if the path is too long.
    pub(crate) fn c_str(&self) -> Option<&CStr> {
        if self.length < N { CStr::from_bytes_until_nul(&self.bytes).ok() } else { None }
    }
}

/// Calls `see` with each line of a file until it returns false. Returns whether the file could be opened.
pub(crate) fn lines<const N: usize>(path: &Path<N>, mut see: impl FnMut(&[u8]) -> bool) -> bool {
    let Some(name) = path.c_str() else { return false };
    // SAFETY: S9, the path is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
        as i32;
    if fd < 0 {
        return false;
    }
    let mut buffer = [0u8; LINE];
    let mut length = 0;
    let mut cut = false;
    'file: loop {
        let rest = buffer.get_mut(length..).unwrap_or_default();
        // SAFETY: S9, the kernel writes at most the length of the buffer that is left.
        let got = unsafe { libc::syscall(libc::SYS_read, fd, rest.as_mut_ptr(), rest.len()) };
        if got <= 0 {
            // The last line of a file may lack its end.
            if length > 0 && !cut {
                see(buffer.get(..length).unwrap_or_default());
            }
            break;
        }
        length = (length + got as usize).min(LINE);
        let mut start = 0;
        while let Some(end) = find(buffer.get(start..length).unwrap_or_default(), b"\n") {
            let whole = !core::mem::take(&mut cut);
            if whole && !see(buffer.get(start..start + end).unwrap_or_default()) {
                break 'file;
            }
            start += end + 1;
        }
        if start == 0 && length == LINE {
            // The first part of a line that the buffer does not hold; the rest of it is passed over.
            if !core::mem::replace(&mut cut, true) && !see(&buffer) {
                break;
            }
            length = 0;
        } else {
            buffer.copy_within(start..length, 0);
            length -= start;
        }
    }
    // SAFETY: S9, the descriptor belongs to this function alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    true
}

/// The number that a file consists of, such as `/proc/sys/vm/max_map_count`; `None` for a word such as `max`.
pub(crate) fn number_in<const N: usize>(path: &Path<N>) -> Option<u64> {
    let mut found = None;
    lines(path, |line| {
        found = number(line);
        false
    });
    found
}

/// The decimal number at the start of a text, behind blanks.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let mut value = None;
    for digit in digits {
        value = Some(value.unwrap_or(0u64).checked_mul(10)?.checked_add(u64::from(digit - b'0'))?);
    }
    value
}

/// The bytes that a line such as `MemAvailable:   24182740 kB` tells, if it is that field's.
pub(crate) fn kib_field(line: &[u8], field: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(field)?.strip_prefix(b":")?;
    number(rest)?.checked_mul(1024)
}

/// The number of a line such as `inactive_file 24576`, if it is that field's.
pub(crate) fn stat_field(line: &[u8], field: &[u8]) -> Option<u64> {
    number(line.strip_prefix(field)?.strip_prefix(b" ")?)
}

/// Where a text first holds another.
pub(crate) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len().max(1)).position(|window| window == part)
}

/// Whether a list with commas has an item.
pub(crate) fn list_has(list: &[u8], item: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|found| found == item)
}

/// A number in decimal digits, written to the end of a buffer.
pub(crate) fn decimal(mut number: u64, buffer: &mut [u8; 20]) -> &str {
    let mut start = buffer.len();
    for place in buffer.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
        start -= 1;
        if number == 0 {
            break;
        }
    }
    core::str::from_utf8(buffer.get(start..).unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn numbers_and_fields() {
        assert_eq!(number(b"  42 kB"), Some(42));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!(number(b"max"), None);
        assert_eq!(kib_field(b"MemAvailable:   3 kB", b"MemAvailable"), Some(3072));
        assert_eq!(kib_field(b"MemAvailableX:   3 kB", b"MemAvailable"), None);
        assert_eq!(kib_field(b"VmSwap:\t18014398509481985 kB", b"VmSwap"), None);
        assert_eq!(stat_field(b"inactive_file 4096", b"inactive_file"), Some(4096));
        assert_eq!(stat_field(b"inactive_file_x 4096", b"inactive_file"), None);
        assert!(list_has(b"cpu,memory", b"memory") && !list_has(b"cpu,memory2", b"memory"));
        let mut digits = [0; 20];
        assert_eq!(decimal(0, &mut digits), "0");
        assert_eq!(decimal(u64::MAX, &mut digits), "18446744073709551615");
    }

    #[test]
    fn paths_that_are_too_long_name_no_file() {
        let mut path: Path<16> = Path::new().with(b"/proc").with(b"/self");
        assert_eq!(path.bytes(), b"/proc/self");
        path.push(b"/maps/and/more");
        assert!(path.c_str().is_none() && path.bytes().is_empty());
        path.cut(5);
        assert_eq!(path.c_str(), Some(c"/proc"));
        assert!(!lines(&Path::<16>::new(), |_| true), "the empty path opens nothing");
    }

    #[test]
    fn lines_of_any_length_come_whole_or_cut() {
        let file = std::env::temp_dir().join(std::format!("hg-lines-{}", std::process::id()));
        let long = "x".repeat(2 * LINE + 10);
        let exact = "y".repeat(LINE);
        std::fs::write(&file, std::format!("a\n\n{long}\nb\n{exact}\nlast")).expect("a temporary file");
        let path: Path = Path::new().with(file.as_os_str().as_encoded_bytes());
        let mut seen: Vec<String> = Vec::new();
        assert!(lines(&path, |line| {
            seen.push(String::from_utf8_lossy(line).into_owned());
            true
        }));
        let expected: [&str; 6] = ["a", "", &long[..LINE], "b", &exact, "last"];
        let mut first = 0;
        lines(&path, |_| {
            first += 1;
            first < 2
        });
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(seen, expected);
        assert_eq!(first, 2, "reading ends when the caller has seen enough");
    }
}
