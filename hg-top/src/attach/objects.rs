//! The files that a process has mapped for execution, opened without trusting a path.
//!
//! Each is opened through `/proc/PID/map_files`, which leads to the mapped inode itself: other mount namespaces, deleted files
//! and swapped paths make no difference. It is looked at before it is really opened, so that a device or a FIFO is never
//! touched; files on FUSE, where the watched user's own program would answer our reads, are left out.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::escape;

/// Bytes of `/proc/PID/maps` that are read: some 300 000 mappings.
const MAX_MAPS: u64 = 32 << 20;

/// Files of one process that are opened.
const MAX_OBJECTS: usize = 1024;

/// Bytes of `/proc/PID/mountinfo` that are read.
const MAX_MOUNTS: u64 = 4 << 20;

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
}

/// A regular file that a process executes from.
#[derive(Debug)]
pub struct Object {
    /// Which file.
    pub id: FileId,
    /// What the process calls it, escaped: for showing only.
    pub path: String,
    /// The file.
    pub file: File,
}

/// One executable mapping of a file, from a line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: String,
    device: String,
    inode: u64,
    path: String,
}

/// The files that `pid` executes from, each once.
///
/// # Errors
/// If the process is gone or its mappings may not be read; files that cannot be opened are left out, unless that is so for
/// all of them.
pub fn mapped(pid: u32) -> io::Result<Vec<Object>> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    let fuse = fuse_devices(pid);
    let mut lines = BTreeSet::new();
    let mut objects: Vec<Object> = Vec::new();
    let mut refused = None;
    for line in BufReader::new(maps.take(MAX_MAPS)).split(b'\n') {
        let Some(mapping) = parse(&line?) else { continue };
        if fuse.contains(&mapping.device) || !lines.insert((mapping.device.clone(), mapping.inode)) {
            continue;
        }
        match open(Path::new(&format!("/proc/{pid}/map_files/{}", mapping.range))) {
            Ok(Some((id, file))) => {
                if !objects.iter().any(|object| object.id == id) {
                    objects.push(Object { id, path: mapping.path, file });
                }
            }
            Ok(None) => {}
            Err(error) => refused = Some(error),
        }
        if objects.len() >= MAX_OBJECTS {
            break;
        }
    }
    match refused {
        Some(error) if objects.is_empty() => Err(error),
        _ => Ok(objects),
    }
}

/// Opens a regular file for reading; `None` if it is anything else.
///
/// # Errors
/// If it cannot be opened.
pub fn open(path: &Path) -> io::Result<Option<(FileId, File)>> {
    // A descriptor that only names the file: no driver and no other end of a FIFO hears of it.
    let named = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !named.metadata()?.is_file() {
        return Ok(None);
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", named.as_raw_fd()))?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then(|| (FileId { dev: metadata.dev(), ino: metadata.ino() }, file)))
}

/// `START-END PERMS OFFSET DEVICE INODE PATH`, if it is executable and backed by a file.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let range = words.next()?;
    let permissions = words.next()?;
    let _offset = words.next()?;
    let device = words.next()?;
    let inode: u64 = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_ascii_start();
    if inode == 0 || permissions.get(2) != Some(&b'x') {
        return None;
    }
    // The names under map_files have no leading zeros, while those in maps are padded to 8 digits.
    let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    Some(Mapping {
        range: format!("{start:x}-{end:x}"),
        device: device_number(device)?,
        inode,
        path: escape::bytes(path),
    })
}

/// `maj:min` in hexadecimal as in maps, to decimal as in mountinfo.
fn device_number(hex: &[u8]) -> Option<String> {
    let (major, minor) = std::str::from_utf8(hex).ok()?.split_once(':')?;
    Some(format!("{}:{}", u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
}

/// Devices of FUSE mounts that the process sees, as `major:minor`.
fn fuse_devices(pid: u32) -> BTreeSet<String> {
    let mut text = Vec::new();
    let read =
        File::open(format!("/proc/{pid}/mountinfo")).and_then(|file| file.take(MAX_MOUNTS).read_to_end(&mut text));
    if read.is_err() {
        return BTreeSet::new();
    }
    text.split(|byte| *byte == b'\n').filter_map(fuse_device).collect()
}

/// The device of one line of mountinfo, `ID PARENT MAJ:MIN ... - TYPE SOURCE OPTIONS`, if its type is FUSE.
fn fuse_device(line: &[u8]) -> Option<String> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = words.iter().position(|word| *word == b"-")?;
    let (device, kind) = (words.get(2)?, words.get(dash + 1)?);
    let fuse = kind.starts_with(b"fuse") && *kind != b"fusectl";
    fuse.then(|| String::from_utf8_lossy(device).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let mapping = parse(b"00400000-00452000 r-xp 00000000 fe:10 173521      /usr/bin/a \x1b[2J b").unwrap();
        assert_eq!(
            mapping,
            Mapping {
                range: "400000-452000".into(),
                device: "254:16".into(),
                inode: 173521,
                path: "/usr/bin/a \\x1b[2J b".into()
            }
        );
        assert_eq!(parse(b"00400000-00452000 rw-p 00000000 fe:10 173521 /usr/bin/a"), None);
        assert_eq!(parse(b"7ffd1000-7ffd2000 r-xp 00000000 00:00 0      [vdso]"), None);
        for broken in [
            &b""[..],
            b"x",
            b"1-2 r-xp",
            b"1-2 r-xp 0 0:0 nine",
            b"12 r-xp 0 0:0 9",
            b"1-z r-xp 0 0:0 9 /a",
            b"1-2 r-xp 0 0 9",
        ] {
            assert_eq!(parse(broken), None);
        }
    }

    #[test]
    fn fuse_is_recognised() {
        assert_eq!(fuse_device(b"36 35 0:51 / /mnt rw shared:1 - fuse.sshfs host: rw"), Some("0:51".into()));
        assert_eq!(fuse_device(b"36 35 0:51 / /mnt rw - fuseblk /dev/sda rw"), Some("0:51".into()));
        assert_eq!(fuse_device(b"36 35 0:51 / /sys/fs/fuse rw - fusectl none rw"), None);
        assert_eq!(fuse_device(b"36 35 8:1 / / rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(fuse_device(b"36 -"), None);
        assert_eq!(fuse_device(b"- fuse"), None);
    }

    #[test]
    fn our_own_objects() {
        let objects = match mapped(std::process::id()) {
            // The kernel opens these links for CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE alone.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return eprintln!("skipped: needs root"),
            objects => objects.unwrap(),
        };
        assert!(objects.iter().any(|object| object.path.contains("hg_top")), "{objects:?}");
        assert!(objects.iter().any(|object| object.path.contains("libc")), "{objects:?}");
    }
}
