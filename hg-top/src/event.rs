//! Rare events with their arguments by name: what the ring buffer brings, made readable.
//!
//! Names and units come from the catalogue, so that a screen, JSON and the documentation cannot disagree. Numbers that
//! this version knows no word for stay numbers.

use std::time::SystemTime;

use hg_probes::catalogue::{Probe, Unit};
use hg_probes::maps;
use hg_probes::words::{Cause, CorruptionKind, Destination, LockId, Reason, Source, StallKind, Tier};
use hg_probes::{PROBES, ProbeId};

use crate::model::MonotonicNs;
use crate::unit;

/// One hit of a rare probe.
#[derive(Clone, Debug)]
pub struct Event {
    /// When, for people.
    pub time: SystemTime,
    /// When, on the clock of the targets.
    pub at: MonotonicNs,
    /// Which probe.
    pub probe: &'static Probe,
    /// Process.
    pub pid: u32,
    /// Thread that hit it.
    pub tid: u32,
    /// Its arguments as they came, in the order of the catalogue.
    pub raw: [u64; 6],
    /// Id of its stack in the kernel's stack map.
    pub stack_id: Option<u32>,
    /// Its stack, innermost first, as `symbol+offset` or `file+offset`.
    pub stack: Vec<String>,
    /// What its process does, as that says itself.
    pub role: Option<String>,
    /// The process that stands for its arena, if several share that.
    pub owner: Option<u32>,
    /// The other thread that it tells of, where that may be another process's: who has the lock, or who died with it.
    pub other: Option<Who>,
}

/// A thread of a process that shares an arena, as it was when it was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its process; 0 if that is not known.
    pub pid: u32,
    /// Its id, as hg-top sees it if its process is known.
    pub tid: u32,
    /// Its name, escaped; may be empty.
    pub comm: String,
    /// What it does, in words.
    pub state: &'static str,
    /// What its process does.
    pub role: Option<String>,
}

impl Who {
    /// A thread of which no more is known than its id.
    pub fn unknown(tid: u32, state: &'static str) -> Who {
        Who { pid: 0, tid, comm: String::new(), state, role: None }
    }

    /// It in words: `27726 (stopped), SIP receiver udp:5060`.
    pub fn name(&self) -> String {
        let of = if [0, self.tid].contains(&self.pid) { String::new() } else { format!(" of {}", self.pid) };
        match &self.role {
            Some(role) => format!("{}{of} ({}), {role}", self.tid, self.state),
            None if self.comm.is_empty() => format!("{}{of} ({})", self.tid, self.state),
            None => format!("{}{of} \"{}\" ({})", self.tid, self.comm, self.state),
        }
    }
}

/// A decoded argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A word with a meaning.
    Label(String),
    /// A number in the unit of the catalogue.
    Number(i64),
    /// A number too large to be signed.
    Large(u64),
}

impl Event {
    /// From the ring buffer's form; `None` for a probe that this version does not know.
    pub fn decode(event: &maps::Event, time: SystemTime, stack: Vec<String>) -> Option<Event> {
        let probe = ProbeId::from_u64(u64::from(event.probe))?.probe();
        Some(Event {
            time,
            at: event.ns,
            probe,
            pid: event.tgid,
            tid: event.tid,
            raw: event.args,
            stack_id: u32::try_from(event.stack).ok(),
            stack,
            role: None,
            owner: None,
            other: None,
        })
    }

    /// Its arguments by name.
    pub fn args(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.probe.args.iter().zip(self.raw).map(|(arg, raw)| (arg.name, value(arg.unit, raw)))
    }

    /// One argument as it came; 0 if the probe has none of that name.
    pub fn raw(&self, name: &str) -> u64 {
        let index = self.probe.args.iter().position(|arg| arg.name == name);
        index.and_then(|index| self.raw.get(index)).copied().unwrap_or(0)
    }

    /// One argument as it is shown.
    pub fn shown(&self, name: &str) -> String {
        let arg = self.probe.args.iter().find(|arg| arg.name == name);
        arg.map_or_else(String::new, |arg| show(arg.unit, self.raw(name)))
    }

    /// All arguments as they are shown: `class 64 reason refill ns 4.20ms`.
    pub fn details(&self) -> String {
        let args =
            self.probe.args.iter().zip(self.raw).map(|(arg, raw)| format!("{} {}", arg.name, show(arg.unit, raw)));
        args.collect::<Vec<_>>().join(" · ")
    }

    /// What it means, in one sentence.
    pub fn meaning(&self) -> String {
        let s = |name| self.shown(name);
        match self.probe.id {
            ProbeId::Grow => {
                format!("grew from {} to {} ({}, {})", s("old_bytes"), s("new_bytes"), s("cause"), s("tier"))
            }
            ProbeId::GrowRefused => {
                format!("wanted {} more and was refused: {}{}", s("wanted_bytes"), s("cause"), self.errno())
            }
            ProbeId::GrowBlocked if self.raw("on") == 0 => "can grow again".into(),
            ProbeId::GrowBlocked => format!("cannot grow any more: {}", s("cause")),
            ProbeId::Shrink => {
                let given = self.raw("old_bytes").saturating_sub(self.raw("new_bytes"));
                format!("gave {} back, {} left ({})", unit::bytes(given), s("new_bytes"), s("cause"))
            }
            ProbeId::LockStall if self.raw("hold_or_wait") == StallKind::Hold as u64 => {
                format!("{} held {} for {}", s("lock"), s("ns"), s("reason"))
            }
            ProbeId::LockStall => {
                let holder = match (&self.other, self.raw("holder_tid")) {
                    (Some(other), _) => format!(", tid {} has it", other.name()),
                    (None, 0) => String::new(),
                    (None, tid) => format!(", tid {tid} has it"),
                };
                format!("{} waited for {} by {}{holder}", s("lock"), s("ns"), s("reason"))
            }
            ProbeId::Corruption => {
                let class = if self.raw("class") == 0 { String::new() } else { format!(" of class {}", s("class")) };
                format!("refused: {} at {}{class}", s("kind"), s("address"))
            }
            ProbeId::AllocFailed => format!("{} were asked for and not given: {}", s("bytes"), s("cause")),
            ProbeId::TierChange => format!("page {} went from {} to {}", s("page"), s("from"), s("to")),
            ProbeId::Pin => format!("pinned {} of {}{}", s("pinned"), s("bytes"), self.errno()),
            ProbeId::OwnerDead => {
                let role = self.other.as_ref().and_then(|dead| dead.role.as_ref());
                let role = role.map_or_else(String::new, |role| format!(" ({role})"));
                let (dead, lock, cells) = (s("dead_tid"), s("lock"), s("cells_recovered"));
                format!("thread {dead}{role} died with {lock}; {cells} cells recovered")
            }
            _ => self.details(),
        }
    }

    fn errno(&self) -> String {
        match self.raw("errno") as i32 {
            0 => String::new(),
            errno => format!(", {}", std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The probes whose hits are events.
pub fn rare() -> impl Iterator<Item = &'static Probe> {
    PROBES.iter().filter(|probe| probe.rate == hg_probes::catalogue::Rate::Rare)
}

fn word(unit: Unit, raw: u64) -> Option<String> {
    let label = match unit {
        Unit::Tier => Tier::from_u64(raw)?.label(),
        Unit::Cause => Cause::from_u64(raw)?.label(),
        Unit::Reason => Reason::from_u64(raw)?.label(),
        Unit::StallKind => StallKind::from_u64(raw)?.label(),
        Unit::CorruptionKind => CorruptionKind::from_u64(raw)?.label(),
        Unit::Source => Source::from_u64(raw)?.label(),
        Unit::Destination => Destination::from_u64(raw)?.label(),
        Unit::Lock => return Some(LockId(u32::try_from(raw).ok()?).to_string()),
        Unit::Address => return Some(format!("0x{raw:x}")),
        _ => return None,
    };
    Some(label.to_owned())
}

fn value(unit: Unit, raw: u64) -> Value {
    match (word(unit, raw), unit) {
        (Some(label), _) => Value::Label(label),
        (None, Unit::Errno) => Value::Number(raw as i64),
        (None, _) => i64::try_from(raw).map_or(Value::Large(raw), Value::Number),
    }
}

fn show(unit: Unit, raw: u64) -> String {
    match unit {
        Unit::Bytes => unit::bytes(raw),
        Unit::Ns => unit::ns(raw),
        Unit::Errno => (raw as i32).to_string(),
        _ => word(unit, raw).unwrap_or_else(|| raw.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn event(probe: ProbeId, args: [u64; 6]) -> Event {
        let raw = maps::Event { ns: 1, probe: probe as u32, tgid: 7, tid: 8, stack: -1, args };
        Event::decode(&raw, UNIX_EPOCH, Vec::new()).unwrap()
    }

    #[test]
    fn arguments_have_their_names_and_words() {
        let stall = event(ProbeId::LockStall, [1, 64, 0, 4_200_000, 0, 4250]);
        let args: Vec<_> = stall.args().collect();
        assert_eq!(args[1], ("lock", Value::Label("class 64".into())));
        assert_eq!(args[2], ("reason", Value::Label("refill".into())));
        assert_eq!(args[3], ("ns", Value::Number(4_200_000)));
        assert_eq!(args[4], ("hold_or_wait", Value::Label("hold".into())));
        assert_eq!(stall.meaning(), "class 64 held 4.20ms for refill");
        assert_eq!(stall.stack_id, None);
    }

    #[test]
    fn unknown_words_stay_numbers_and_unknown_probes_are_left_out() {
        let odd = event(ProbeId::Corruption, [1, 99, u64::MAX, 0, 3, 0]);
        assert_eq!(odd.args().nth(1), Some(("kind", Value::Number(99))));
        assert_eq!(odd.args().nth(2), Some(("address", Value::Label("0xffffffffffffffff".into()))));
        let raw = maps::Event { ns: 1, probe: 9999, tgid: 7, tid: 8, stack: -1, args: [0; 6] };
        assert!(Event::decode(&raw, UNIX_EPOCH, Vec::new()).is_none());
    }

    #[test]
    fn every_rare_probe_has_a_sentence_of_its_own() {
        for probe in rare() {
            let event = event(probe.id, [1; 6]);
            assert_ne!(event.meaning(), event.details(), "{}", probe.name);
        }
    }
}
