//! A watched process: its last figures, and the thread that reads it now, if one does.
//!
//! Each process is read in a thread of its own, and by at most one at a time: whoever does not answer is not asked again
//! until it has, and its last figures stay.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use crate::aside::{Aside, Bell, FIRST, PATIENCE};
use crate::model::{Identity, Process};
use crate::process::{self, Process as Proc, Thread};
use crate::source::stats::StatsSource;
use crate::source::stats::copy::PageError;
use crate::unit;

/// Names of threads kept per process.
const MAX_THREADS: usize = 1024;

/// What is said of a process that had a stats page and has none any more.
const LEFT_HG: &str = "it executed another program, which does not run on hg; its last figures are shown";

/// A watched process.
pub(super) struct Target {
    /// Its figures as they were read last; before the first time, what the kernel alone tells.
    pub(super) last: Process,
    /// Whether the user named it; others are children of those.
    pub(super) named: bool,
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
    Idle(Option<StatsSource>),
    /// With the thread that reads. `late` if it was given up on: nobody waits for it any more.
    Asked { aside: Aside<Answer>, late: bool },
}

/// What a thread that has read a process brings back.
struct Answer {
    source: Option<StatsSource>,
    process: Process,
    error: Option<PageError>,
}

impl Target {
    /// Process `pid`, not read yet.
    pub(super) fn new(pid: u32, named: bool) -> Result<Target, PageError> {
        let identity = Proc::outline(pid).map_err(|_| PageError::Gone(pid))?;
        let last = Process {
            identity,
            read_at: process::monotonic_ns(),
            memory: Proc::memory(pid).ok(),
            arenas: BTreeMap::new(),
            threads: BTreeMap::new(),
            traced: false,
            page_error: None,
            exited: None,
        };
        Ok(Target { last, named, reading: Reading::Idle(None), seen: false, refused: None, attached: String::new() })
    }

    /// Begins to read it, unless that is under way or it has ended.
    pub(super) fn ask(&mut self, bell: &Bell) -> io::Result<()> {
        if self.ended(SystemTime::now()) {
            return Ok(());
        }
        if let Reading::Idle(source) = &mut self.reading {
            let (source, last) = (source.take(), self.last.clone());
            let aside = Aside::start(bell, move || read(source, last))?;
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

    /// Whether its memory can be read as far as is known.
    pub(super) fn answers(&self) -> bool {
        self.last.exited.is_none() && !matches!(self.reading, Reading::Asked { late: true, .. })
    }

    /// Whether the probes are to be attached: it was read, and runs another program than when this was asked last.
    pub(super) fn executed(&mut self) -> bool {
        let exe = &self.last.identity.exe;
        let other = self.seen && self.answers() && self.last.page_error.is_none() && *exe != self.attached;
        if other {
            self.attached.clone_from(exe);
        }
        other
    }
}

/// Reads a process that was `process` when it was read last. May take as long as the process pleases.
fn read(source: Option<StatsSource>, mut process: Process) -> Answer {
    let pid = process.identity.pid;
    let opened = source.map_or_else(|| StatsSource::open(pid), Ok);
    let (source, error) = match opened {
        Err(error) => (None, Some(error)),
        Ok(mut source) => {
            let last = Some(&process.arenas).filter(|arenas| !arenas.is_empty());
            match source.read(last) {
                Err(error) => (Some(source), Some(error)),
                Ok(arenas) => {
                    process.arenas = arenas;
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
    Answer { source, process, error }
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
