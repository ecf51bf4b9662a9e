//! Finding stats pages: mappings of a memfd named `hg.stats` in `/proc/PID/maps`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use hg_probes::page::StatsPage;

use crate::model::FileNumber;

/// Arenas of one process that are looked at; a target with more has something in mind.
pub const MAX_ARENAS: usize = 64;

/// Bytes of a maps file that are read: room for the kernel's default limit of mappings.
const MAX_MAPS: u64 = 32 << 20;

/// A mapping that claims to be a stats page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its address in the target.
    pub start: u64,
    /// Its length, bytes.
    pub len: u64,
    /// Whether other processes write it too.
    pub shared: bool,
    /// The inode of its file.
    pub file: FileNumber,
}

/// The stats pages of a process, in the order of their addresses. None means: it does not run on hg.
pub fn regions(pid: u32) -> io::Result<Vec<Region>> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    parse(BufReader::new(maps.take(MAX_MAPS)), memfd_device())
}

/// The device of every memfd of this kernel, as maps files write it. A file of any other, whatever its name, may be one that
/// answers no read: a target's own FUSE mount, say.
fn memfd_device() -> &'static str {
    static DEVICE: OnceLock<String> = OnceLock::new();
    DEVICE.get_or_init(|| {
        // SAFETY: the name is a C string, and the descriptor is ours alone.
        let memfd = unsafe {
            let fd = libc::memfd_create(c"hg-top".as_ptr(), libc::MFD_CLOEXEC);
            (fd >= 0).then(|| File::from_raw_fd(fd))
        };
        let device = memfd.and_then(|memfd| memfd.metadata().ok()).map_or(1, |metadata| metadata.dev());
        format!("{:02x}:{:02x}", libc::major(device), libc::minor(device))
    })
}

fn parse(mut maps: impl BufRead, device: &str) -> io::Result<Vec<Region>> {
    let mut regions = Vec::new();
    let mut line = Vec::new();
    while maps.read_until(b'\n', &mut line)? > 0 {
        regions.extend(region(&line, device));
        if regions.len() == MAX_ARENAS {
            break;
        }
        line.clear();
    }
    Ok(regions)
}

/// `START-END PERMS OFFSET DEV INODE    /memfd:hg.stats (deleted)`, where the whole page is one mapping from offset 0.
fn region(line: &[u8], memfd_device: &str) -> Option<Region> {
    let line = std::str::from_utf8(line).ok()?;
    // Cheap for the thousands of other lines.
    let fields = line.trim_end().strip_suffix("/memfd:hg.stats (deleted)")?;
    let mut fields = fields.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let device = fields.next()?;
    let file = fields.next()?.parse().ok()?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let len = end.checked_sub(start)?;
    let whole = offset.bytes().all(|b| b == b'0') && len >= size_of::<StatsPage>() as u64;
    (whole && permissions.starts_with('r') && device == memfd_device).then(|| Region {
        start,
        len,
        shared: permissions.ends_with('s'),
        file,
    })
}

/// Every process but ourselves, in the order of pids.
pub fn processes() -> io::Result<Vec<u32>> {
    let own = std::process::id();
    let mut pids: Vec<u32> = std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != own)
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_the_right_name_count() {
        let maps = "\
7f0000000000-7f0000100000 rw-p 00000000 00:01 2049                       /memfd:hg.stats (deleted)
7f0000200000-7f0000300000 rw-s 00000000 00:01 2050                       /memfd:hg.stats (deleted)
7f0000400000-7f0000401000 rw-p 00000000 00:01 2051                       /memfd:hg.stats (deleted)
7f0000500000-7f0000600000 rw-p 00001000 00:01 2052                       /memfd:hg.stats (deleted)
7f0000700000-7f0000800000 ---p 00000000 00:01 2053                       /memfd:hg.stats (deleted)
7f0000900000-7f0000a00000 rw-p 00000000 08:01 2054                       /memfd:hg.stats (deleted)
7f0000900000-7f0000a00000 rw-p 00000000 00:2d 2054                       /memfd:hg.stats (deleted)
7f0000b00000-7f0000c00000 rw-p 00000000 00:01 2055                       /memfd:hg.statsx (deleted)
zzzz-7f0000c00000 rw-p 00000000 00:01 2055                       /memfd:hg.stats (deleted)
7f0000c00000-7f0000b00000 rw-p 00000000 00:01 2055                       /memfd:hg.stats (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
";
        let found = parse(maps.as_bytes(), "00:01").unwrap();
        assert_eq!(
            found,
            [
                Region { start: 0x7f00_0000_0000, len: 0x10_0000, shared: false, file: 2049 },
                Region { start: 0x7f00_0020_0000, len: 0x10_0000, shared: true, file: 2050 },
            ]
        );
    }

    #[test]
    fn the_number_of_arenas_is_bounded() {
        let line = "7f0000000000-7f0000100000 rw-p 00000000 00:01 2049   /memfd:hg.stats (deleted)\n";
        assert_eq!(parse(line.repeat(1000).as_bytes(), "00:01").unwrap().len(), MAX_ARENAS);
    }

    #[test]
    fn a_process_without_a_page_has_none() {
        assert!(regions(std::process::id()).is_ok_and(|found| found.is_empty()));
    }
}
