//! The log of the events view. An arena under a changing load grows and shrinks many times a second: such runs become one
//! line each, so that they do not push out the events an operator looks for.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use hg_probes::ProbeId;

use crate::event::Event;
use crate::unit;

/// Lines kept.
const MAX_LINES: usize = 2000;

/// How long a line of growing and shrinking takes more of it in.
const RUN: Duration = Duration::from_secs(10);

/// How far back such a line is looked for.
const LOOK_BACK: usize = 64;

/// One line: an event, or a run of growing and shrinking.
#[derive(Clone, Debug)]
pub struct Line {
    /// The event, or the first of the run.
    pub first: Event,
    /// The last of the run.
    pub last: Event,
    /// Growths of the run.
    pub grows: u64,
    /// Shrinks of the run.
    pub shrinks: u64,
}

impl Line {
    /// Tells it from all others.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.first.at, self.first.tid, self.first.probe.name)
    }

    /// When it began.
    pub fn time(&self) -> SystemTime {
        self.first.time
    }

    /// What it is about: the probe, or `grow, shrink`.
    pub fn name(&self) -> &'static str {
        if self.grows > 0 && self.shrinks > 0 { "grow, shrink" } else { self.first.probe.name }
    }

    /// What it means, in one sentence.
    pub fn meaning(&self) -> String {
        if self.grows + self.shrinks <= 1 {
            return self.first.meaning();
        }
        format!(
            "{} → {}: grew {} ×, gave back {} ×",
            self.first.shown("old_bytes"),
            self.last.shown("new_bytes"),
            unit::count(self.grows),
            unit::count(self.shrinks)
        )
    }

    /// Whether it is about the size of an arena.
    pub fn is_growth(&self) -> bool {
        use ProbeId::{Grow, GrowBlocked, GrowRefused, Pin, Shrink, TierChange};
        matches!(self.first.probe.id, Grow | GrowRefused | GrowBlocked | Shrink | TierChange | Pin)
    }

    fn of(event: Event) -> Line {
        let is = |probe| u64::from(event.probe.id == probe);
        Line { grows: is(ProbeId::Grow), shrinks: is(ProbeId::Shrink), first: event.clone(), last: event }
    }

    /// Whether `event` continues the run: same process, same arena, not much later.
    fn takes(&self, event: &Event) -> bool {
        self.grows + self.shrinks > 0
            && (self.first.pid, self.first.raw("arena")) == (event.pid, event.raw("arena"))
            && event.time.duration_since(self.first.time).unwrap_or_default() < RUN
    }
}

/// The lines, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Log {
    lines: VecDeque<Line>,
}

impl Log {
    /// Adds an event.
    pub fn push(&mut self, event: Event) {
        if matches!(event.probe.id, ProbeId::Grow | ProbeId::Shrink)
            && let Some(line) = self.lines.iter_mut().rev().take(LOOK_BACK).find(|line| line.takes(&event))
        {
            match event.probe.id {
                ProbeId::Grow => line.grows += 1,
                _ => line.shrinks += 1,
            }
            line.last = event;
            return;
        }
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(Line::of(event));
    }

    /// The lines, newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().rev()
    }

    /// The line of an id.
    pub fn find(&self, id: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.id() == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hg_probes::maps;
    use std::time::UNIX_EPOCH;

    fn event(probe: ProbeId, pid: u32, second: u64, old: u64, new: u64) -> Event {
        let args = [1, old << 20, new << 20, 1, 0, 0];
        let raw = maps::Event { ns: second, probe: probe as u32, tgid: pid, tid: 1, stack: -1, args };
        Event::decode(&raw, UNIX_EPOCH + Duration::from_secs(second), Vec::new()).unwrap()
    }

    #[test]
    fn a_run_of_growing_and_shrinking_is_one_line() {
        let mut log = Log::default();
        log.push(event(ProbeId::Grow, 7, 0, 16, 32));
        log.push(event(ProbeId::LockStall, 7, 1, 0, 0));
        log.push(event(ProbeId::Shrink, 7, 2, 32, 28));
        log.push(event(ProbeId::Grow, 7, 9, 28, 30));
        log.push(event(ProbeId::Grow, 8, 9, 1, 2));
        log.push(event(ProbeId::Grow, 7, 12, 30, 46));
        let lines: Vec<_> = log.newest_first().map(|line| (line.name(), line.meaning())).collect();
        assert_eq!(lines[3].0, "grow, shrink");
        assert_eq!(lines[3].1, "16.0 MiB → 30.0 MiB: grew 2 ×, gave back 1 ×");
        assert_eq!(lines[2].0, "lock_stall");
        assert_eq!(lines[1].1, "grew from 1.00 MiB to 2.00 MiB (exhausted, 4K)");
        assert_eq!(lines[0].1, "grew from 30.0 MiB to 46.0 MiB (exhausted, 4K)");
        assert!(log.find(&log.lines[1].id()).is_some_and(|line| line.name() == "lock_stall"));
    }

    #[test]
    fn the_log_is_bounded() {
        let mut log = Log::default();
        for second in 0..5000 {
            log.push(event(ProbeId::AllocFailed, 7, second, 0, 0));
        }
        assert_eq!(log.lines.len(), MAX_LINES);
        assert_eq!(log.newest_first().next().map(|line| line.first.at), Some(4999));
    }
}
