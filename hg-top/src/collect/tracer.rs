//! The eBPF source as the collector sees it: there or not, and why not.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use hg_probes::maps::{ClassKey, ClassValue, LockKey, LockValue, Lost};

use crate::model::EbpfState;
use crate::source::ebpf::{EbpfSource, RareEvent};

/// Probe hits lost, by [`Lost`].
type LostHits = [u64; Lost::COUNT as usize];

/// The eBPF source, its last readings, or why there is none.
pub(super) struct Tracer {
    source: Option<EbpfSource>,
    why_off: String,
    classes: BTreeMap<ClassKey, ClassValue>,
    locks: BTreeMap<LockKey, LockValue>,
    lost: LostHits,
}

impl Tracer {
    /// Attaches to `pids`; if that fails, says why and goes on without.
    pub(super) fn attach(pids: &[u32]) -> Tracer {
        match EbpfSource::attach(pids) {
            Ok(source) => Tracer { source: Some(source), ..Tracer::off("") },
            Err(error) => Tracer::off(&chain(&error)),
        }
    }

    /// No tracing, for this reason.
    pub(super) fn off(why: &str) -> Tracer {
        Tracer {
            source: None,
            why_off: why.to_owned(),
            classes: BTreeMap::new(),
            locks: BTreeMap::new(),
            lost: LostHits::default(),
        }
    }

    /// Whether it works.
    pub(super) fn state(&self) -> EbpfState {
        match &self.source {
            Some(source) => {
                let sites = source.sites();
                EbpfState::On { attached: sites.attached, found: sites.found }
            }
            None => EbpfState::Off(self.why_off.clone()),
        }
    }

    /// Takes in the newest sums, and returns the events since the last call. A source that fails is given up for good.
    pub(super) fn poll(&mut self) -> Vec<RareEvent> {
        match self.source.as_mut().map(EbpfSource::poll) {
            None => Vec::new(),
            Some(Ok(sample)) => {
                (self.classes, self.locks, self.lost) = (sample.classes, sample.locks, sample.lost);
                sample.events
            }
            Some(Err(error)) => {
                self.why_off = format!("stopped: {}; the stats page goes on", chain(&error));
                self.source.take().into_iter().for_each(EbpfSource::detach);
                Vec::new()
            }
        }
    }

    /// The class map as of the last poll.
    pub(super) fn classes(&self) -> &BTreeMap<ClassKey, ClassValue> {
        &self.classes
    }

    /// The lock map as of the last poll.
    pub(super) fn locks(&self) -> &BTreeMap<LockKey, LockValue> {
        &self.locks
    }

    /// Lost hits as of the last poll.
    pub(super) fn lost(&self) -> LostHits {
        self.lost
    }

    /// Readable while there are events.
    pub(super) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(EbpfSource::event_fd)
    }

    /// Processes the BPF program follows, children included.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.source.as_ref().map(EbpfSource::processes).unwrap_or_default()
    }

    /// Follows one more process.
    pub(super) fn watch(&mut self, pid: u32) -> Result<(), String> {
        match &mut self.source {
            Some(source) => {
                source.watch(pid).map_err(|error| format!("process {pid} is not traced: {}", chain(&error)))
            }
            None => Ok(()),
        }
    }

    /// Ends it.
    pub(super) fn detach(self) {
        self.source.into_iter().for_each(EbpfSource::detach);
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    crate::escape::within(text.as_bytes(), 1000)
}
