//! Files and folders that hold arenas: opened without following links, looked at before they are used.
//!
//! Descriptors are close-on-exec and closed when dropped: daemons close all of theirs and reuse the numbers.

use super::Errno;
use super::memory::check;
use super::text::Path;
use core::ffi::CStr;
use core::mem::MaybeUninit;

/// A descriptor of this process.
pub(crate) struct File(i32);

/// What the kernel says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    uid: u32,
    mode: u32,
}

impl Identity {
    /// Whether it belongs to this process's user, who alone may use it.
    pub(crate) fn is_own(&self) -> bool {
        self.uid == user() && self.mode & 0o077 == 0
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// The user that this process acts as.
pub(crate) fn user() -> u32 {
    // SAFETY: S9, no arguments.
    unsafe { libc::syscall(libc::SYS_geteuid) as u32 }
}

impl File {
    /// A descriptor that the caller goes on to own: it is duplicated.
    pub(crate) fn duplicate(number: i32) -> Result<File, Errno> {
        // SAFETY: S9, no memory is passed.
        let copy = unsafe { libc::syscall(libc::SYS_fcntl, number, libc::F_DUPFD_CLOEXEC, 0) };
        check(copy).map(|fd| File(fd as i32))
    }

    /// Opens a folder.
    pub(crate) fn folder(path: &Path) -> Result<File, Errno> {
        open(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_DIRECTORY, 0)
    }

    /// Opens a file in this folder, without waiting, whatever it is.
    pub(crate) fn open(&self, name: &Path) -> Result<File, Errno> {
        open(self.0, name, libc::O_RDWR | libc::O_NONBLOCK, 0)
    }

    /// Makes a file in this folder that was not there, for this user alone.
    pub(crate) fn create(&self, name: &Path) -> Result<File, Errno> {
        open(self.0, name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600)
    }

    /// Makes a file without a name, for this user alone; `name` is what maps files show. Its size can be sealed.
    pub(crate) fn memory(name: &CStr) -> Result<File, Errno> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: S9, the name is a C string.
        let file =
            check(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) }).map(|fd| File(fd as i32))?;
        // SAFETY: S9, no memory is passed.
        check(unsafe { libc::syscall(libc::SYS_fchmod, file.0, 0o600) })?;
        Ok(file)
    }

    pub(crate) fn number(&self) -> i32 {
        self.0
    }

    /// Leaves the descriptor open, for the caller to keep.
    pub(crate) fn into_number(self) -> i32 {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    pub(crate) fn identity(&self) -> Result<Identity, Errno> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: S9, the kernel writes the one structure given.
        let stat = unsafe {
            check(libc::syscall(libc::SYS_fstat, self.0, stat.as_mut_ptr()))?;
            stat.assume_init()
        };
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino, bytes, uid: stat.st_uid, mode: stat.st_mode })
    }

    /// Whether it lies in memory alone, where no read waits for a device or another process.
    pub(crate) fn is_in_memory(&self) -> bool {
        room(self.0).is_some_and(|room| room.is_tmpfs)
    }

    /// Whether it is open for reading and writing.
    pub(crate) fn is_writable(&self) -> bool {
        // SAFETY: S9, no memory is passed.
        let flags = unsafe { libc::syscall(libc::SYS_fcntl, self.0, libc::F_GETFL) };
        flags >= 0 && flags as i32 & libc::O_ACCMODE == libc::O_RDWR
    }

    pub(crate) fn resize(&self, bytes: usize) -> Result<(), Errno> {
        // SAFETY: S9, no memory is passed.
        check(unsafe { libc::syscall(libc::SYS_ftruncate, self.0, bytes) }).map(drop)
    }

    /// Keeps the size as it is, for ever.
    pub(crate) fn seal(&self) -> Result<(), Errno> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: S9, no memory is passed.
        check(unsafe { libc::syscall(libc::SYS_fcntl, self.0, libc::F_ADD_SEALS, seals) }).map(drop)
    }

    /// Reads a buffer full; false if there is less.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> bool {
        // SAFETY: S9, the kernel writes at most the length of the buffer.
        let got = unsafe { libc::syscall(libc::SYS_pread64, self.0, buffer.as_mut_ptr(), buffer.len(), offset) };
        got == buffer.len() as libc::c_long
    }

    /// Waits until no other process has the lock of this file, and takes it; it goes with the descriptor.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        loop {
            // SAFETY: S9, no memory is passed.
            match check(unsafe { libc::syscall(libc::SYS_flock, self.0, libc::LOCK_EX) }) {
                Err(Errno(libc::EINTR)) => {}
                result => return result.map(drop),
            }
        }
    }

    /// Gives a file in this folder another name that is not taken.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let (from, to) = (c_str(from)?, c_str(to)?);
        // SAFETY: S9, both names are C strings.
        let renamed = unsafe {
            libc::syscall(libc::SYS_renameat2, self.0, from.as_ptr(), self.0, to.as_ptr(), libc::RENAME_NOREPLACE)
        };
        check(renamed).map(drop)
    }

    /// Takes a name away from this folder.
    pub(crate) fn unlink(&self, name: &Path) -> Result<(), Errno> {
        let name = c_str(name)?;
        // SAFETY: S9, the name is a C string.
        check(unsafe { libc::syscall(libc::SYS_unlinkat, self.0, name.as_ptr(), 0) }).map(drop)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: S9, the descriptor belongs to this value alone.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Makes a folder for this user alone, unless something of that name is there.
pub(crate) fn make_folder(path: &Path) -> Result<(), Errno> {
    let path = c_str(path)?;
    // SAFETY: S9, the path is a C string.
    match check(unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o700) }) {
        Ok(_) | Err(Errno(libc::EEXIST)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Bytes that a file system in memory has left for this user's files; `None` where it has no limit, or is not in memory.
pub(crate) fn bytes_left(folder: &Path) -> Option<u64> {
    let folder = File::folder(folder).ok()?;
    room(folder.0).filter(|room| room.is_tmpfs && room.is_limited).map(|room| room.bytes_left)
}

struct FileSystem {
    is_tmpfs: bool,
    is_limited: bool,
    bytes_left: u64,
}

fn room(fd: i32) -> Option<FileSystem> {
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: S9, the kernel writes the one structure given.
    let stat = unsafe {
        check(libc::syscall(libc::SYS_fstatfs, fd, stat.as_mut_ptr())).ok()?;
        stat.assume_init()
    };
    Some(FileSystem {
        is_tmpfs: stat.f_type == libc::TMPFS_MAGIC,
        is_limited: stat.f_blocks != 0,
        bytes_left: stat.f_bavail.saturating_mul(stat.f_bsize as u64),
    })
}

fn c_str(path: &Path) -> Result<&CStr, Errno> {
    path.c_str().ok_or(Errno(libc::ENAMETOOLONG))
}

fn open(folder: i32, path: &Path, flags: i32, mode: u32) -> Result<File, Errno> {
    let path = c_str(path)?;
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: S9, the path is a C string.
    check(unsafe { libc::syscall(libc::SYS_openat, folder, path.as_ptr(), flags, mode) }).map(|fd| File(fd as i32))
}
