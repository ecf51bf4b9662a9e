//! The filter map: which processes count. The kernel adds children; this module adds the processes named and takes out the
//! dead, so that a process id used again is not taken for its predecessor.

use std::collections::BTreeMap;
use std::io;

use aya::Pod;
use aya::maps::{HashMap, Map, MapData, MapError};
use hg_probes::maps::{MAX_PROCESSES, Watched};

use crate::attach::{AttachError, SourceError};
use crate::process::Process;

const BPF_NOEXIST: u64 = 1;

/// A filter entry as aya wants it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Entry(Watched);

// SAFETY: `repr(C)` numbers without padding: any bytes are a value.
unsafe impl Pod for Entry {}

pub(super) struct WatchedSet {
    map: HashMap<MapData, u32, Entry>,
    /// Start time of each process when it was first seen, to tell it from a later one with its id.
    started: BTreeMap<u32, u64>,
    /// Whether the kernel adds children; else they are looked for here.
    followed: bool,
}

impl WatchedSet {
    pub(super) fn new(map: Map, followed: bool) -> Result<WatchedSet, MapError> {
        Ok(WatchedSet { map: HashMap::try_from(map)?, started: BTreeMap::new(), followed })
    }

    /// Adds a process that the user named.
    pub(super) fn insert(&mut self, pid: u32) -> Result<(), AttachError> {
        let ticks = started(pid).ok_or(AttachError::NoProcess(pid))?;
        self.add(pid, 0)?;
        self.started.insert(pid, ticks);
        Ok(())
    }

    fn add(&mut self, pid: u32, parent: u32) -> Result<(), AttachError> {
        match self.map.insert(pid, Entry(Watched { keys: 0, parent, reserved: 0 }), BPF_NOEXIST) {
            Ok(()) => Ok(()),
            Err(MapError::SyscallError(call)) if call.io_error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            Err(MapError::SyscallError(call)) if call.io_error.raw_os_error() == Some(libc::E2BIG) => {
                Err(AttachError::TooMany)
            }
            Err(error) => Err(AttachError::Load(error.to_string())),
        }
    }

    /// The processes in the map.
    pub(super) fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.map.keys().filter_map(Result::ok).take(MAX_PROCESSES as usize).collect();
        pids.sort_unstable();
        // A walk that is overtaken by a change of the map may start again.
        pids.dedup();
        pids
    }

    /// Takes note of new children, and returns the processes that have ended. They stay in the map until they are
    /// [removed](Self::remove).
    pub(super) fn refresh(&mut self) -> Result<Vec<u32>, SourceError> {
        let mut pids = self.pids();
        if !self.followed {
            let children = Process::children(&pids).map_err(|source| SourceError::Map { map: "WATCHED", source })?;
            for child in children.into_iter().filter(|child| !pids.contains(child)).collect::<Vec<_>>() {
                let parent = stat(child).map_or(0, |stat| stat.ppid as u32);
                // A full filter shows in what the user sees: the child is not listed.
                if self.add(child, parent).is_ok() {
                    pids.push(child);
                }
            }
        }
        self.started.retain(|pid, _| pids.contains(pid));
        let mut dead = Vec::new();
        for pid in pids {
            match started(pid) {
                Some(ticks) if *self.started.entry(pid).or_insert(ticks) == ticks => {}
                _ => dead.push(pid),
            }
        }
        Ok(dead)
    }

    pub(super) fn remove(&mut self, pid: u32) {
        self.started.remove(&pid);
        let _ = self.map.remove(&pid);
    }
}

/// When a process started, in clock ticks since boot; `None` once all of its threads have ended.
fn started(pid: u32) -> Option<u64> {
    let stat = stat(pid).ok()?;
    // The first thread may end before the others; the process lives on then.
    let ended = matches!(stat.state, 'Z' | 'X' | 'x') && stat.num_threads <= 1;
    (!ended).then_some(stat.starttime)
}

fn stat(pid: u32) -> io::Result<procfs::process::Stat> {
    let bytes = std::fs::read(format!("/proc/{pid}/stat"))?;
    procfs::FromRead::from_read(bytes.as_slice()).map_err(io::Error::other)
}
