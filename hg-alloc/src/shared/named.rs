//! Named arenas: files in a folder of the user's, on a file system in memory.
//!
//! The folder is `HG_RUNTIME_DIR`, or `/dev/shm/hg-UID`; it has to be this user's alone, as have the files. A file gets its name once
//! the arena in it is whole, so whoever opens it finds all of it. Its name ends as that of each stats page does, by which
//! hg-top knows it in `/proc/PID/maps`.
//!
//! Lock: that of the folder (`flock`), to make an arena. Callers: hosts; `grow.rs` asks whether the file system has room.

use super::options::{Error, Options};
use super::{Arena, file};
use crate::sys::file::{File, bytes_left, make_folder, user};
use crate::sys::text::{Path, decimal};
use crate::sys::{Errno, env};
use core::sync::atomic::Ordering::*;

/// Bytes of the longest name: what a stats page can show.
const LONGEST: usize = 31;

/// What each file's name ends in.
const SUFFIX: &[u8] = b".hg.stats";

/// Tables take so much of the committed memory at most: a twelfth.
const TABLES_PART: u64 = 12;

/// What others on the file system should find left, bytes.
const SPARE: u64 = 1 << 20;

/// Makes a shared arena that processes of this user open by its name.
pub fn create_named(options: &Options) -> Result<&'static Arena, Error> {
    let name = file_name(options.name)?;
    let folder = folder(true)?;
    folder.lock()?;
    match folder.open(&name) {
        Err(Errno(libc::ENOENT)) => {}
        _ => return Err(Error::Exists),
    }
    // What somebody left who died in the middle of this.
    let new = Path::new().with(b".new").with(SUFFIX);
    let _ = folder.unlink(&new);
    let file = folder.create(&new)?;
    let made = match file.is_in_memory() {
        true => file::create_in(&file, options),
        false => Err(Error::Unsafe),
    };
    let named = made.and_then(|arena| folder.rename(&new, &name).map(|()| arena).map_err(Error::from));
    named.inspect_err(|_| {
        let _ = folder.unlink(&new);
    })
}

/// Opens the arena that a process of this user made under a name.
pub fn open_named(name: &str) -> Result<&'static Arena, Error> {
    file::open_in(&open_file(name)?)
}

/// Takes the name of an arena away; who has it goes on.
pub fn unlink_named(name: &str) -> Result<(), Error> {
    let name = file_name(name)?;
    folder(false)?.unlink(&name).map_err(found)
}

/// The file of a named arena, if its name is still that one's.
pub(super) fn file_of(arena: &Arena) -> Result<File, Error> {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_mut(8).zip(&arena.stats_page().header.name) {
        to.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    open_file(core::str::from_utf8(name).map_err(|_| Error::Absent)?)
}

/// Bytes that an arena in a file may commit before the file system of named arenas is full, tables included; without a limit
/// `u64::MAX`.
pub(super) fn bytes_to_commit(arena: &Arena) -> u64 {
    let Some(left) = bytes_left(&folder_path()) else { return u64::MAX };
    left.saturating_sub(arena.committed_bytes() / TABLES_PART + SPARE) / (TABLES_PART + 1) * TABLES_PART
}

fn open_file(name: &str) -> Result<File, Error> {
    let name = file_name(name)?;
    let file = folder(false)?.open(&name).map_err(found)?;
    let identity = file.identity()?;
    if identity.is_regular() && identity.is_own() { Ok(file) } else { Err(Error::Unsafe) }
}

/// The name of an arena's file.
fn file_name(name: &str) -> Result<Path, Error> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let fits = (1..=LONGEST).contains(&name.len()) && name.bytes().all(is_fit) && !name.starts_with('.');
    if fits { Ok(Path::new().with(name.as_bytes()).with(SUFFIX)) } else { Err(Error::Name) }
}

fn folder_path() -> Path {
    match env::variable("HG_RUNTIME_DIR") {
        Some(path) if path.starts_with('/') => Path::new().with(path.as_bytes()),
        _ => Path::new().with(b"/dev/shm/hg-").with(decimal(user().into(), &mut [0; 20]).as_bytes()),
    }
}

/// The folder, made first if it is wanted: one that this user alone may use.
fn folder(make: bool) -> Result<File, Error> {
    let path = folder_path();
    if make {
        make_folder(&path)?;
    }
    let folder = File::folder(&path).map_err(found)?;
    if folder.identity()?.is_own() { Ok(folder) } else { Err(Error::Unsafe) }
}

/// What it means that a file or folder cannot be opened.
fn found(errno: Errno) -> Error {
    match errno.0 {
        libc::ENOENT => Error::Absent,
        libc::ELOOP | libc::ENOTDIR | libc::EACCES | libc::EPERM | libc::EISDIR | libc::ENXIO => Error::Unsafe,
        _ => errno.into(),
    }
}
