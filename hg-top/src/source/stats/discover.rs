//! Finding stats pages: mappings of a memfd named `hg.stats`, or of a named arena's file, in `/proc/PID/maps`.
//!
//! Only files in memory count, by their device: a file of any other, whatever its name, may be one that answers no read, such
//! as one on a target's own FUSE mount. That device is the one of all memfds, or a tmpfs that the process itself mounts, by the
//! kernel's list.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use hg_probes::page::StatsPage;

use crate::model::FileId;

/// A device, as major and minor number.
type Device = (u32, u32);

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
    /// Its file.
    pub file: FileId,
}

/// What follows the name of a file that was unlinked.
const DELETED: &str = " (deleted)";

/// The stats pages of a process, in the order of their addresses. None means: it does not run on hg.
pub fn regions(pid: u32) -> io::Result<Vec<Region>> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    let mut tmpfs = None;
    let in_memory = |device, is_memfd| {
        if is_memfd { device == memfd_device() } else { tmpfs.get_or_insert_with(|| mounts(pid)).contains(&device) }
    };
    parse(BufReader::new(maps.take(MAX_MAPS)), in_memory)
}

/// The device of every memfd of this kernel.
fn memfd_device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        // SAFETY: the name is a C string, and the descriptor is ours alone.
        let memfd = unsafe {
            let fd = libc::memfd_create(c"hg-top".as_ptr(), libc::MFD_CLOEXEC);
            (fd >= 0).then(|| File::from_raw_fd(fd))
        };
        let device = memfd.and_then(|memfd| memfd.metadata().ok()).map_or(1, |metadata| metadata.dev());
        (libc::major(device), libc::minor(device))
    })
}

/// The devices of all tmpfs that a process mounts; none if the kernel does not tell.
fn mounts(pid: u32) -> BTreeSet<Device> {
    let Ok(list) = File::open(format!("/proc/{pid}/mountinfo")) else { return BTreeSet::new() };
    tmpfs(BufReader::new(list.take(MAX_MAPS)))
}

fn tmpfs(list: impl BufRead) -> BTreeSet<Device> {
    let line = |line: Vec<u8>| {
        // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS; blanks in paths are escaped.
        let mut fields = std::str::from_utf8(&line).ok()?.split(' ');
        let (major, minor) = fields.nth(2)?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        (fields.skip_while(|field| *field != "-").nth(1)? == "tmpfs").then_some(device)
    };
    list.split(b'\n').map_while(Result::ok).filter_map(line).collect()
}

fn parse(mut maps: impl BufRead, mut in_memory: impl FnMut(Device, bool) -> bool) -> io::Result<Vec<Region>> {
    let mut regions = Vec::new();
    let mut line = Vec::new();
    while maps.read_until(b'\n', &mut line)? > 0 {
        regions.extend(region(&line, &mut in_memory));
        if regions.len() == MAX_ARENAS {
            break;
        }
        line.clear();
    }
    Ok(regions)
}

/// `START-END PERMS OFFSET DEV INODE    NAME`, where the whole page is one mapping from offset 0. The name is
/// `/memfd:hg.stats (deleted)`, or that of a shared file that ends in `.hg.stats`.
fn region(line: &[u8], in_memory: &mut impl FnMut(Device, bool) -> bool) -> Option<Region> {
    let line = line.trim_ascii_end();
    // Cheap for the thousands of other lines.
    let name = line.strip_suffix(DELETED.as_bytes()).unwrap_or(line);
    let is_memfd = name.ends_with(b" /memfd:hg.stats") && name.len() < line.len();
    if !is_memfd && !name.ends_with(b".hg.stats") {
        return None;
    }
    let blank = |byte: &u8| *byte == b' ';
    let mut fields = line.split(blank).map(|field| std::str::from_utf8(field).ok());
    let mut field = || fields.next().flatten();
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let hex = |text| u32::from_str_radix(text, 16).ok();
    let file = FileId { device: (hex(major)?, hex(minor)?), inode: field()?.parse().ok()? };
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let len = end.checked_sub(start)?;
    let shared = permissions.ends_with('s');
    let whole = offset.bytes().all(|b| b == b'0') && len >= size_of::<StatsPage>() as u64;
    let sane = whole && permissions.starts_with('r') && (is_memfd || shared);
    (sane && in_memory(file.device, is_memfd)).then_some(Region { start, len, shared, file })
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
7f0000b00000-7f0000c00000 rw-p 00000000 00:01 2055                       /memfd:hg.stats
7f0000d00000-7f0000e00000 rw-s 00000000 00:1a 3                          /dev/shm/hg-0/a b.hg.stats
7f0000d00000-7f0000e00000 rw-p 00000000 00:1a 3                          /dev/shm/hg-0/private.hg.stats
7f0000d00000-7f0000e00000 rw-s 00000000 00:2d 3                          /fuse/x.hg.stats
7f0000f00000-7f0001000000 rw-s 00000000 00:1a 4                          /dev/shm/hg-0/#.hg.stats (deleted)
zzzz-7f0000c00000 rw-p 00000000 00:01 2055                       /memfd:hg.stats (deleted)
7f0000c00000-7f0000b00000 rw-p 00000000 00:01 2055                       /memfd:hg.stats (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
";
        let maps = maps.as_bytes().iter().map(|byte| if *byte == b'#' { 0xff } else { *byte }).collect::<Vec<u8>>();
        let in_memory = |device, is_memfd| device == if is_memfd { (0, 1) } else { (0, 0x1a) };
        let found: Vec<_> = parse(maps.as_slice(), in_memory)
            .unwrap()
            .into_iter()
            .map(|region| (region.start >> 20 & 0xff, region.shared, region.file.device.1, region.file.inode))
            .collect();
        assert_eq!(found, [(0, false, 1, 2049), (2, true, 1, 2050), (0xd, true, 0x1a, 3), (0xf, true, 0x1a, 4)]);
    }

    #[test]
    fn only_tmpfs_is_memory() {
        let list = "\
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
24 30 0:26 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,inode64
25 30 0:45 / /tmpfs\\040- rw - fuse.tmpfs tmpfs rw
26 30 0:46 / /x rw - fuse - tmpfs
27 30 x
";
        assert_eq!(tmpfs(list.as_bytes()), BTreeSet::from([(0, 26)]));
        assert!(!mounts(std::process::id()).contains(&memfd_device()), "that one is not mounted anywhere");
    }

    #[test]
    fn the_number_of_arenas_is_bounded() {
        let line = "7f0000000000-7f0000100000 rw-p 00000000 00:01 2049   /memfd:hg.stats (deleted)\n";
        assert_eq!(parse(line.repeat(1000).as_bytes(), |_, _| true).unwrap().len(), MAX_ARENAS);
    }

    #[test]
    fn a_process_without_a_page_has_none() {
        assert!(regions(std::process::id()).is_ok_and(|found| found.is_empty()));
    }
}
