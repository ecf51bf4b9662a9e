//! Resident memory of this process, read without allocating so that measuring changes nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A reader of the process's resident set size.
#[derive(Debug)]
pub struct Rss {
    statm: File,
    page_bytes: u64,
}

impl Rss {
    /// Opens `/proc/self/statm`.
    pub fn open() -> std::io::Result<Rss> {
        // SAFETY: sysconf has no preconditions.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        Ok(Rss { statm: File::open("/proc/self/statm")?, page_bytes })
    }

    /// Resident bytes now (anonymous, file and shared; hugetlb pages are not among them).
    pub fn bytes(&self) -> u64 {
        let mut text = [0; 128];
        let length = self.statm.read_at(&mut text, 0).unwrap_or(0);
        let pages =
            std::str::from_utf8(&text[..length]).ok().and_then(|t| t.split(' ').nth(1)).and_then(|t| t.parse().ok());
        pages.unwrap_or(0u64) * self.page_bytes
    }
}

/// Lets go of the resident pages of executable text, of this program and its libraries; those that are needed come back
/// from the page cache. Starting up maps much that never runs again.
pub fn unmap_text() -> std::io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for (start, end) in maps.lines().filter_map(text) {
        // SAFETY: a private mapping of a file that can be read and executed, but not written: text is position independent
        // and never relocated, so the file holds what the pages do.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Bounds of a mapping of text, from its line in `/proc/self/maps`.
fn text(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let bounds = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    (words.next() == Some("r-xp") && words.nth(3).is_some_and(|path| path.starts_with('/'))).then_some(bounds)
}

/// Bytes that the machine can give without swapping, by its own estimate.
pub fn available() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| std::io::Error::other("no MemAvailable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_shows() {
        let rss = Rss::open().expect("/proc");
        let before = rss.bytes();
        // Other tests of this process take and free some tens of MiB meanwhile.
        let touched = std::hint::black_box(vec![1u8; 96 << 20]);
        assert!(rss.bytes() >= before + (48 << 20));
        drop(touched);
    }

    #[test]
    fn text_is_told_from_other_mappings_and_comes_back() {
        let text_line = "7f00-7f10 r-xp 00026000 fe:00 1234    /usr/lib/libc.so.6";
        assert_eq!(text(text_line), Some((0x7f00, 0x7f10)));
        for other in [
            "7f00-7f10 r--p 00026000 fe:00 1234 /usr/lib/libc.so.6",
            "7f00-7f10 r-xp 00000000 00:00 0 [vdso]",
            "7f00-7f10 r-xp 00000000 00:00 0",
            "7f00",
            "",
        ] {
            assert_eq!(text(other), None, "{other}");
        }
        unmap_text().expect("/proc");
        assert!(Rss::open().expect("code that still runs").bytes() > 0);
    }

    #[test]
    fn the_machine_has_memory() {
        assert!(available().expect("/proc") > 16 << 20);
    }
}
