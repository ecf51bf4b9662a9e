//! Reads both sources into snapshots, and follows the watched processes: those that exit stay with their last figures,
//! children on hg join (and leave, some time after they ended), and one that executes another program is attached anew.
//!
//! Owns the sources. The live loop and the batch mode call [`Collector::sample`] once an interval and
//! [`Collector::events`] when the ring buffer has something.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub mod map;
mod merge;
mod tracer;

use tracer::Tracer;

use crate::event::Event;
use crate::exit::Failure;
use crate::model::{EbpfState, Process, Snapshot};
use crate::process::{self, Process as Proc, Thread};
use crate::source::stats::StatsSource;
use crate::source::stats::copy::PageError;
use crate::symbol;

/// How often children are looked for; a walk of /proc.
const CHILDREN: Duration = Duration::from_secs(2);

/// Processes watched at once.
const MAX_TARGETS: usize = 1024;

/// Children that have ended and are still shown. A server that forks for each request must not fill the list with them.
const MAX_ENDED: usize = 32;

/// Names of threads kept per process.
const MAX_THREADS: usize = 1024;

/// What is said of a process that had a stats page and has none any more.
const LEFT_HG: &str = "it executed another program, which does not run on hg; its last figures are shown";

/// Both sources over the watched processes.
pub struct Collector {
    targets: BTreeMap<u32, Target>,
    tracer: Tracer,
    children_at: Instant,
    /// Messages for the operator about what could not be done; taken by the caller.
    warnings: Vec<String>,
}

/// A watched process: where its figures come from, and the last ones.
struct Target {
    stats: Option<StatsSource>,
    last: Process,
    /// Whether the user named it; others are children of those.
    named: bool,
    /// The program that the probes were attached for.
    attached: String,
}

impl Collector {
    /// Watches `pids`. Those that cannot be watched are warned about; an error if none can be.
    pub fn open(pids: &[u32], with_ebpf: bool) -> Result<Collector, Failure> {
        let mut targets = BTreeMap::new();
        let mut failures = Vec::new();
        for &pid in pids.iter().take(MAX_TARGETS) {
            match Target::open(pid) {
                Ok(target) => drop(targets.insert(pid, Target { named: true, ..target })),
                Err(error) => failures.push(error),
            }
        }
        let mut warnings: Vec<String> = failures.iter().map(ToString::to_string).collect();
        if targets.is_empty() {
            return Err(refused(failures));
        }
        if pids.len() > MAX_TARGETS {
            warnings.push(format!("{} processes named, the first {MAX_TARGETS} are watched", pids.len()));
        }
        let watched: Vec<u32> = targets.keys().copied().collect();
        let tracer = if with_ebpf { Tracer::attach(&watched) } else { Tracer::off("switched off by --no-ebpf") };
        Ok(Collector { targets, tracer, children_at: Instant::now(), warnings })
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
        raw.into_iter()
            .filter_map(|raw| {
                let time = now.checked_sub(Duration::from_nanos(monotonic.saturating_sub(raw.event.ns))).unwrap_or(now);
                let stack = symbols.frames(raw.event.tgid, &raw.stack);
                Event::decode(&raw.event, time, stack)
            })
            .collect()
    }

    /// Reads everything once. Events that came meanwhile are returned with it.
    pub fn sample(&mut self) -> (Arc<Snapshot>, Vec<Event>) {
        self.adopt_children();
        let time = SystemTime::now();
        for (pid, target) in &mut self.targets {
            target.read(*pid, time);
            if target.executed() {
                self.warnings.extend(self.tracer.watch(*pid).err());
            }
        }
        self.forget_ended();
        let events = self.events();
        let mut snapshot = Snapshot {
            at: process::monotonic_ns(),
            time,
            processes: self.targets.iter().map(|(pid, target)| (*pid, target.last.clone())).collect(),
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
            if known || self.targets.len() >= MAX_TARGETS || pid == std::process::id() {
                continue;
            }
            // A child that runs another program is none of ours.
            if let Ok(target) = Target::open(pid) {
                self.targets.insert(pid, target);
                self.warnings.extend(self.tracer.watch(pid).err());
            }
        }
    }
}

impl Target {
    fn open(pid: u32) -> Result<Target, PageError> {
        let identity = Proc::identity(pid).map_err(|_| PageError::Gone(pid))?;
        let mut stats = StatsSource::open(pid)?;
        let arenas = stats.read(None)?;
        let last = Process {
            identity,
            read_at: process::monotonic_ns(),
            memory: Proc::memory(pid).ok(),
            arenas,
            threads: BTreeMap::new(),
            traced: false,
            page_error: None,
            exited: None,
        };
        let attached = last.identity.exe.clone();
        let mut target = Target { stats: Some(stats), last, named: false, attached };
        target.name_threads(pid);
        Ok(target)
    }

    /// Looks up the names of threads that stand out, while they live.
    fn name_threads(&mut self, pid: u32) {
        let new: Vec<u32> = self.last.worst_threads().filter(|tid| !self.last.threads.contains_key(tid)).collect();
        for tid in new {
            if self.last.threads.len() >= MAX_THREADS {
                self.last.threads.clear();
            }
            let name = Thread::look(pid, process::host_tid(pid, tid)).comm;
            if !name.is_empty() {
                self.last.threads.insert(tid, name);
            }
        }
    }

    /// Whether it runs another program on hg since this was asked last.
    fn executed(&mut self) -> bool {
        let exe = &self.last.identity.exe;
        let other = self.last.exited.is_none() && self.last.page_error.is_none() && *exe != self.attached;
        if other {
            self.attached.clone_from(exe);
        }
        other
    }

    fn read(&mut self, pid: u32, now: SystemTime) {
        if self.last.exited.is_some() {
            return;
        }
        let same = |ticks: u64| ticks == self.last.identity.start_ticks;
        if !Proc::start_ticks(pid).is_ok_and(same) {
            self.last.exited = Some(now);
            self.stats = None;
            return;
        }
        let Some(stats) = &mut self.stats else { return };
        let read = stats.read(Some(&self.last.arenas));
        // Whatever was read belongs to this process only if it is still there.
        if !Proc::start_ticks(pid).is_ok_and(same) {
            self.last.exited = Some(now);
            return;
        }
        match read {
            Ok(arenas) => {
                self.last.arenas = arenas;
                self.last.read_at = process::monotonic_ns();
                self.last.page_error = None;
                self.name_threads(pid);
            }
            Err(PageError::NotOnHg(_)) => self.last.page_error = Some(LEFT_HG.to_owned()),
            Err(error) => self.last.page_error = Some(error.to_string()),
        }
        if let Ok(identity) = Proc::identity(pid)
            .map(|identity| crate::model::Identity { started: self.last.identity.started, ..identity })
        {
            self.last.identity = identity;
        }
        self.last.memory = Proc::memory(pid).ok().or(self.last.memory);
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
