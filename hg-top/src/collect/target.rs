//! A watched process: its last figures, and the thread that reads it now, if one does.
//!
//! Each process is read in a thread of its own, and by at most one at a time: whoever does not answer is not asked again
//! until it has, and its last figures stay.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant, SystemTime};

use crate::aside::{Aside, Bell, FIRST, PATIENCE};
use crate::model::{FileId, Identity, KernelMemory, Part, Process, Shared};
use crate::process::{self, Process as Proc, Thread};
use crate::source::stats::copy::PageError;
use crate::source::stats::{Found, StatsSource};
use crate::unit;

/// Names of threads kept per process.
const MAX_THREADS: usize = 1024;

/// How much of the time the kernel may walk a process's memory for its part of it: a 50th.
const PART_SHARE: u32 = 50;

/// What is said of a process that had a stats page and has none any more.
const LEFT_HG: &str = "it executed another program, which does not run on hg; its last figures are shown";

/// A watched process.
pub(super) struct Target {
    /// Its figures as they were read last; before the first time, what the kernel alone tells.
    pub(super) last: Process,
    /// Whether the user named it; others are children of those.
    pub(super) named: bool,
    /// The arenas that it shares and that were read through it since they were [taken](Self::take_shared).
    shared: BTreeMap<FileId, Shared>,
    reading: Reading,
    /// Whether it was read with success since it is watched.
    seen: bool,
    /// Why it could not be read, if it never was.
    refused: Option<PageError>,
    /// The program that the probes were attached for; empty while they are not.
    attached: String,
}

/// Where the source of the figures is.
enum Reading {
    /// Here.
    Idle(Option<Source>),
    /// With the thread that reads. `late` if it was given up on: nobody waits for it any more.
    Asked { aside: Aside<Answer>, late: bool },
}

/// Where the figures of a process come from.
struct Source {
    stats: StatsSource,
    /// Its part of the memory that it shares, when the kernel was asked for it, and how long that took.
    part: Option<(Part, Instant, Duration)>,
}

/// What a thread that has read a process brings back.
struct Answer {
    source: Option<Source>,
    process: Process,
    shared: BTreeMap<FileId, Shared>,
    error: Option<PageError>,
}

/// What one reading is to do.
pub(super) struct Task {
    /// Shared arenas to be read through it, as they were read last.
    pub(super) last: BTreeMap<FileId, Shared>,
    /// Those that are read through other processes.
    pub(super) left_out: BTreeSet<FileId>,
}

impl Target {
    /// Process `pid`, not read yet.
    pub(super) fn new(pid: u32, named: bool) -> Result<Target, PageError> {
        let identity = Proc::outline(pid).map_err(|_| PageError::Gone(pid))?;
        let last =
            Process { read_at: process::monotonic_ns(), memory: Proc::memory(pid).ok(), ..Process::new(identity) };
        Ok(Target {
            last,
            named,
            shared: BTreeMap::new(),
            reading: Reading::Idle(None),
            seen: false,
            refused: None,
            attached: String::new(),
        })
    }

    /// Begins to read it, unless that is under way or it has ended.
    pub(super) fn ask(&mut self, bell: &Bell, task: impl FnOnce() -> Task) -> io::Result<()> {
        if self.ended(SystemTime::now()) {
            return Ok(());
        }
        if let Reading::Idle(source) = &mut self.reading {
            let (source, last, task) = (source.take(), self.last.clone(), task());
            let aside = Aside::start(bell, move || read(source, last, task))?;
            self.reading = Reading::Asked { aside, late: false };
        }
        Ok(())
    }

    /// Whether it has ended; looks, and takes note of it.
    fn ended(&mut self, now: SystemTime) -> bool {
        let same = |ticks: u64| ticks == self.last.identity.start_ticks;
        if self.last.exited.is_none() && !Proc::start_ticks(self.last.identity.pid).is_ok_and(same) {
            self.last.exited = Some(now);
        }
        self.last.exited.is_some()
    }

    /// How long it is worth waiting for; `None` if it has answered, or was given up on.
    pub(super) fn remaining(&mut self) -> Option<Duration> {
        self.take();
        match &self.reading {
            Reading::Asked { aside, late: false } if self.last.exited.is_none() => {
                Some(if self.seen { PATIENCE } else { FIRST }.saturating_sub(aside.since().elapsed()))
            }
            _ => None,
        }
    }

    /// Nobody waits any longer: takes the answer, or says that there is none. An error is returned for a process that could
    /// not be read at all.
    pub(super) fn settle(&mut self) -> Option<PageError> {
        self.take();
        self.give_up();
        let gone = (self.last.exited.is_some() && !self.seen).then_some(PageError::Gone(self.last.identity.pid));
        self.refused.take().or(gone)
    }

    /// Takes the answer if it has come.
    fn take(&mut self) {
        let Reading::Asked { aside, .. } = &self.reading else { return };
        let Some(answer) = aside.answer() else { return };
        self.reading = Reading::Idle(answer.source);
        // Whatever was read belongs to this process only if it is still there.
        if self.ended(SystemTime::now()) {
            return;
        }
        self.last = answer.process;
        self.shared.extend(answer.shared);
        self.seen |= answer.error.is_none();
        self.last.page_error = match &answer.error {
            Some(PageError::NotOnHg(_)) if self.seen => Some(LEFT_HG.to_owned()),
            error => error.as_ref().map(ToString::to_string),
        };
        self.refused = answer.error.filter(|_| !self.seen);
    }

    fn give_up(&mut self) {
        let Reading::Asked { aside, late } = &mut self.reading else { return };
        if self.last.exited.is_some() {
            return;
        }
        *late = true;
        let silent = format!(
            "does not answer: a read of its memory has not returned for {}",
            unit::age(aside.since().elapsed())
        );
        let age = Duration::from_nanos(process::monotonic_ns().saturating_sub(self.last.read_at));
        self.last.page_error = Some(match self.seen {
            true => format!("{silent}; its last figures, {} old, are shown", unit::age(age)),
            false => silent,
        });
    }

    /// The shared arenas that were read through it since the last call.
    pub(super) fn take_shared(&mut self) -> BTreeMap<FileId, Shared> {
        std::mem::take(&mut self.shared)
    }

    /// Whether arenas can be read through it, for others too.
    pub(super) fn is_good(&self) -> bool {
        self.seen && self.answers() && self.last.page_error.is_none()
    }

    /// Whether its memory can be read as far as is known.
    pub(super) fn answers(&self) -> bool {
        self.last.exited.is_none() && !matches!(self.reading, Reading::Asked { late: true, .. })
    }

    /// Whether the probes are to be attached: it was read, and runs another program than when this was asked last.
    pub(super) fn executed(&mut self) -> bool {
        let exe = &self.last.identity.exe;
        let other = self.is_good() && *exe != self.attached;
        if other {
            self.attached.clone_from(exe);
        }
        other
    }
}

/// Reads a process that was `process` when it was read last. May take as long as the process pleases.
fn read(source: Option<Source>, mut process: Process, task: Task) -> Answer {
    let pid = process.identity.pid;
    let open = || StatsSource::open(pid).map(|stats| Source { stats, part: None });
    let mut shared = BTreeMap::new();
    let (mut source, error) = match source.map_or_else(open, Ok) {
        Err(error) => (None, Some(error)),
        Ok(mut source) => {
            let last = Found { private: std::mem::take(&mut process.arenas), shared: task.last, maps: BTreeSet::new() };
            match source.stats.read(&last, &task.left_out) {
                Err(error) => {
                    process.arenas = last.private;
                    (Some(source), Some(error))
                }
                Ok(found) => {
                    (process.arenas, process.shared, shared) = (found.private, found.maps, found.shared);
                    process.read_at = process::monotonic_ns();
                    name_threads(&mut process);
                    (Some(source), None)
                }
            }
        }
    };
    if let Ok(identity) = Proc::identity(pid) {
        process.identity = Identity { started: process.identity.started, ..identity };
    }
    process.memory = Proc::memory(pid).ok().or(process.memory);
    if let (Some(memory), Some(source)) = (&mut process.memory, &mut source) {
        *memory = KernelMemory { part: part(pid, &process.shared, source), ..*memory };
    }
    Answer { source, process, shared, error }
}

/// Its part of the memory that it shares, if it does. The kernel walks all of it, so it is not asked each time.
fn part(pid: u32, shared: &BTreeSet<FileId>, source: &mut Source) -> Option<Part> {
    if shared.is_empty() {
        return None;
    }
    let fresh = source.part.filter(|(_, asked, took)| asked.elapsed() < *took * PART_SHARE);
    if fresh.is_none() {
        let asked = Instant::now();
        source.part = Proc::part(pid).ok().map(|part| (part, asked, asked.elapsed()));
    }
    source.part.map(|(part, ..)| part)
}

/// Looks up the names of threads that stand out, while they live.
fn name_threads(process: &mut Process) {
    let pid = process.identity.pid;
    let new: Vec<u32> = process.worst_threads().filter(|tid| !process.threads.contains_key(tid)).collect();
    for tid in new {
        if process.threads.len() >= MAX_THREADS {
            process.threads.clear();
        }
        let name = Thread::look(pid, process::host_tid(pid, tid)).comm;
        if !name.is_empty() {
            process.threads.insert(tid, name);
        }
    }
}
