//! What deserves an operator's attention: each alert says since when, on what evidence, and what to do next.
//!
//! Alerts come from events (within a second, with thread and stack) and from snapshots (also without eBPF). One alert
//! stands for one kind, process and subject; repetitions raise its count and renew its evidence.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use hg_probes::ProbeId;
use hg_probes::maps::Lost;
use hg_probes::words::{Cause, CorruptionKind, StallKind};

use crate::event::Event;
use crate::model::scope::same_process;
use crate::model::{Process, Snapshot};
use crate::process::{Thread, host_tid};
use crate::unit;

/// How long after its last occurrence an alert is still news.
const FRESH: Duration = Duration::from_secs(60);

/// How long an alert that was never seen before goes before all others.
const JUST_BEGUN: Duration = Duration::from_secs(5);

/// Kinds and subjects kept; a target that makes up more of them gains nothing.
const MAX_ALERTS: usize = 256;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A bad call was refused.
    Corruption,
    /// A caller got NULL.
    AllocFailed,
    /// A lock was held or waited for longer than the threshold.
    LockStall,
    /// An arena cannot grow.
    GrowBlocked,
    /// Probe hits were lost: traced figures are too low.
    ProbesDropped,
    /// Parts of a stats page could not be copied whole.
    StatsTorn,
}

impl Kind {
    /// Its name on screen and in JSON.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Corruption => "corruption",
            Kind::AllocFailed => "alloc-failed",
            Kind::LockStall => "lock-stall",
            Kind::GrowBlocked => "grow-blocked",
            Kind::ProbesDropped => "probes-dropped",
            Kind::StatsTorn => "stats-torn",
        }
    }

    /// Whether the target itself is in trouble, rather than our view of it.
    pub fn severe(self) -> bool {
        !matches!(self, Kind::ProbesDropped | Kind::StatsTorn)
    }

    /// What to do about it.
    pub fn next_step(self) -> &'static str {
        match self {
            Kind::Corruption => "find the caller by its stack; its call was refused",
            Kind::AllocFailed => "raise the limit named, or find what grows in view 2",
            Kind::LockStall => "look at the holder: a stopped one stalls all others",
            Kind::GrowBlocked => "raise the limit named: allocations fail next",
            Kind::ProbesDropped => "trust the stats page: what eBPF counts is too low",
            Kind::StatsTorn => "none: older figures are shown until a copy is whole",
        }
    }
}

/// One alert.
#[derive(Clone, Debug)]
pub struct Alert {
    /// What kind of thing happened.
    pub kind: Kind,
    /// To which process; 0 for hg-top itself.
    pub pid: u32,
    /// To what in it: `class 64 refill`, `double free`, ...
    pub subject: String,
    /// When it was first seen.
    pub since: SystemTime,
    /// When it was last seen.
    pub last: SystemTime,
    /// How often it was seen.
    pub count: u64,
    /// What was seen last, as a sentence.
    pub evidence: String,
    /// Stack of the last occurrence, innermost first.
    pub stack: Vec<String>,
    /// Its id in the kernel's stack map.
    pub stack_id: Option<u32>,
}

impl Alert {
    /// Whether it is news at `now`.
    pub fn fresh(&self, now: SystemTime) -> bool {
        now.duration_since(self.last).unwrap_or_default() < FRESH
    }
}

/// All alerts so far.
#[derive(Clone, Debug, Default)]
pub struct Alerts {
    by_subject: BTreeMap<(Kind, u32, String), Alert>,
}

/// One sighting, before it is merged with earlier ones.
struct Sighting {
    kind: Kind,
    pid: u32,
    subject: String,
    count: u64,
    evidence: String,
    time: SystemTime,
}

impl Alerts {
    /// All alerts, the most recent first.
    pub fn all(&self) -> Vec<&Alert> {
        let mut alerts: Vec<&Alert> = self.by_subject.values().collect();
        alerts.sort_by(|a, b| b.last.cmp(&a.last).then(a.kind.cmp(&b.kind)));
        alerts
    }

    /// The alert to show where there is room for one: what has just begun, then the gravest of the last minute.
    pub fn top(&self, now: SystemTime) -> Option<&Alert> {
        let begun = |alert: &Alert| now.duration_since(alert.since).unwrap_or_default() < JUST_BEGUN;
        self.by_subject
            .values()
            .filter(|alert| alert.fresh(now))
            .min_by_key(|alert| (!begun(alert), alert.kind, std::cmp::Reverse(alert.last)))
    }

    /// How many are news.
    pub fn fresh(&self, now: SystemTime) -> usize {
        self.by_subject.values().filter(|alert| alert.fresh(now)).count()
    }

    /// Whether any fired at all.
    pub fn is_empty(&self) -> bool {
        self.by_subject.is_empty()
    }

    /// Takes note of an event.
    pub fn event(&mut self, event: &Event) {
        let (kind, subject, evidence) = match event.probe.id {
            ProbeId::LockStall => {
                let subject = format!("{} {}", event.shown("lock"), event.shown("reason"));
                (Kind::LockStall, subject, stall_evidence(event))
            }
            ProbeId::Corruption => {
                let evidence = format!("{} by thread {}", event.meaning(), thread(event.pid, event.tid));
                (Kind::Corruption, event.shown("kind"), evidence)
            }
            ProbeId::AllocFailed => (Kind::AllocFailed, event.shown("cause"), event.meaning()),
            ProbeId::GrowBlocked if event.raw("on") != 0 => (Kind::GrowBlocked, String::new(), event.meaning()),
            _ => return,
        };
        let sighting = Sighting { kind, pid: event.pid, subject, count: 1, evidence, time: event.time };
        if let Some(alert) = self.note(sighting) {
            (alert.stack, alert.stack_id) = (event.stack.clone(), event.stack_id);
        }
    }

    /// Compares a snapshot with the one before it.
    pub fn snapshot(&mut self, now: &Snapshot, before: Option<&Snapshot>) {
        let lost = now.lost_events();
        let more = lost.saturating_sub(before.map_or(0, Snapshot::lost_events));
        if more > 0 {
            let evidence = format!("{} probe hits lost: {}", unit::count(lost), lost_causes(now));
            self.note(Sighting::new(Kind::ProbesDropped, 0, String::new(), more, evidence, now.time));
        }
        for process in now.processes.values().filter(|process| process.exited.is_none()) {
            self.process(process, before, now.time);
        }
    }

    fn process(&mut self, process: &Process, before: Option<&Snapshot>, time: SystemTime) {
        let pid = process.identity.pid;
        let before = before.and_then(|before| same_process(before, process));
        for (number, arena) in &process.arenas {
            let before = before.and_then(|process| process.arenas.get(number));
            if arena.torn > 0 {
                let evidence = format!("{} blocks of arena {} changed at each attempt", arena.torn, arena.name);
                self.note(Sighting::new(Kind::StatsTorn, pid, arena.name.clone(), 1, evidence, time));
            }
            let Some(figures) = &arena.figures else { continue };
            if figures.grow_blocked {
                let evidence = format!(
                    "arena {} cannot grow beyond {} of {}",
                    arena.name,
                    unit::bytes(figures.committed),
                    unit::bytes(figures.reserved)
                );
                self.note(Sighting::new(Kind::GrowBlocked, pid, String::new(), 1, evidence, time));
            }
            let earlier = before.and_then(|arena| arena.figures.as_ref());
            // Traced processes report these by events; before the first snapshot nobody did.
            if !process.traced || earlier.is_none() {
                let when = if earlier.is_none() { "before hg-top looked" } else { "by the stats page" };
                for (number, more) in risen(&figures.corruptions, earlier.map(|figures| &figures.corruptions)) {
                    let kind = CorruptionKind::from_u64(number).map_or("unknown kind", CorruptionKind::label);
                    let evidence = format!("refused: {more} × {kind}, {when}");
                    self.note(Sighting::new(Kind::Corruption, pid, kind.into(), more, evidence, time));
                }
                for (number, more) in risen(&figures.allocs_failed, earlier.map(|figures| &figures.allocs_failed)) {
                    let cause = Cause::from_u64(number).map_or("unknown cause", Cause::label);
                    let evidence = format!("{more} allocations failed: {cause}, {when}");
                    self.note(Sighting::new(Kind::AllocFailed, pid, cause.into(), more, evidence, time));
                }
            }
            let Some(before) = before.filter(|_| !process.traced) else { continue };
            for ((lock, reason), now) in &arena.locks {
                let stalls =
                    |lock: &crate::model::Lock| lock.total.as_ref().map_or(0, |t| t.hold.stalls + t.wait.stalls);
                let more = stalls(now).saturating_sub(before.locks.get(&(*lock, *reason)).map_or(0, stalls));
                let Some(total) = now.total.as_ref().filter(|_| more > 0) else { continue };
                let evidence = format!(
                    "{lock} stalled {more} × for {}, by the stats page; longest hold {} by tid {}",
                    reason.label(),
                    unit::ns(total.hold.max_ns),
                    total.hold.max_tid
                );
                let subject = format!("{lock} {}", reason.label());
                self.note(Sighting::new(Kind::LockStall, pid, subject, more, evidence, time));
            }
        }
    }

    fn note(&mut self, sighting: Sighting) -> Option<&mut Alert> {
        let Sighting { kind, pid, subject, count, evidence, time } = sighting;
        let key = (kind, pid, subject.clone());
        if self.by_subject.len() >= MAX_ALERTS && !self.by_subject.contains_key(&key) {
            return None;
        }
        let alert = self.by_subject.entry(key).or_insert_with(|| Alert {
            kind,
            pid,
            subject,
            since: time,
            last: time,
            count: 0,
            evidence: String::new(),
            stack: Vec::new(),
            stack_id: None,
        });
        alert.last = alert.last.max(time);
        alert.count = alert.count.saturating_add(count);
        alert.evidence = evidence;
        Some(alert)
    }
}

impl Sighting {
    fn new(kind: Kind, pid: u32, subject: String, count: u64, evidence: String, time: SystemTime) -> Sighting {
        Sighting { kind, pid, subject, count, evidence, time }
    }
}

fn thread(pid: u32, tid: u32) -> String {
    let thread = Thread::look(pid, tid);
    match thread.comm.is_empty() {
        true => format!("{tid} ({})", thread.state),
        false => format!("{tid} \"{}\" ({})", thread.comm, thread.state),
    }
}

fn stall_evidence(event: &Event) -> String {
    let (lock, reason, ns) = (event.shown("lock"), event.shown("reason"), event.shown("ns"));
    // Locks know their holders by the ids of the process's own namespace. The holder itself tells of a long hold.
    let holder = || match event.raw("holder_tid") as u32 {
        0 => None,
        tid => Some(thread(event.pid, host_tid(event.pid, tid))),
    };
    match StallKind::from_u64(event.raw("hold_or_wait")) {
        Some(StallKind::Wait) => {
            let held = holder().map_or_else(String::new, |holder| format!("; held by tid {holder}"));
            format!("{lock} waited for {ns} ({reason}) by tid {}{held}", event.tid)
        }
        _ => format!("{lock} held {ns} ({reason}) by tid {}", thread(event.pid, event.tid)),
    }
}

/// Which entries of a list of counters rose, and by how much.
fn risen<'a>(now: &'a [u64], before: Option<&'a Vec<u64>>) -> impl Iterator<Item = (u64, u64)> + 'a {
    now.iter().enumerate().filter_map(move |(index, now)| {
        let more = now.saturating_sub(before.and_then(|before| before.get(index)).copied().unwrap_or(0));
        (more > 0).then_some((index as u64, more))
    })
}

/// Why hits were lost: `ring full 12, map full 3`.
pub fn lost_causes(snapshot: &Snapshot) -> String {
    const CAUSES: [(Lost, &str); Lost::COUNT as usize] = [
        (Lost::RingFull, "ring full"),
        (Lost::MapFull, "map full"),
        (Lost::KeysSpent, "too many keys of one process"),
        (Lost::FilterFull, "too many processes"),
        (Lost::Recursion, "recursion"),
    ];
    let causes = CAUSES.iter().map(|(cause, name)| (name, snapshot.lost[*cause as usize]));
    causes.filter(|(_, lost)| *lost > 0).map(|(name, lost)| format!("{name} {lost}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arena, EbpfState, Figures, Histogram, HoldWait, Identity, Lock};
    use hg_probes::maps;
    use hg_probes::words::{LockId, Reason};
    use std::time::UNIX_EPOCH;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    fn event(probe: ProbeId, second: u64, args: [u64; 6]) -> Event {
        // A process that does not exist: its threads are dead.
        let raw = maps::Event { ns: 1, probe: probe as u32, tgid: 0x3fff_ffff, tid: 7, stack: 9, args };
        Event::decode(&raw, at(second), vec!["libhg.so+0x10".into()]).unwrap()
    }

    fn snapshot(second: u64, traced: bool, change: impl Fn(&mut Arena)) -> Snapshot {
        let mut arena = Arena {
            name: "malloc".into(),
            figures: Some(Figures { corruptions: vec![0; 8], allocs_failed: vec![0; 16], ..Figures::default() }),
            ..Arena::default()
        };
        change(&mut arena);
        let identity = Identity {
            pid: 5,
            start_ticks: 1,
            exe: String::new(),
            comm: String::new(),
            role: String::new(),
            started: UNIX_EPOCH,
        };
        let process = Process {
            identity,
            read_at: 0,
            memory: None,
            arenas: BTreeMap::from([(1, arena)]),
            threads: BTreeMap::new(),
            traced,
            page_error: None,
            exited: None,
        };
        let processes = BTreeMap::from([(5, process)]);
        Snapshot { at: second, time: at(second), processes, ebpf: EbpfState::Off(String::new()), lost: [0; 5] }
    }

    #[test]
    fn a_stall_names_lock_holder_and_stack_and_repetitions_are_counted() {
        let mut alerts = Alerts::default();
        for second in [10, 20] {
            alerts.event(&event(ProbeId::LockStall, second, [1, 64, 0, 4_200_000, StallKind::Hold as u64, 4250]));
        }
        alerts.event(&event(ProbeId::Grow, 30, [0; 6]));
        let [alert] = alerts.all()[..] else { panic!("one alert") };
        assert_eq!((alert.kind, alert.count, alert.since, alert.last), (Kind::LockStall, 2, at(10), at(20)));
        assert_eq!(alert.evidence, "class 64 held 4.20ms (refill) by tid 7 (dead)");
        assert_eq!((alert.stack_id, alert.stack.len()), (Some(9), 1));
        assert!(alert.fresh(at(79)) && !alert.fresh(at(81)));
        alerts.event(&event(ProbeId::LockStall, 21, [1, 64, 0, 4_200_000, StallKind::Wait as u64, 4250]));
        let evidence = &alerts.all()[0].evidence;
        assert_eq!(evidence, "class 64 waited for 4.20ms (refill) by tid 7; held by tid 4250 (dead)");
    }

    #[test]
    fn what_has_just_begun_goes_first_then_the_gravest() {
        let mut alerts = Alerts::default();
        alerts.event(&event(ProbeId::Corruption, 100, [1, 0, 64, 64, 1, 0]));
        alerts.event(&event(ProbeId::LockStall, 110, [1, 64, 0, 4_200_000, 0, 0]));
        assert_eq!(alerts.top(at(112)).unwrap().kind, Kind::LockStall);
        assert_eq!(alerts.top(at(116)).unwrap().kind, Kind::Corruption);
        assert!(alerts.top(at(500)).is_none());
        assert_eq!(alerts.fresh(at(116)), 2);
    }

    #[test]
    fn the_stats_page_alone_tells_too() {
        let stalls = |stalls| {
            move |arena: &mut Arena| {
                let hold = Histogram { count: 9, max_ns: 5_000_000, max_tid: 8, stalls, ..Histogram::default() };
                let both = HoldWait { hold, ..HoldWait::default() };
                let lock = Lock { total: Some(both), ..Lock::default() };
                arena.locks.insert((LockId::GRID, Reason::Large), lock);
                if let Some(figures) = &mut arena.figures {
                    figures.corruptions[0] = stalls;
                    figures.grow_blocked = stalls > 1;
                }
            }
        };
        let (first, second) = (snapshot(1, false, stalls(1)), snapshot(2, false, stalls(3)));
        let mut alerts = Alerts::default();
        alerts.snapshot(&first, None);
        let kinds = |alerts: &Alerts| alerts.all().iter().map(|alert| (alert.kind, alert.count)).collect::<Vec<_>>();
        assert_eq!(kinds(&alerts), [(Kind::Corruption, 1)], "stalls of the past are no news, refused calls are");
        alerts.snapshot(&second, Some(&first));
        assert_eq!(kinds(&alerts), [(Kind::Corruption, 3), (Kind::LockStall, 2), (Kind::GrowBlocked, 1)]);
        // Where eBPF reports the same, it is not counted twice.
        let (first, second) = (snapshot(1, true, stalls(1)), snapshot(2, true, stalls(3)));
        let mut alerts = Alerts::default();
        alerts.snapshot(&first, None);
        alerts.snapshot(&second, Some(&first));
        assert_eq!(kinds(&alerts), [(Kind::GrowBlocked, 1), (Kind::Corruption, 1)]);
    }

    #[test]
    fn lost_hits_and_torn_blocks() {
        let mut alerts = Alerts::default();
        let mut now = snapshot(1, true, |arena| arena.torn = 2);
        now.lost[Lost::RingFull as usize] = 12;
        alerts.snapshot(&now, None);
        let evidence: Vec<&str> = alerts.all().iter().map(|alert| alert.evidence.as_str()).collect();
        assert_eq!(evidence, ["12 probe hits lost: ring full 12", "2 blocks of arena malloc changed at each attempt"]);
    }

    #[test]
    fn a_target_cannot_fill_the_list() {
        let mut alerts = Alerts::default();
        for lock in 0..10_000 {
            alerts.event(&event(ProbeId::LockStall, 1, [1, lock, 0, 1, 0, 0]));
        }
        assert_eq!(alerts.all().len(), MAX_ALERTS);
    }
}
