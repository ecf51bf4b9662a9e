//! What a spike run measured, and the verdict on it. Field names are a contract.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::counters::Memory;

/// Memory above the floor that may stay without a thread, bytes.
const SLACK: u64 = 16 << 20;

/// What the program itself may need more of in the course of its run, bytes: a class that it uses for the first time takes a
/// span.
const OWN: u64 = 256 << 10;

/// The least allowance of resident memory, and what a run may drift by, bytes.
const MIB: u64 = 1 << 20;

/// One spike, bytes and milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    /// Its number, from 1.
    pub number: u32,
    /// Live bytes at the top.
    pub live: u64,
    /// Committed bytes at the top.
    pub peak_committed: u64,
    /// Resident bytes at the top.
    pub peak_rss: u64,
    /// What growing took.
    pub grow_ms: u64,
    /// What freeing took.
    pub free_ms: u64,
    /// The arena as soon as all was freed.
    pub freed: Memory,
    /// Resident bytes then.
    pub freed_rss: u64,
    /// The arena when it was back, or when the wait was over.
    pub settled: Memory,
    /// Resident bytes then.
    pub settled_rss: u64,
    /// How long after the last free memory was back; absent if it was not.
    pub back_ms: Option<u64>,
}

/// What a round is held against.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Resident bytes before the first round.
    pub start_rss: u64,
    /// The most committed bytes that count as back: the floor, or what the program itself needs if that is more: what it did
    /// before the first round, and 256 KiB. Without a thread 16 MiB more.
    pub committed: u64,
    /// The most resident bytes that count as back: 5% above the start, or 1 MiB. Without a thread 16 MiB more.
    pub rss: u64,
    /// How long memory may take with a thread, milliseconds.
    pub decay_ms: u64,
}

impl Limits {
    /// The limits of a process that starts like that.
    pub fn new(maintained: bool, start: Memory, start_rss: u64, decay: Duration) -> Limits {
        let slack = if maintained { 0 } else { SLACK };
        let committed = start.floor.max(start.committed + OWN) + slack;
        let rss = start_rss + (start_rss / 20).max(MIB) + slack;
        Limits { start_rss, committed, rss, decay_ms: decay.as_millis() as u64 }
    }

    /// Whether memory is back.
    pub fn back(&self, round: &Round) -> bool {
        round.settled.committed <= self.committed && round.settled_rss <= self.rss && round.settled.limbo == 0
    }
}

/// A run in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether a thread of the allocator maintained the arena.
    pub maintained: bool,
    /// Live memory at the top, GiB.
    pub gib: f64,
    /// Threads that allocated and freed.
    pub threads: u32,
    /// What the rounds are held against.
    pub limits: Limits,
    /// The arena before the first round.
    pub start: Memory,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// What was wrong; empty if nothing was.
    pub failures: Vec<String>,
}

impl Report {
    /// Adds what is wrong to the failures.
    pub fn judge(&mut self) {
        let failures: Vec<_> =
            self.rounds.iter().flat_map(|round| self.failures_of(round)).chain(self.drifts()).collect();
        self.failures.extend(failures);
    }

    fn failures_of(&self, round: &Round) -> Vec<String> {
        let mut failures = Vec::new();
        let figures = [
            ("committed memory", round.settled.committed, self.limits.committed),
            ("RSS", round.settled_rss, self.limits.rss),
        ];
        for (what, bytes, limit) in figures.into_iter().filter(|(_, bytes, limit)| bytes > limit) {
            failures.push(format!("{what} is {}, more than {}", mib(bytes), mib(limit)));
        }
        if round.settled.limbo != 0 {
            failures.push(format!("{} B are in limbo", round.settled.limbo));
        }
        if let Some(ms) = round.back_ms.filter(|&ms| self.maintained && ms > self.limits.decay_ms) {
            failures.push(format!("memory was back after {ms} ms, later than {} ms", self.limits.decay_ms));
        }
        failures.into_iter().map(|failure| format!("round {}: {failure}", round.number)).collect()
    }

    fn drifts(&self) -> Vec<String> {
        // The first round warms up what stays for good; what counts is the way from the second on.
        let rest = self.rounds.get(1..).unwrap_or_default();
        let of = |figure: fn(&Round) -> u64| drift(&rest.iter().map(figure).collect::<Vec<_>>());
        let drifts = [("RSS", of(|r| r.settled_rss)), ("committed", of(|r| r.settled.committed))];
        let grown = drifts.into_iter().filter(|&(_, bytes)| bytes > MIB as f64);
        grown.map(|(what, bytes)| format!("{what} drifts: {} from round 2 on", mib(bytes as u64))).collect()
    }
}

/// How much a figure grew from the first to the last: the median of all slopes between two (Theil, Sen), which a few odd
/// rounds do not move. 0 unless the order of the figures tells of a trend and not of chance (Mann, Kendall: two standard
/// deviations, which takes five figures at least).
fn drift(figures: &[u64]) -> f64 {
    let count = figures.len() as f64;
    let pairs = (0..figures.len()).flat_map(|i| (i + 1..figures.len()).map(move |j| (i, j)));
    let mut slopes: Vec<f64> = pairs.map(|(i, j)| (figures[j] as f64 - figures[i] as f64) / (j - i) as f64).collect();
    let rises: f64 = slopes.iter().map(|&slope| if slope == 0.0 { 0.0 } else { slope.signum() }).sum();
    let deviation = (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
    if rises - 1.0 <= 2.0 * deviation {
        return 0.0;
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).map_or(0.0, |slope| slope * (count - 1.0))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { number, freed, settled, .. } = self;
        let (live, top, rss) = (mib(self.live), mib(self.peak_committed), mib(self.peak_rss));
        write!(f, "round {number:<3} peak {live} live, {top} committed, RSS {rss}; grown in {} ms", self.grow_ms)?;
        write!(f, ", freed in {} ms: {} committed", self.free_ms, mib(freed.committed))?;
        write!(f, ", RSS {}; ", mib(self.freed_rss))?;
        match self.back_ms {
            Some(ms) => write!(f, "back after {ms} ms: ")?,
            None => write!(f, "NOT back: ")?,
        }
        let (committed, rss, tables) = (mib(settled.committed), mib(self.settled_rss), mib(settled.tables));
        write!(f, "{committed} committed, RSS {rss} (tables {tables}), limbo {} B", settled.limbo)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.maintained { "with a maintenance thread" } else { "without a maintenance thread" };
        writeln!(f, "mode       {mode}: {} GiB from {} threads, {} rounds", self.gib, self.threads, self.rounds.len())?;
        let Limits { start_rss, committed, rss, decay_ms } = self.limits;
        let (start, floor) = (mib(self.start.committed), mib(self.start.floor));
        writeln!(f, "start      {start} committed (floor {floor}), RSS {}", mib(start_rss))?;
        let when = if self.maintained { format!("within {decay_ms} ms") } else { "at once".into() };
        let (committed, rss) = (mib(committed), mib(rss));
        writeln!(f, "limits     committed {committed} {when}, RSS {rss}, limbo 0, drift 1 MiB")?;
        let longest = self.rounds.iter().filter_map(|round| round.back_ms).max();
        let settled = self.rounds.iter().map(|round| round.settled_rss).max();
        let longest = longest.map_or("never back".into(), |ms| format!("back after {ms} ms at the latest"));
        writeln!(f, "outcome    {longest}, RSS then at most {}", mib(settled.unwrap_or(0)))?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "FAILED     {failure}"))?;
        f.write_str(if self.failures.is_empty() { "verdict    sound" } else { "verdict    NOT sound" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(maintained: bool, change: impl Fn(u32, &mut Round)) -> Report {
        let start = Memory { committed: 1 << 20, floor: 16 << 20, ..Memory::default() };
        let limits = Limits::new(maintained, start, 4 << 20, Duration::from_secs(10));
        let round = |number| {
            let settled = Memory { committed: limits.committed, ..start };
            let mut round =
                Round { number, settled, settled_rss: limits.rss, back_ms: Some(10_000), ..Round::default() };
            change(number, &mut round);
            round
        };
        let rounds = (1..=20).map(round).collect();
        let mut report = Report { maintained, gib: 4.0, threads: 4, limits, start, rounds, failures: vec![] };
        report.judge();
        report
    }

    #[test]
    fn at_the_limits_a_run_is_sound() {
        assert_eq!(report(true, |_, _| ()).failures, Vec::<String>::new());
        assert_eq!(report(false, |_, _| ()).failures, Vec::<String>::new());
    }

    #[test]
    fn each_defect_of_a_round_is_told() {
        type Defect = (bool, fn(&mut Round), &'static str);
        let defects: [Defect; 6] = [
            (true, |r| r.settled.committed += 1 << 20, "round 7: committed memory is 17.0 MiB, more than 16.0 MiB"),
            (false, |r| r.settled.committed += 1 << 20, "round 7: committed memory is 33.0 MiB, more than 32.0 MiB"),
            (true, |r| r.settled_rss += 1, "round 7: RSS is 5.0 MiB, more than 5.0 MiB"),
            (false, |r| r.settled_rss += 1, "round 7: RSS is 21.0 MiB, more than 21.0 MiB"),
            (true, |r| r.settled.limbo = 1, "round 7: 1 B are in limbo"),
            (true, |r| r.back_ms = Some(10_001), "round 7: memory was back after 10001 ms, later than 10000 ms"),
        ];
        for (maintained, defect, told) in defects {
            let report = report(maintained, |number, round| {
                if number == 7 {
                    defect(round)
                }
            });
            assert_eq!(report.failures, [told]);
            assert!(report.to_string().ends_with("verdict    NOT sound"));
        }
    }

    #[test]
    fn limits_follow_the_floor_the_program_and_the_mode() {
        let start = |committed, floor| Memory { committed, floor, ..Memory::default() };
        let limits = |maintained, start, rss| Limits::new(maintained, start, rss, Duration::ZERO);
        assert_eq!(limits(true, start(1 << 20, 0), 100 << 20).committed, (1 << 20) + OWN);
        assert_eq!(limits(true, start(1 << 20, 8 << 20), 100 << 20).committed, 8 << 20);
        assert_eq!(limits(true, start(0, 0), 100 << 20).rss, 105 << 20);
        assert_eq!(limits(false, start(0, 0), 4 << 20).rss, (4 + 1 + 16) << 20);
        assert_eq!(limits(false, start(1 << 20, 0), 4 << 20).committed, (17 << 20) + OWN);
    }

    #[test]
    fn drift_is_a_trend_and_not_a_single_step_or_noise() {
        let trend = report(true, |number, round| round.settled_rss = (3 << 20) + u64::from(number) * (64 << 10));
        assert_eq!(trend.failures, ["RSS drifts: 1.1 MiB from round 2 on"]);
        let first = report(true, |number, round| round.settled_rss = if number == 1 { 0 } else { 5 << 20 });
        assert_eq!(first.failures, Vec::<String>::new());
        let noise = report(false, |number, r| r.settled.committed = u64::from(number * 7 % 16) << 20);
        assert_eq!(noise.failures, Vec::<String>::new());
        assert_eq!(drift(&[]), 0.0);
        assert_eq!(drift(&[5]), 0.0);
        assert_eq!(drift(&[1, 2, 3, 4]), 0.0);
        assert_eq!(drift(&[1, 2, 3, 4, 5]), 4.0);
        assert_eq!(drift(&[5, 4, 3, 2, 1]), 0.0);
    }
}
