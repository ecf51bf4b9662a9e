//! Reads both sources into snapshots, and follows the watched processes: those that exit stay with their last figures,
//! children on hg join (and leave, some time after they ended), and one that executes another program is attached anew.
//!
//! Owns the sources. A sample is [begun](Collector::begin), waited for and [finished](Collector::finish): the live loop goes on
//! meanwhile, the batch mode has [`Collector::sample`], which does all three. [`Collector::events`] is called when the ring
//! buffer has something. What may block on a process is done by a thread of its own ([`target`]).

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub mod map;
mod merge;
mod owners;
mod shared;
mod target;
mod tracer;

use owners::Owners;
use shared::Arenas;
use target::Target;
use tracer::Tracer;

use crate::aside::Bell;
use crate::event::Event;
use crate::exit::Failure;
use crate::model::{EbpfState, Snapshot};
use crate::process::{self, Process as Proc};
use crate::source::stats::copy::PageError;
use crate::{symbol, wake};

/// How often children are looked for; a walk of /proc.
const CHILDREN: Duration = Duration::from_secs(2);

/// Processes watched at once.
const MAX_TARGETS: usize = 1024;

/// Children that have ended and are still shown. A server that forks for each request must not fill the list with them.
const MAX_ENDED: usize = 32;

/// Both sources over the watched processes.
pub struct Collector {
    targets: BTreeMap<u32, Target>,
    /// Children that may run on hg: not read yet.
    candidates: BTreeMap<u32, Target>,
    /// The arenas that several of them share.
    shared: Arenas,
    /// Rings when a process has been read.
    bell: Bell,
    tracer: Tracer,
    children_at: Instant,
    /// Messages for the operator about what could not be done; taken by the caller.
    warnings: Vec<String>,
}

impl Collector {
    /// Watches `pids`. Those that cannot be watched are warned about; an error if none can be. Those that do not answer are
    /// watched.
    pub fn open(pids: &[u32], with_ebpf: bool) -> Result<Collector, Failure> {
        let mut collector = Collector {
            targets: BTreeMap::new(),
            candidates: BTreeMap::new(),
            shared: Arenas::default(),
            bell: Bell::new()?,
            tracer: Tracer::off("switched off by --no-ebpf"),
            children_at: Instant::now(),
            warnings: Vec::new(),
        };
        let mut failures = Vec::new();
        for &pid in pids.iter().take(MAX_TARGETS) {
            match Target::new(pid, true) {
                Ok(target) => drop(collector.targets.insert(pid, target)),
                Err(error) => failures.push(error),
            }
        }
        collector.ask();
        collector.wait();
        let mut taken = BTreeMap::new();
        for (pid, mut target) in std::mem::take(&mut collector.targets) {
            match target.settle() {
                Some(error) => failures.push(error),
                None => drop(taken.insert(pid, target)),
            }
        }
        collector.targets = taken;
        collector.shared.take(&mut collector.targets);
        collector.warnings.extend(failures.iter().map(ToString::to_string));
        if collector.targets.is_empty() {
            return Err(refused(failures));
        }
        if pids.len() > MAX_TARGETS {
            collector.warnings.push(format!("{} processes named, the first {MAX_TARGETS} are watched", pids.len()));
        }
        if with_ebpf {
            let answer = |(pid, target): (&u32, &mut Target)| target.executed().then_some(*pid);
            let watched: Vec<u32> = collector.targets.iter_mut().filter_map(answer).collect();
            collector.tracer = Tracer::attach(&watched);
        }
        Ok(collector)
    }

    /// Messages since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// What eBPF can tell, or why it cannot.
    pub fn ebpf(&self) -> EbpfState {
        self.tracer.state()
    }

    /// Readable while the ring buffer has events.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tracer.event_fd()
    }

    /// Rare events since the last call, oldest first.
    pub fn events(&mut self) -> Vec<Event> {
        let (now, monotonic) = (SystemTime::now(), process::monotonic_ns());
        let raw = self.tracer.poll();
        let mut symbols = symbol::Cache::default();
        let mut owners = Owners::new(&self.shared, &self.targets);
        // Of a process that does not answer not even the memory map is read.
        let silent = |pid: u32| self.targets.get(&pid).is_some_and(|target| !target.answers());
        raw.into_iter()
            .filter_map(|raw| {
                let time = now.checked_sub(Duration::from_nanos(monotonic.saturating_sub(raw.event.ns))).unwrap_or(now);
                let stack = symbols.frames(raw.event.tgid, &raw.stack, silent(raw.event.tgid));
                let mut event = Event::decode(&raw.event, time, stack)?;
                owners.name(&mut event);
                Some(event)
            })
            .collect()
    }

    /// Reads everything once, and waits for it.
    pub fn sample(&mut self) -> (Arc<Snapshot>, Vec<Event>) {
        self.begin();
        self.wait();
        self.finish()
    }

    /// Begins to read everything once.
    pub fn begin(&mut self) {
        self.adopt_children();
        self.ask();
    }

    /// Readable when a process has been read: [`remaining`](Self::remaining) may have become less.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// How long a sample that was begun is worth waiting for; `None` once nothing is missing but what does not answer.
    pub fn remaining(&mut self) -> Option<Duration> {
        self.bell.acknowledge();
        let targets = self.targets.values_mut().chain(self.candidates.values_mut());
        targets.filter_map(Target::remaining).max().filter(|left| !left.is_zero())
    }

    /// Ends a sample that was begun. Events that came meanwhile are returned with it.
    pub fn finish(&mut self) -> (Arc<Snapshot>, Vec<Event>) {
        let time = SystemTime::now();
        // A child that did not answer and turns out to run another program goes.
        self.targets.retain(|_, target| target.settle().is_none() || target.named);
        self.take_children();
        for (pid, target) in &mut self.targets {
            if target.executed() {
                self.warnings.extend(self.tracer.watch(*pid).err());
            }
        }
        self.forget_ended();
        self.shared.take(&mut self.targets);
        let events = self.events();
        let mut snapshot = Snapshot {
            at: process::monotonic_ns(),
            time,
            processes: self.targets.iter().map(|(pid, target)| (*pid, target.last.clone())).collect(),
            shared: self.shared.all().clone(),
            ebpf: self.tracer.state(),
            lost: self.tracer.lost(),
        };
        merge::traced(&mut snapshot, self.tracer.classes(), self.tracer.locks());
        (Arc::new(snapshot), events)
    }

    /// Ends the tracing. Takes up to a second: call it when the terminal is the user's again.
    pub fn close(self) {
        self.tracer.detach();
    }

    fn ask(&mut self) {
        let readers = self.shared.readers(&self.targets);
        for target in self.targets.values_mut().chain(self.candidates.values_mut()) {
            let pid = target.last.identity.pid;
            if let Err(error) = target.ask(&self.bell, || self.shared.task(pid, &readers)) {
                self.warnings.push(format!("process {} is not read: {error}", target.last.identity.pid));
            }
        }
    }

    fn wait(&mut self) {
        while let Some(left) = self.remaining() {
            wake::wait([Some(self.bell.fd())], left);
        }
    }

    /// Lets go of the children that ended first, but for the last few.
    fn forget_ended(&mut self) {
        let ended = |(pid, target): (&u32, &Target)| Some((target.last.exited.filter(|_| !target.named)?, *pid));
        let mut ended: Vec<(SystemTime, u32)> = self.targets.iter().filter_map(ended).collect();
        ended.sort_unstable();
        let surplus = ended.len().saturating_sub(MAX_ENDED);
        for (_, pid) in &ended[..surplus] {
            self.targets.remove(pid);
        }
    }

    fn adopt_children(&mut self) {
        if self.children_at.elapsed() < CHILDREN {
            return;
        }
        self.children_at = Instant::now();
        let alive: Vec<u32> =
            self.targets.iter().filter(|(_, target)| target.last.exited.is_none()).map(|(pid, _)| *pid).collect();
        let mut found = Proc::children(&alive).unwrap_or_default();
        found.extend(self.tracer.processes());
        for pid in found {
            let known = self.targets.get(&pid).is_some_and(|target| target.last.exited.is_none());
            let full = self.targets.len() + self.candidates.len() >= MAX_TARGETS;
            if known || full || pid == std::process::id() {
                continue;
            }
            if let Ok(target) = Target::new(pid, false) {
                self.candidates.insert(pid, target);
            }
        }
    }

    /// Watches the children that turned out to run on hg, and those that do not answer. A child that runs another program is
    /// none of ours.
    fn take_children(&mut self) {
        for (pid, mut target) in std::mem::take(&mut self.candidates) {
            if target.settle().is_none() {
                self.targets.insert(pid, target);
            }
        }
    }
}

/// None of the processes can be watched: why, for each; the first one's reason gives the exit code.
fn refused(errors: Vec<PageError>) -> Failure {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let text = lines.join("\nhg-top: ");
    match errors.into_iter().next() {
        None => Failure::Nothing("no process to watch: give --pid, or run hg-top without it to choose one".into()),
        Some(error) => Failure::of(error, text),
    }
}

impl From<PageError> for Failure {
    fn from(error: PageError) -> Failure {
        let text = error.to_string();
        Failure::of(error, text)
    }
}

impl Failure {
    fn of(error: PageError, text: String) -> Failure {
        match error {
            PageError::Gone(_) | PageError::NotOnHg(_) => Failure::Nothing(text),
            PageError::Denied(_) => Failure::Permission(text),
            PageError::Version { .. } | PageError::Damaged { .. } => Failure::Incompatible(text),
        }
    }
}
