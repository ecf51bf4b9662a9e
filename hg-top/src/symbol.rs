//! Names for the addresses of a stack: `file+offset`, from the memory map of the process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use crate::escape;

/// Frames of a stack that are shown.
const MAX_FRAMES: usize = 32;

/// Bytes of a memory map that are read.
const MAX_MAPS: u64 = 32 << 20;

/// Executable mappings of the processes asked about so far. Lives for one batch of events: a memory map changes.
#[derive(Default)]
pub struct Cache {
    maps: BTreeMap<u32, Vec<Mapping>>,
}

/// An executable mapping of a file.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    file: String,
}

impl Cache {
    /// The frames of a stack of process `pid`, innermost first; bare addresses of one whose map cannot be read.
    pub fn frames(&mut self, pid: u32, stack: &[u64], silent: bool) -> Vec<String> {
        if stack.is_empty() {
            return Vec::new();
        }
        let maps = self.maps.entry(pid).or_insert_with(|| if silent { Vec::new() } else { executable(pid) });
        stack.iter().take(MAX_FRAMES).map(|address| frame(maps, *address)).collect()
    }
}

fn frame(maps: &[Mapping], address: u64) -> String {
    match maps.iter().find(|map| (map.start..map.end).contains(&address)) {
        Some(map) => format!("{}+0x{:x}", map.file, (address - map.start).saturating_add(map.offset)),
        None => format!("0x{address:x}"),
    }
}

fn executable(pid: u32) -> Vec<Mapping> {
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let lines = BufReader::new(maps.take(MAX_MAPS)).split(b'\n');
    lines.map_while(Result::ok).filter_map(|line| mapping(&line)).collect()
}

fn mapping(line: &[u8]) -> Option<Mapping> {
    let head = line.iter().position(|byte| *byte == b'/')?;
    let mut fields = std::str::from_utf8(&line[..head]).ok()?.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    if !fields.next()?.contains('x') {
        return None;
    }
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let name = line.rsplit(|byte| *byte == b'/').next()?;
    Some(Mapping { start: hex(start)?, end: hex(end)?, offset: hex(fields.next()?)?, file: escape::bytes(name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_code_has_a_file() {
        let here = our_own_code_has_a_file as *const () as u64;
        let frames = Cache::default().frames(std::process::id(), &[here, 1], false);
        assert!(frames[0].starts_with("hg_top-") && frames[0].contains("+0x"), "{frames:?}");
        assert_eq!(frames[1], "0x1");
        assert_eq!(Cache::default().frames(std::process::id(), &[16], true), ["0x10"]);
    }

    #[test]
    fn hostile_names_are_escaped() {
        let map = mapping(b"1000-2000 r-xp 00000000 08:01 5    /tmp/\x1b[2Jx").unwrap();
        assert_eq!(map.file, "\\x1b[2Jx");
        assert!(mapping(b"1000-2000 rw-p 00000000 08:01 5    /tmp/x").is_none());
        assert!(mapping(b"garbage/").is_none());
    }
}
