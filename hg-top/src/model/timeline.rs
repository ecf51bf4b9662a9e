//! The recent past: the last snapshots for rates, the mark, and ten minutes of a few sums for sparklines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::reconcile::Sum;
use super::scope::Scope;
use super::{Counters, Snapshot};

/// Points of a series: ten minutes at one a second.
pub const POINTS: usize = 600;

/// Snapshots kept whole: percentiles "now" are over this many intervals.
const WINDOW: usize = 11;

/// What figures of the slow path are counted over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    /// The last interval, as a rate; percentiles over the last ten.
    #[default]
    PerSecond,
    /// Since the mark (at first: since hg-top started).
    SinceMark,
    /// Since the process started.
    Total,
}

impl Basis {
    /// The next one, in a circle.
    pub fn next(self) -> Basis {
        match self {
            Basis::PerSecond => Basis::SinceMark,
            Basis::SinceMark => Basis::Total,
            Basis::Total => Basis::PerSecond,
        }
    }

    /// Its name on screen.
    pub fn label(self) -> &'static str {
        match self {
            Basis::PerSecond => "per second",
            Basis::SinceMark => "since mark",
            Basis::Total => "since start",
        }
    }

    /// The same where there is little room.
    pub fn short_label(self) -> &'static str {
        match self {
            Basis::PerSecond => "/s",
            Basis::SinceMark => "mark",
            Basis::Total => "total",
        }
    }
}

/// Sums of one moment, for sparklines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// Live bytes.
    pub live: u64,
    /// Bytes that hg holds.
    pub hg: u64,
    /// The kernel's figure, bytes.
    pub kernel: u64,
    /// Recycled cells handed out per second.
    pub reused: f64,
    /// Never-used cells handed out per second.
    pub carved: f64,
}

/// The recent past of all watched processes.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    window: VecDeque<Arc<Snapshot>>,
    mark: Option<Arc<Snapshot>>,
    series: BTreeMap<u32, VecDeque<Point>>,
    all: VecDeque<Point>,
    classes: BTreeMap<u32, VecDeque<u64>>,
}

impl Timeline {
    /// Adds the newest snapshot; the first one is also the first mark.
    pub fn push(&mut self, snapshot: Arc<Snapshot>) {
        let previous = self.window.back().cloned();
        push(&mut self.all, point(Scope::All, &snapshot, previous.as_deref()));
        for &pid in snapshot.processes.keys() {
            push(self.series.entry(pid).or_default(), point(Scope::One(pid), &snapshot, previous.as_deref()));
        }
        for (size, sum) in Scope::All.classes(&snapshot, None) {
            push(self.classes.entry(size).or_default(), sum.live.unwrap_or(0));
        }
        self.mark.get_or_insert_with(|| snapshot.clone());
        self.window.push_back(snapshot);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
    }

    /// Sets the mark to the newest snapshot.
    pub fn set_mark(&mut self) {
        self.mark = self.window.back().cloned();
    }

    /// The newest snapshot.
    pub fn latest(&self) -> Option<&Snapshot> {
        self.window.back().map(Arc::as_ref)
    }

    /// The one before it.
    pub fn previous(&self) -> Option<&Snapshot> {
        self.window.iter().rev().nth(1).map(Arc::as_ref)
    }

    /// What counters are compared with: `None` for those since the start, and while there is only one snapshot.
    pub fn base(&self, basis: Basis) -> Option<&Snapshot> {
        match basis {
            Basis::PerSecond => self.previous(),
            Basis::SinceMark => self.mark.as_deref(),
            Basis::Total => None,
        }
    }

    /// What histograms are compared with.
    pub fn histogram_base(&self, basis: Basis) -> Option<&Snapshot> {
        match basis {
            Basis::PerSecond if self.window.len() > 1 => self.window.front().map(Arc::as_ref),
            other => self.base(other),
        }
    }

    /// Time from `base` to the newest snapshot, seconds; at least a millisecond.
    pub fn seconds_since(&self, base: &Snapshot) -> f64 {
        let ns = self.latest().map_or(0, |latest| latest.at.saturating_sub(base.at));
        Duration::from_nanos(ns.max(1_000_000)).as_secs_f64()
    }

    /// How long ago the mark was set.
    pub fn mark_age(&self) -> Option<Duration> {
        Some(Duration::from_secs_f64(self.seconds_since(self.mark.as_deref()?)))
    }

    /// Ten minutes of sums, oldest first.
    pub fn series(&self, scope: Scope) -> impl DoubleEndedIterator<Item = &Point> + ExactSizeIterator {
        static NONE: VecDeque<Point> = VecDeque::new();
        match scope {
            Scope::All => &self.all,
            Scope::One(pid) => self.series.get(&pid).unwrap_or(&NONE),
        }
        .iter()
    }

    /// Ten minutes of the live cells of a class, over all processes, oldest first.
    pub fn class_series(&self, size: u32) -> Vec<u64> {
        self.classes.get(&size).map_or_else(Vec::new, |series| series.iter().copied().collect())
    }
}

fn push<T>(series: &mut VecDeque<T>, value: T) {
    if series.len() == POINTS {
        series.pop_front();
    }
    series.push_back(value);
}

fn point(scope: Scope, snapshot: &Snapshot, previous: Option<&Snapshot>) -> Point {
    let sum = Sum::of(snapshot, scope);
    let changes = scope.classes(snapshot, previous);
    let change = changes.values().filter_map(|sum| sum.change).fold(Counters::default(), |sum, more| sum.plus(&more));
    let ns = previous.map_or(0, |previous| snapshot.at.saturating_sub(previous.at)).max(1_000_000);
    let per_second = |cells: u64| cells as f64 * 1e9 / ns as f64;
    Point {
        live: sum.live(),
        hg: sum.hg(),
        kernel: sum.kernel,
        reused: per_second(change.reused),
        carved: per_second(change.carved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arena, Class, Identity, Process};

    fn snapshot(second: u64, pid: u32, start_ticks: u64, reused: u64) -> Arc<Snapshot> {
        let class = Class { total: Some(Counters { reused, ..Counters::default() }), ..Class::default() };
        let arena = Arena { classes: BTreeMap::from([(64, class)]), ..Arena::default() };
        let mut process = Process::new(Identity { start_ticks, ..Identity::unknown(pid) });
        process.arenas = BTreeMap::from([(1, arena)]);
        Arc::new(Snapshot {
            at: second * 1_000_000_000,
            processes: BTreeMap::from([(pid, process)]),
            ..Snapshot::empty()
        })
    }

    fn change(timeline: &Timeline, basis: Basis) -> Option<u64> {
        let classes = Scope::All.classes(timeline.latest().unwrap(), timeline.base(basis));
        classes[&64].change.map(|change| change.reused)
    }

    #[test]
    fn no_rate_from_a_first_sample_a_reset_or_another_process() {
        let mut timeline = Timeline::default();
        timeline.push(snapshot(1, 7, 1, 1000));
        assert_eq!(change(&timeline, Basis::PerSecond), None);
        timeline.push(snapshot(3, 7, 1, 1500));
        assert_eq!(change(&timeline, Basis::PerSecond), Some(500));
        assert_eq!(timeline.series(Scope::All).next_back().unwrap().reused, 250.0);
        timeline.push(snapshot(4, 7, 1, 10));
        assert_eq!(change(&timeline, Basis::PerSecond), None, "the counters went back");
        timeline.push(snapshot(5, 7, 2, 5000));
        assert_eq!(change(&timeline, Basis::PerSecond), None, "another process of the same pid");
        timeline.push(snapshot(6, 8, 3, 5000));
        assert_eq!(change(&timeline, Basis::PerSecond), None);
    }

    #[test]
    fn since_the_mark() {
        let mut timeline = Timeline::default();
        for second in 1..=30 {
            timeline.push(snapshot(second, 7, 1, second * 100));
            if second == 10 {
                timeline.set_mark();
            }
        }
        assert_eq!(change(&timeline, Basis::SinceMark), Some(2000));
        assert_eq!(timeline.mark_age(), Some(Duration::from_secs(20)));
        assert_eq!(change(&timeline, Basis::Total), None);
        let ten_ago = timeline.histogram_base(Basis::PerSecond).unwrap();
        assert_eq!(timeline.seconds_since(ten_ago), 10.0);
    }

    #[test]
    fn history_is_bounded() {
        let mut timeline = Timeline::default();
        for second in 0..(POINTS as u64 + 50) {
            timeline.push(snapshot(second, 7, 1, second));
        }
        assert_eq!(timeline.series(Scope::One(7)).len(), POINTS);
        assert_eq!(timeline.class_series(64).len(), POINTS);
        assert_eq!(timeline.series(Scope::One(99)).len(), 0);
    }
}
