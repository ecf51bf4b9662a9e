//! Pages: huge ones, locked ones, and what the kernel shows of a range.
//!
//! What backs a range is never told by the call that asked for it. Two looks do: [`resident`] counts the base pages that
//! are there, and [`huge`] says which pages of the grid one entry of the page tables maps as a whole. Both look at nothing
//! but the range, in this process, so other threads, other processes and a made-up `/proc/meminfo` do not disturb them.

use super::memory::{self, BASE_PAGE, HUGE_PAGE, advise, check};
use super::{Errno, env};

/// Base pages of a huge page.
pub(crate) const BASE_PAGES: usize = HUGE_PAGE / BASE_PAGE;

/// Makes huge pages of whole ones that hold memory, whatever the setting for faults says (Linux 6.1).
pub(crate) fn collapse(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: S9, the kernel moves what the range holds, which no access can see.
    check(unsafe { libc::syscall(libc::SYS_madvise, address, bytes, libc::MADV_COLLAPSE) }).map(drop)
}

/// Asks for base pages, also where the system gives huge ones to everybody.
pub(crate) fn avoid_huge(address: usize, bytes: usize) -> Result<(), Errno> {
    advise(address, bytes, libc::MADV_NOHUGEPAGE)
}

/// Breaks up the huge page of which a part is about to be given back: without that the kernel only unmaps the part, and
/// frees none of it until it is short of memory. MADV_FREE of a part splits; what it says of the part itself the caller's
/// next call makes moot.
pub(crate) fn split(address: usize, bytes: usize) -> Result<(), Errno> {
    advise(address, bytes, libc::MADV_FREE)
}

/// Locks memory as far as it is there, and the rest when it comes: makes no copy of what a fork shares.
pub(crate) fn lock_on_fault(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: S9, locking changes no contents.
    check(unsafe { libc::syscall(libc::SYS_mlock2, address, bytes, libc::MLOCK_ONFAULT) }).map(drop)
}

/// Undoes a lock. Nothing to undo is no error.
pub(crate) fn unlock(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: S9, unlocking changes no contents.
    check(unsafe { libc::syscall(libc::SYS_munlock, address, bytes) }).map(drop)
}

/// Maps pages of the hugetlb pool at an address of the kernel's choice, with a reservation for each.
pub(crate) fn map_hugetlb(bytes: usize) -> Result<usize, Errno> {
    // 2 MiB by its logarithm, whatever size the system's default is.
    let size = (HUGE_PAGE.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
    memory::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
}

/// Moves a whole mapping to an address, in place of what is mapped there.
pub(crate) fn move_to(from: usize, bytes: usize, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: S9, the callers own both ranges, and no object lies in the second one.
    check(unsafe { libc::syscall(libc::SYS_mremap, from, bytes, bytes, flags, to) }).map(drop)
}

/// Puts fresh private memory in place of what is mapped at an address. With `free_only`, only where nothing is.
pub(crate) fn map_plain(address: usize, bytes: usize, free_only: bool) -> Result<(), Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = if free_only { libc::MAP_FIXED_NOREPLACE } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: S9, the callers own the range, and no object lies in it.
    check(unsafe { libc::syscall(libc::SYS_mmap, address, bytes, prot, flags, -1, 0usize) }).map(drop)
}

/// How many base pages of a range are there; `None` if the kernel does not tell. A range of a huge page at most.
pub(crate) fn resident(address: usize, bytes: usize) -> Option<usize> {
    let mut pages = [0u8; BASE_PAGES];
    let count = bytes.div_ceil(BASE_PAGE).min(BASE_PAGES);
    // SAFETY: S9, the kernel writes one byte for each base page of the range, `count` of them.
    let told = unsafe { libc::syscall(libc::SYS_mincore, address, count * BASE_PAGE, pages.as_mut_ptr()) };
    check(told).ok()?;
    Some(pages.iter().take(count).filter(|page| **page & 1 != 0).count())
}

/// A region of [`huge`]'s answer (`struct page_region` of linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The question (`struct pm_scan_arg`).
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

/// `PAGEMAP_SCAN`: _IOWR('f', 16, struct pm_scan_arg).
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30 | (size_of::<Scan>() as libc::c_ulong) << 16 | 0x66 << 8 | 16;

/// `PAGE_IS_HUGE`: mapped by one entry for a huge page, of either kind.
const IS_HUGE: u64 = 1 << 6;

/// Pages that one [`huge`] looks at.
pub(crate) const LOOK: u32 = 64;

/// Which of `count` pages of the grid, [`LOOK`] at most, are huge: a bit each, from the first. `None` if the kernel does not
/// tell (before Linux 6.7, or without /proc).
pub(crate) fn huge(address: usize, count: u32) -> Option<u64> {
    let name = c"/proc/self/pagemap";
    // SAFETY: S9, the path is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
        as i32;
    if fd < 0 {
        return None;
    }
    let end = address + count.min(LOOK) as usize * HUGE_PAGE;
    // Huge pages side by side are one region, so of 64 pages there are no more than 32.
    let mut regions = [Region { start: 0, end: 0, categories: 0 }; LOOK as usize / 2];
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start: address as u64,
        end: end as u64,
        regions: regions.as_mut_ptr() as u64,
        regions_length: regions.len() as u64,
        all_of: IS_HUGE,
        told: IS_HUGE,
        ..Scan::default()
    };
    // SAFETY: S9, the kernel reads and writes the one structure, and writes at most the regions that it names.
    let found = unsafe { libc::syscall(libc::SYS_ioctl, fd, PAGEMAP_SCAN, &raw mut scan) };
    // SAFETY: S9, the descriptor belongs to this function alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    let found = check(found).ok()?;
    let mut mask = 0;
    for region in regions.iter().take(found) {
        for page in 0..count.min(LOOK) {
            let start = (address + page as usize * HUGE_PAGE) as u64;
            let whole = region.start <= start && start + HUGE_PAGE as u64 <= region.end;
            mask |= u64::from(whole) << page;
        }
    }
    Some(mask)
}

/// Bytes of this process that cannot be swapped out, as the kernel counts them: locked ones, and those of the hugetlb pool.
pub(crate) fn unswappable_bytes() -> Option<u64> {
    let [locked, hugetlb] = env::fields(c"/proc/self/status", [b"VmLck:", b"HugetlbPages:"]);
    Some(locked? + hugetlb.unwrap_or(0))
}

/// Bytes of this process in transparent huge pages, for kernels that do not tell where they are.
pub(crate) fn huge_bytes() -> Option<u64> {
    let [bytes] = env::fields(c"/proc/self/smaps_rollup", [b"AnonHugePages:"]);
    bytes
}

/// The ioctl's number holds the size of its structure: 96 bytes.
const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610);
