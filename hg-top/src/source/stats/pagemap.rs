//! Which pages a process has: `/proc/PID/pagemap`.
//!
//! A page that a process does not have reads as zeros, if it is private memory; to ask for it anyway would make the kernel give
//! it to the process, and may take as long as the process pleases where it answers page faults itself. Looking first does not
//! make a read safe, as the page may be gone by then: it keeps most of them out of the kernel's waits, some of which (those
//! for FUSE) nothing can interrupt.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::memory::page_bytes;

/// In memory or in swap.
const PRESENT: u64 = 0b11 << 62;

/// The pages of one process, at this moment.
pub struct Pagemap {
    file: File,
    page: u64,
    known: BTreeMap<u64, bool>,
}

impl Pagemap {
    /// Opens it; `None` if the kernel does not tell.
    pub fn open(pid: u32) -> Option<Pagemap> {
        let file = File::open(format!("/proc/{pid}/pagemap")).ok()?;
        Some(Pagemap { file, page: page_bytes(), known: BTreeMap::new() })
    }

    /// Whether the process has each of the pages that `len` bytes from `start` touch, lowest first; `None` if that cannot be
    /// told.
    pub fn range(&self, start: u64, len: u64) -> Option<Vec<bool>> {
        let last = start.checked_add(len.checked_sub(1)?)? / self.page;
        let first = start / self.page;
        let mut entries = vec![0u8; usize::try_from((last - first + 1).checked_mul(8)?).ok()?];
        self.file.read_exact_at(&mut entries, first.checked_mul(8)?).ok()?;
        let entry = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        Some(entries.chunks_exact(8).map(|bytes| entry(bytes) & PRESENT != 0).collect())
    }

    /// Whether the process has the page at `address`. Asks the kernel once for each page.
    pub fn has(&mut self, address: u64) -> bool {
        let page = address / self.page;
        if let Some(known) = self.known.get(&page) {
            return *known;
        }
        let has = self.range(page * self.page, 1).is_some_and(|pages| pages == [true]);
        self.known.insert(page, has);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_there_and_others_are_not() {
        let page = page_bytes() as usize;
        let memory = vec![0u8; 64 * page];
        // Never touched: a large block of zeros is fresh memory.
        let start = (memory.as_ptr() as usize).next_multiple_of(page);
        let touched = memory.as_ptr().wrapping_add(start + 20 * page - memory.as_ptr() as usize).cast_mut();
        // SAFETY: inside the block, which nobody else uses.
        unsafe { touched.write_volatile(1) };
        let mut pagemap = Pagemap::open(std::process::id()).unwrap();
        let start = start as u64;
        let page = page as u64;
        // From the last byte of one page to the first of another: all pages that are touched.
        let pages = pagemap.range(start + 19 * page - 1, 2 * page + 2).unwrap();
        assert_eq!((pages.len(), pages[2]), (4, true));
        assert!(pagemap.has(start + 20 * page) && pagemap.has(start + 20 * page + 5));
        assert!(!pagemap.has(16) && !pagemap.has(u64::MAX));
        assert_eq!(pagemap.range(16, 0), None);
        assert_eq!(pagemap.range(u64::MAX, 2), None);
    }
}
