//! Address space and memory: reserve, commit, give back, lock into RAM.
//!
//! Raw system calls, because a program's own wrapper of `mmap` may allocate.

use super::Errno;
use core::ffi::CStr;
use core::ptr::null_mut;

/// Size of a base page, bytes. Only used where a wrong guess wastes memory but breaks nothing.
pub(crate) const BASE_PAGE: usize = 4096;

/// Bytes of a huge page, the unit of an arena's grid.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

pub(super) fn check(result: libc::c_long) -> Result<usize, Errno> {
    if result == -1 { Err(Errno::last()) } else { Ok(result as usize) }
}

pub(super) fn map(bytes: usize, prot: i32, flags: i32, fd: i32) -> Result<usize, Errno> {
    // SAFETY: S9, a mapping at an address of the kernel's choice touches no existing object.
    check(unsafe { libc::syscall(libc::SYS_mmap, null_mut::<u8>(), bytes, prot, flags, fd, 0usize) })
}

/// Reserves address space that no access reaches, aligned to a huge page.
pub(crate) fn reserve(bytes: usize) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let raw = map(bytes.checked_add(HUGE_PAGE).ok_or(Errno(libc::ENOMEM))?, libc::PROT_NONE, flags, -1)?;
    let start = raw.next_multiple_of(HUGE_PAGE);
    unmap(raw, start - raw);
    unmap(start + bytes, HUGE_PAGE - (start - raw));
    Ok(start)
}

/// Maps memory that is zero at its first touch.
pub(crate) fn map_zero(bytes: usize) -> Result<usize, Errno> {
    map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

/// Reserves address space at a certain place; EEXIST if something is mapped there.
pub(crate) fn reserve_at(address: usize, bytes: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: S9, the kernel replaces nothing.
    let got = check(unsafe { libc::syscall(libc::SYS_mmap, address, bytes, libc::PROT_NONE, flags, -1, 0usize) })?;
    if got == address {
        return Ok(());
    }
    // Kernels before 4.17 take the address for a hint.
    unmap(got, bytes);
    Err(Errno(libc::EEXIST))
}

/// Makes reserved address space readable and writable. The memory is zero at its first touch.
pub(crate) fn commit(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: S9, the callers pass parts of their own reservation only.
    check(unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, libc::PROT_READ | libc::PROT_WRITE) }).map(drop)
}

/// Unmaps a part of a reservation; a failure leaves it mapped, which costs address space only.
pub(crate) fn unmap(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: S9, the callers pass parts of their own reservation that hold nothing.
        unsafe { libc::syscall(libc::SYS_munmap, address, bytes) };
    }
}

/// Gives private memory back to the system; it is zero when touched again.
pub(crate) fn give_back(address: usize, bytes: usize) -> Result<(), Errno> {
    advise(address, bytes, libc::MADV_DONTNEED)
}

/// Asks for transparent huge pages at the first touch.
pub(crate) fn advise_huge(address: usize, bytes: usize) -> Result<(), Errno> {
    advise(address, bytes, libc::MADV_HUGEPAGE)
}

/// Touches memory so that it is there, without a fault later.
pub(crate) fn populate(address: usize, bytes: usize) -> Result<(), Errno> {
    advise(address, bytes, libc::MADV_POPULATE_WRITE)
}

pub(super) fn advise(address: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: S9, the callers pass parts of their own reservation that hold no object.
    check(unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) }).map(drop)
}

/// Locks memory into RAM.
pub(crate) fn pin(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: S9, locking changes no contents.
    check(unsafe { libc::syscall(libc::SYS_mlock, address, bytes) }).map(drop)
}

/// Makes memory of a shared mapping go; it is zero when touched again.
pub(crate) fn remove(address: usize, bytes: usize) -> Result<(), Errno> {
    advise(address, bytes, libc::MADV_REMOVE)
}

/// Takes away all access to a part of a mapping.
pub(crate) fn protect(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: S9, the callers pass parts of their own mapping that hold nothing.
    check(unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, libc::PROT_NONE) }).map(drop)
}

/// Whether the kernel commits no more than it could back: then the first touch of a memfd's page can be refused, by SIGBUS.
pub(crate) fn overcommit_is_strict() -> bool {
    let mut mode = [0; 2];
    read_file(c"/proc/sys/vm/overcommit_memory", &mut mode).is_some_and(|text| text.starts_with(b"2"))
}

/// Maps memory for an arena made by handle at a multiple of a huge page: shared memory is a memfd's, private memory anonymous.
pub(crate) fn map_arena(name: &CStr, bytes: usize, shared: bool) -> Result<usize, Errno> {
    let start = reserve(bytes)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
    let mapped = if shared {
        with_memfd(name, bytes, |fd| map_at(start, bytes, prot, libc::MAP_SHARED | flags, fd))
            .unwrap_or_else(|_| map_at(start, bytes, prot, libc::MAP_SHARED | libc::MAP_ANONYMOUS | flags, -1))
    } else {
        map_at(start, bytes, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1)
    };
    mapped.inspect_err(|_| unmap(start, bytes))
}

/// Maps a file at a certain place, shared with all who map it, with all access; EEXIST if something is mapped there.
pub(crate) fn map_file(address: usize, bytes: usize, fd: i32) -> Result<(), Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let got = map_at(address, bytes, prot, libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE, fd)?;
    if got == address {
        return Ok(());
    }
    // Kernels before 4.17 take the address for a hint.
    unmap(got, bytes);
    Err(Errno(libc::EEXIST))
}

/// Puts a window of shared memory of the hugetlb pool in place of a part of a mapping. Nothing is reserved: each page has to be
/// filled before it is used.
pub(crate) fn map_pool_window(address: usize, bytes: usize) -> Result<(), Errno> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
    // SAFETY: S9, the name is a C string; the descriptor belongs to this function alone.
    let fd = check(unsafe { libc::syscall(libc::SYS_memfd_create, c"hg.pool".as_ptr(), flags) })? as i32;
    // SAFETY: as above.
    let sized = check(unsafe { libc::syscall(libc::SYS_ftruncate, fd, bytes) });
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let mapped = sized.and_then(|_| map_at(address, bytes, prot, fixed, fd));
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    mapped.map(drop)
}

fn map_at(address: usize, bytes: usize, prot: i32, flags: i32, fd: i32) -> Result<usize, Errno> {
    // SAFETY: S9, the callers replace a reservation of their own, or nothing.
    check(unsafe { libc::syscall(libc::SYS_mmap, address, bytes, prot, flags, fd, 0usize) })
}

/// Makes a memfd of so many bytes, uses it, and closes it again. An error if there are none to be had.
fn with_memfd<R>(name: &CStr, bytes: usize, make_use: impl FnOnce(i32) -> R) -> Result<R, Errno> {
    // SAFETY: S9, the name is a C string; the descriptor belongs to this function alone.
    let fd = check(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) })? as i32;
    // SAFETY: as above.
    let sized = check(unsafe { libc::syscall(libc::SYS_ftruncate, fd, bytes) });
    let result = sized.map(|_| make_use(fd));
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    result
}

/// Maps memory for a stats page, shared by all processes that have the mapping or not.
pub(crate) fn map_stats(name: &CStr, bytes: usize, shared: bool) -> Result<usize, Errno> {
    if !shared {
        return map_named(name, bytes);
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let mapped = with_memfd(name, bytes, |fd| map(bytes, prot, libc::MAP_SHARED, fd))
        .unwrap_or_else(|_| map(bytes, prot, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1))?;
    if overcommit_is_strict() {
        populate(mapped, bytes).inspect_err(|_| unmap(mapped, bytes))?;
    }
    Ok(mapped)
}

/// Maps private memory backed by a memfd, so that its name shows in `/proc/PID/maps`; anonymous memory where memfds are
/// not to be had. The descriptor is closed again: daemons close all of theirs and reuse the numbers.
pub(crate) fn map_named(name: &CStr, bytes: usize) -> Result<usize, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let mapped = with_memfd(name, bytes, |fd| map(bytes, prot, libc::MAP_PRIVATE, fd)).flatten();
    // Under strict overcommit all pages are touched now.
    let mapped = mapped.and_then(|address| match overcommit_is_strict().then(|| populate(address, bytes)) {
        Some(Err(errno)) => {
            unmap(address, bytes);
            Err(errno)
        }
        _ => Ok(address),
    });
    mapped.or_else(|_| map(bytes, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1))
}

/// Reads the start of a file into a buffer; `None` if it cannot be opened or read.
pub(crate) fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: S9, the path is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
        as i32;
    if fd < 0 {
        return None;
    }
    let mut length = 0;
    loop {
        let rest = buffer.get_mut(length..).unwrap_or_default();
        // SAFETY: S9, the kernel writes at most the length of the buffer that is left.
        let got = unsafe { libc::syscall(libc::SYS_read, fd, rest.as_mut_ptr(), rest.len()) };
        if got <= 0 {
            break;
        }
        length += got as usize;
    }
    // SAFETY: S9, the descriptor belongs to this function alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    buffer.get(..length)
}
