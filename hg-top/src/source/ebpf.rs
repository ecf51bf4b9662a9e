//! The eBPF source: what the kernel counted at the probe sites of watched processes.
//!
//! A source owns the loaded program, its links and its maps. It is attached to *files*, in all processes; which processes
//! count is decided by the filter map, which holds the processes named and, added by the kernel as they are born, their
//! children. Sums are cumulative per process since it was first watched. When a process ends, its sums appear in one more
//! sample and are then given up, in the kernel too.

mod events;
mod sums;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{MapData, PerCpuArray, RingBuf};
use hg_probes::maps::{ClassKey, ClassValue, Event, LockKey, LockValue, Lost};

use crate::attach::links::{self, LinkKind, Links};
use crate::attach::notes::{self, NoteError};
use crate::attach::objects::{self, FileId};
use crate::attach::program::Program;
use crate::attach::rights::Capability;
use crate::attach::{AttachError, SourceError};
use events::Events;
use sums::Sums;
use watched::WatchedSet;

/// Files of all watched processes that are attached to.
const MAX_FILES: usize = 4096;

/// Probe hits of watched processes, as the kernel counts them.
pub struct EbpfSource {
    // Dropped first: no hit reaches a map that is going away.
    links: Links,
    program: Program,
    watched: WatchedSet,
    classes: Sums<ClassKey, ClassValue>,
    locks: Sums<LockKey, LockValue>,
    events: Events,
    lost: PerCpuArray<MapData, u64>,
    files: BTreeSet<FileId>,
    sites: Sites,
}

/// What a source is attached to.
#[derive(Debug, Clone)]
pub struct Sites {
    /// Sites that hits are counted at.
    pub attached: usize,
    /// Sites that were found, of probes that the BPF program has a use for.
    pub found: usize,
    /// Files with such sites, as their processes call them; escaped.
    pub files: Vec<String>,
    /// Names of the probes among them.
    pub probes: BTreeSet<&'static str>,
    /// How they are attached.
    pub links: LinkKind,
    /// Whether children are watched from their first instruction, or else from the next poll on and why.
    pub children: Result<(), String>,
    /// Processes and files that could not be attached to, and why; escaped.
    pub problems: Vec<String>,
}

/// What a source does without although the kernel may have it: for trying out how an older kernel fares.
#[derive(Debug, Clone, Copy, Default)]
pub struct Without {
    /// Links to many sites.
    pub multi: bool,
    /// The tracepoint that tells of children.
    pub newtask: bool,
}

/// What one look at a source gives.
#[derive(Debug, Clone, Default)]
pub struct EbpfSample {
    /// Sums per process, arena and class since the process is watched.
    pub classes: BTreeMap<ClassKey, ClassValue>,
    /// Sums per process, arena, lock and reason since the process is watched.
    pub locks: BTreeMap<LockKey, LockValue>,
    /// Rare events since the last look, in the order of the kernel.
    pub events: Vec<RareEvent>,
    /// Hits lost since the source is attached, by [`Lost`].
    pub lost: [u64; Lost::COUNT as usize],
}

/// A rare event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RareEvent {
    /// What the kernel wrote down.
    pub event: Event,
    /// Return addresses, innermost first, starting with the probe's own; empty where none was taken or it was lost.
    pub stack: Vec<u64>,
}

impl EbpfSource {
    /// Attaches to every site of every file that `pids` execute from, and watches these processes and their future
    /// children. A process that cannot be watched is a [problem](Sites::problems), unless that is so for all.
    ///
    /// # Errors
    /// If the kernel or our rights do not allow it, or no process can be watched.
    pub fn attach(pids: &[u32]) -> Result<EbpfSource, AttachError> {
        EbpfSource::attach_without(pids, Without::default())
    }

    /// As [`attach`](Self::attach), on a kernel that lacks something.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_without(pids: &[u32], without: Without) -> Result<EbpfSource, AttachError> {
        // The kernel names processes by the initial namespace's ids; ours have to be the same.
        if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != "pid:[4026531836]") {
            return Err(AttachError::PidNamespace);
        }
        links::pmu()?;
        let mut program = Program::load(!without.multi)?;
        let mut links = Links::default();
        let children = match without.newtask {
            false => links.add_newtask(&program).map_err(|error| error.to_string()),
            true => Err("not wanted".to_owned()),
        };
        let map_error = |error: aya::maps::MapError| AttachError::Load(error.to_string());
        let link_kind = program.link_kind();
        let mut source = EbpfSource {
            watched: WatchedSet::new(program.take_map("WATCHED")?, children.is_ok()).map_err(map_error)?,
            classes: Sums::new("CLASSES", program.take_map("CLASSES")?)?,
            locks: Sums::new("LOCKS", program.take_map("LOCKS")?)?,
            events: Events::new(
                RingBuf::try_from(program.take_map("EVENTS")?).map_err(map_error)?,
                aya::maps::StackTraceMap::try_from(program.take_map("STACKS")?).map_err(map_error)?,
            ),
            lost: PerCpuArray::try_from(program.take_map("LOST")?).map_err(map_error)?,
            links,
            program,
            files: BTreeSet::new(),
            sites: Sites {
                attached: 0,
                found: 0,
                files: Vec::new(),
                probes: BTreeSet::new(),
                links: link_kind,
                children,
                problems: Vec::new(),
            },
        };
        let mut first_error = None;
        for pid in pids {
            if let Err(error) = source.watch(*pid) {
                source.sites.problems.push(format!("process {pid}: {error}"));
                first_error.get_or_insert(error);
            }
        }
        match first_error {
            Some(error) if source.sites.attached == 0 => Err(error),
            _ => Ok(source),
        }
    }

    /// What the source is attached to.
    pub fn sites(&self) -> Sites {
        self.sites.clone()
    }

    /// Watches one more process and its future children, and attaches to files of it that are new.
    ///
    /// # Errors
    /// If the process is gone, carries no probes, or its files cannot be attached to.
    pub fn watch(&mut self, pid: u32) -> Result<(), AttachError> {
        const NEEDED: &[Capability] = &[Capability::SysPtrace, Capability::CheckpointRestore];
        let objects = objects::mapped(pid).map_err(|error| match error.kind() {
            // A process that has exited but is not waited for has no mappings.
            io::ErrorKind::NotFound => AttachError::NoProcess(pid),
            _ if error.raw_os_error() == Some(libc::ESRCH) => AttachError::NoProcess(pid),
            _ => AttachError::of("open the files a process has mapped", error, NEEDED),
        })?;
        let looked_at = objects.len();
        let mut usable = Vec::new();
        let mut reasons = Vec::new();
        for object in objects {
            if self.files.contains(&object.id) {
                usable.push((object, Vec::new()));
                continue;
            }
            match notes::sites(&object.file) {
                Ok(sites) => usable.push((object, sites)),
                Err(NoteError::NoProbes) => {}
                Err(error) => reasons.push(format!("{}: {error}", object.path)),
            }
        }
        if usable.is_empty() {
            return Err(AttachError::NoProbes { pid, looked_at, reasons });
        }
        self.sites.problems.append(&mut reasons);
        // First the filter, then the links: no hit of an attached site is missed.
        self.watched.insert(pid)?;
        for (object, sites) in usable {
            if sites.is_empty() || self.files.len() >= MAX_FILES {
                continue;
            }
            self.sites.found += sites.len();
            self.links.add_sites(&self.program, &object.file, &sites)?;
            self.sites.attached += sites.len();
            self.sites.probes.extend(sites.iter().map(|site| site.probe.probe().name));
            self.sites.files.push(object.path);
            self.files.insert(object.id);
        }
        Ok(())
    }

    /// The processes that are watched now, children included.
    pub fn processes(&self) -> Vec<u32> {
        self.watched.pids()
    }

    /// Takes the events that have come, and reads and adds up the sums.
    ///
    /// # Errors
    /// If a kernel map cannot be read.
    pub fn poll(&mut self) -> Result<EbpfSample, SourceError> {
        // The dead are determined first: what they did last is in the maps by now.
        let dead = self.watched.refresh()?;
        let events = self.events.drain()?;
        let classes = self.classes.read()?;
        let locks = self.locks.read()?;
        for tgid in dead {
            self.watched.remove(tgid);
            classes.keys().filter(|key| key.tgid == tgid).try_for_each(|key| self.classes.remove(key))?;
            locks.keys().filter(|key| key.tgid == tgid).try_for_each(|key| self.locks.remove(key))?;
        }
        Ok(EbpfSample { classes, locks, events, lost: self.lost()? })
    }

    fn lost(&self) -> Result<[u64; Lost::COUNT as usize], SourceError> {
        let error = |source| SourceError::Map { map: "LOST", source };
        let mut lost = [0; Lost::COUNT as usize];
        for (index, sum) in lost.iter_mut().enumerate() {
            let values = self.lost.get(&(index as u32), 0).map_err(|source| error(io::Error::other(source)))?;
            *sum = values.iter().sum();
        }
        lost[Lost::Recursion as usize] += self.program.recursion_misses().map_err(error)?;
        Ok(lost)
    }

    /// Readable while there are events.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Ends the source. Returns at once: the kernel's own waiting is done by a process of its own. Dropping the source does
    /// the same.
    pub fn detach(self) {
        drop(self);
    }
}

impl AsFd for EbpfSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event_fd()
    }
}
