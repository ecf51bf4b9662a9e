//! What deserves an operator's attention: each alert says since when, on what evidence, and what to do next.
//!
//! Alerts come from events (within a second, with thread and stack) and from snapshots (also without eBPF). One alert
//! stands for one kind, process and subject; repetitions raise its count and renew its evidence.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::event::Event;
use crate::model::{ArenaId, MonotonicNs, Snapshot};

mod events;
mod kind;
mod page;

pub use kind::Kind;
pub use page::lost_causes;

/// How long after its last occurrence an alert is still news.
const FRESH: Duration = Duration::from_secs(60);

/// How long an alert that was never seen before goes before all others.
const JUST_BEGUN: Duration = Duration::from_secs(5);

/// Kinds and subjects kept; a target that makes up more of them gains nothing.
const MAX_ALERTS: usize = 256;

/// One alert.
#[derive(Clone, Debug)]
pub struct Alert {
    /// What kind of thing happened.
    pub kind: Kind,
    /// To which process; 0 for hg-top itself.
    pub pid: u32,
    /// What that does, as it says itself.
    pub role: Option<String>,
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
    /// What to do about it.
    pub next_step: &'static str,
    /// Stack of the last occurrence, innermost first.
    pub stack: Vec<String>,
    /// Its id in the kernel's stack map.
    pub stack_id: Option<u32>,
    /// Whether it lasts until somebody does something.
    pub stuck: bool,
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
    /// Since when memory of an arena is on its way to the system, by arena.
    limbo: BTreeMap<ArenaId, MonotonicNs>,
}

/// One sighting, before it is merged with earlier ones.
struct Sighting {
    kind: Kind,
    pid: u32,
    role: Option<String>,
    subject: String,
    count: u64,
    evidence: String,
    next_step: &'static str,
    time: SystemTime,
    stuck: bool,
    /// Of a state that lasts: it counts once while it does. When it was looked at before.
    lasting: Option<SystemTime>,
}

impl Sighting {
    fn new(kind: Kind, pid: u32, subject: impl Into<String>, evidence: String, time: SystemTime) -> Sighting {
        let next_step = kind.next_step();
        Sighting {
            kind,
            pid,
            role: None,
            subject: subject.into(),
            count: 1,
            evidence,
            next_step,
            time,
            stuck: false,
            lasting: None,
        }
    }

    fn role(self, role: Option<&str>) -> Sighting {
        Sighting { role: role.map(str::to_owned), ..self }
    }

    fn times(self, count: u64) -> Sighting {
        Sighting { count, ..self }
    }

    fn remedy(self, next_step: &'static str) -> Sighting {
        Sighting { next_step, ..self }
    }

    fn stuck(self, stuck: bool) -> Sighting {
        Sighting { stuck, ..self }
    }

    fn lasting(self, before: SystemTime) -> Sighting {
        Sighting { lasting: Some(before), ..self }
    }
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
            .min_by_key(|alert| (!begun(alert), alert.kind, !alert.stuck, std::cmp::Reverse(alert.last)))
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
        let Some(sighting) = events::sighting(event) else { return };
        if let Some(alert) = self.note(sighting) {
            (alert.stack, alert.stack_id) = (event.stack.clone(), event.stack_id);
        }
    }

    /// Compares a snapshot with the one before it.
    pub fn snapshot(&mut self, now: &Snapshot, before: Option<&Snapshot>) {
        for sighting in page::sightings(now, before, &mut self.limbo) {
            self.note(sighting);
        }
    }

    fn note(&mut self, sighting: Sighting) -> Option<&mut Alert> {
        let Sighting { kind, pid, role, subject, count, evidence, next_step, time, stuck, lasting } = sighting;
        let key = (kind, pid, subject.clone());
        if self.by_subject.len() >= MAX_ALERTS && !self.by_subject.contains_key(&key) {
            return None;
        }
        let alert = self.by_subject.entry(key).or_insert_with(|| Alert {
            kind,
            pid,
            role: None,
            subject,
            since: time,
            last: time,
            count: 0,
            evidence: String::new(),
            next_step,
            stack: Vec::new(),
            stack_id: None,
            stuck,
        });
        alert.role = role.or(alert.role.take());
        let goes_on = alert.count > 0 && lasting.is_some_and(|before| alert.last >= before);
        alert.last = alert.last.max(time);
        alert.count = if goes_on { alert.count } else { alert.count.saturating_add(count) };
        (alert.evidence, alert.next_step, alert.stuck) = (evidence, next_step, stuck);
        Some(alert)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Who;
    use crate::model::{Arena, Figures, Histogram, HoldWait, Identity, Lock, Process};
    use hg_probes::ProbeId;
    use hg_probes::maps::{self, Lost};
    use hg_probes::words::{Cause, LockId, Reason, StallKind, Tier, TierReason};
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
        let identity = Identity::unknown(5);
        let process = Process { arenas: BTreeMap::from([(1, arena)]), traced, ..Process::new(identity) };
        let processes = BTreeMap::from([(5, process)]);
        Snapshot { at: second, time: at(second), processes, ..Snapshot::empty() }
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
    fn a_stall_names_the_process_that_has_the_lock_with_its_role() {
        let who = |pid, state| Who { pid, role: Some("SIP receiver udp:5060".into()), ..Who::unknown(pid, state) };
        let stall = |second, lock, holder: Who| {
            let args = [2, lock, Reason::Grow as u64, 1_200_000, StallKind::Wait as u64, holder.tid.into()];
            let event = event(ProbeId::LockStall, second, args);
            Event { other: Some(holder), role: Some("timer".into()), owner: Some(100), ..event }
        };
        let mut alerts = Alerts::default();
        alerts.event(&stall(10, 0, who(27_726, "stopped")));
        let [alert] = alerts.all()[..] else { panic!("one alert") };
        assert_eq!((alert.pid, alert.role.as_deref()), (27_726, Some("SIP receiver udp:5060")));
        let evidence =
            "grid held by tid 27726 (stopped), SIP receiver udp:5060; waited for 1.20ms (grow) by tid 7, timer";
        assert_eq!((alert.subject.as_str(), alert.evidence.as_str()), ("grid held", evidence));
        assert!(alert.next_step.contains("kill -CONT"));
        // Others that were only off their CPU do not push it aside.
        alerts.event(&stall(11, 64, who(27_727, "running or preempted")));
        assert_eq!((alerts.top(at(30)).unwrap().pid, alerts.all().len()), (27_726, 2));
        // A holder of which nothing is known is told of by who waits.
        alerts.event(&stall(12, 64, Who::unknown(9, "dead or not watched")));
        let evidence = &alerts.all()[0].evidence;
        assert_eq!(evidence, "class 64 waited for 1.20ms (grow) by tid 7; held by tid 9 (dead or not watched)");
    }

    #[test]
    fn a_dead_owner_is_an_alert_about_its_arena() {
        let mut alerts = Alerts::default();
        for tid in [31, 32] {
            let event = event(ProbeId::OwnerDead, 10, [2, 64, tid, 3, 0, 0]);
            let other = Who { role: Some("timer".into()), ..Who::unknown(tid as u32, "dead") };
            alerts.event(&Event { other: Some(other), owner: Some(100), ..event });
        }
        let [alert] = alerts.all()[..] else { panic!("one alert") };
        assert_eq!((alert.kind, alert.pid, alert.count), (Kind::OwnerDead, 100, 2));
        assert_eq!(alert.evidence, "thread 32 (timer) died with class 64; 3 cells recovered");
        let deaths = |deaths| {
            move |arena: &mut Arena| arena.figures.iter_mut().for_each(|figures| figures.owner_deaths = deaths)
        };
        let mut alerts = Alerts::default();
        let (first, second) = (snapshot(1, false, deaths(0)), snapshot(2, false, deaths(4)));
        alerts.snapshot(&first, None);
        assert!(alerts.is_empty());
        alerts.snapshot(&second, Some(&first));
        assert_eq!((alerts.all()[0].kind, alerts.all()[0].count), (Kind::OwnerDead, 4));
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
    fn states_that_last_are_one_alert_with_their_cause_and_what_to_do() {
        let stuck = |arena: &mut Arena| {
            if let Some(figures) = &mut arena.figures {
                figures.grow_blocked = true;
                figures.blocked_cause = Some(Cause::Cgroup);
                figures.pin_wanted = true;
                figures.pin_errno = libc::EPERM as u32;
                figures.tier = Some(Tier::Base);
                figures.tier_wanted = Some(Tier::Hugetlb);
                figures.tier_reason = Some(TierReason::PoolEmpty);
                figures.limbo = 2 << 20;
            }
        };
        let mut alerts = Alerts::default();
        let mut before: Option<Snapshot> = None;
        for second in 1..=8 {
            let now = Snapshot { at: second * 1_000_000_000, ..snapshot(second, true, stuck) };
            alerts.snapshot(&now, before.as_ref());
            before = Some(now);
        }
        let all = alerts.all();
        let of = |kind| *all.iter().find(|alert| alert.kind == kind).unwrap();
        assert_eq!(all.iter().map(|alert| alert.count).collect::<Vec<_>>(), [1, 1, 1, 1], "each is one episode");
        let blocked = of(Kind::GrowBlocked);
        assert!(blocked.evidence.ends_with("cannot grow beyond 0 B of 0 B: cgroup limit"), "{}", blocked.evidence);
        assert!(blocked.next_step.contains("memory.max"));
        assert!(of(Kind::Unpinned).next_step.contains("ulimit -l unlimited"));
        let fallback = of(Kind::TierFallback);
        assert!(fallback.evidence.ends_with("4K instead of hugetlb: hugetlb pool empty") && !fallback.kind.severe());
        assert!(fallback.next_step.contains("vm.nr_hugepages"));
        assert_eq!((of(Kind::Limbo).since, of(Kind::Limbo).last), (at(7), at(8)), "5 s are no limbo, more are");
        // A second episode counts.
        let well = Snapshot { at: 9_000_000_000, ..snapshot(9, true, |_| {}) };
        alerts.snapshot(&well, before.as_ref());
        let again = Snapshot { at: 10_000_000_000, ..snapshot(10, true, stuck) };
        alerts.snapshot(&again, Some(&well));
        let count = |kind| alerts.all().iter().find(|alert| alert.kind == kind).map(|alert| alert.count);
        assert_eq!((count(Kind::GrowBlocked), count(Kind::Limbo)), (Some(2), Some(1)));
    }

    #[test]
    fn what_was_decided_is_no_fallback() {
        for reason in [TierReason::Obtained, TierReason::NotAsked, TierReason::SysfsNever, TierReason::Sparse] {
            let mut alerts = Alerts::default();
            let decided = |arena: &mut Arena| {
                if let Some(figures) = &mut arena.figures {
                    figures.tier = Some(Tier::Base);
                    figures.tier_wanted = Some(Tier::Thp);
                    figures.tier_reason = Some(reason);
                }
            };
            alerts.snapshot(&snapshot(1, true, decided), None);
            assert!(alerts.is_empty(), "{reason:?}");
        }
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
