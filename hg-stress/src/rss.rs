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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_shows() {
        let rss = Rss::open().expect("/proc");
        let before = rss.bytes();
        let touched = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(rss.bytes() >= before + (30 << 20));
        drop(touched);
    }
}
