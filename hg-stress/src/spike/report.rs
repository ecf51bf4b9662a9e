//! What a spike run measured, and the verdict on it. Field names are a contract.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::counters::Memory;

/// Memory above the floor that may stay without a thread, bytes.
const SLACK: u64 = 16 << 20;

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

impl Round {
    /// Resident bytes apart from committed ones above the floor, which count for themselves.
    fn rss_besides(&self) -> u64 {
        self.settled_rss.saturating_sub(self.settled.above_floor())
    }
}

/// What a round is held against.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Resident bytes before the first round.
    pub start_rss: u64,
    /// The most resident bytes that count as back: 5% above the start, or 1 MiB.
    pub rss: u64,
    /// How long memory may take with a thread, milliseconds.
    pub decay_ms: u64,
}

impl Limits {
    /// The limits of a process that starts with so many resident bytes.
    pub fn new(start_rss: u64, decay: Duration) -> Limits {
        let rss = start_rss + (start_rss / 20).max(MIB);
        Limits { start_rss, rss, decay_ms: decay.as_millis() as u64 }
    }

    /// Whether memory is back as it must be. With a thread: at the floor, and resident memory within its limit. Without: at
    /// most 16 MiB above the floor; these count as committed and not as resident memory, all else within its limit.
    pub fn back(&self, maintained: bool, round: &Round) -> bool {
        let slack = if maintained { 0 } else { SLACK };
        round.settled.above_floor() <= slack && self.rss_back(maintained, round) && round.settled.limbo == 0
    }

    fn rss_back(&self, maintained: bool, round: &Round) -> bool {
        (if maintained { round.settled_rss } else { round.rss_besides() }) <= self.rss
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
        let above = round.settled.above_floor();
        let slack = if self.maintained { 0 } else { SLACK };
        if above > slack {
            let limit = if self.maintained { "" } else { ", more than 16 MiB" };
            failures.push(format!("committed memory is {} above the floor{limit}", mib(above)));
        }
        if !self.limits.rss_back(self.maintained, round) {
            let (rss, besides) = if self.maintained {
                (round.settled_rss, "")
            } else {
                (round.rss_besides(), ", besides what is committed above the floor,")
            };
            let [rss, limit, start] = [rss, self.limits.rss, self.limits.start_rss].map(mib);
            failures.push(format!("RSS{besides} is {rss}, more than {limit} (start {start} and 5% or 1 MiB)"));
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
        let drifts = [("RSS", of(|r| r.rss_besides())), ("committed", of(|r| r.settled.committed))];
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
        let (committed, floor, rss) = (mib(settled.committed), mib(settled.floor), mib(self.settled_rss));
        write!(f, "{committed} committed (floor {floor}), RSS {rss}, limbo {} B", settled.limbo)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.maintained { "with a maintenance thread" } else { "without a maintenance thread" };
        let Limits { start_rss, rss, decay_ms } = self.limits;
        writeln!(f, "mode       {mode}: {} GiB from {} threads, {} rounds", self.gib, self.threads, self.rounds.len())?;
        writeln!(f, "start      {} committed, RSS {}", mib(self.start.committed), mib(start_rss))?;
        let committed = if self.maintained {
            format!("the floor within {decay_ms} ms")
        } else {
            "16 MiB above the floor at once".into()
        };
        writeln!(f, "limits     committed {committed}, RSS {}, limbo 0, drift 1 MiB", mib(rss))?;
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
        let round = |number| {
            let settled = Memory { committed: 16 << 20, floor: 16 << 20, limbo: 0 };
            let mut round = Round { number, settled, settled_rss: 5 << 20, back_ms: Some(9000), ..Round::default() };
            change(number, &mut round);
            round
        };
        let limits = Limits::new(4 << 20, Duration::from_secs(10));
        let rounds = (1..=20).map(round).collect();
        let mut report =
            Report { maintained, gib: 4.0, threads: 4, limits, start: Memory::default(), rounds, failures: vec![] };
        report.judge();
        report
    }

    #[test]
    fn at_the_limits_a_run_is_sound() {
        assert_eq!(report(true, |_, _| ()).failures, Vec::<String>::new());
        let at_slack = |_, r: &mut Round| {
            r.settled.committed += SLACK;
            r.settled_rss += SLACK;
        };
        assert_eq!(report(false, at_slack).failures, Vec::<String>::new());
    }

    #[test]
    fn each_defect_of_a_round_is_told() {
        type Defect = (bool, fn(&mut Round), &'static str);
        let defects: [Defect; 6] = [
            (true, |r| r.settled.committed += 1 << 20, "round 7: committed memory is 1.0 MiB above the floor"),
            (
                false,
                |r| r.settled.committed += SLACK + (1 << 20),
                "round 7: committed memory is 17.0 MiB above the floor, more",
            ),
            (true, |r| r.settled_rss += 1, "round 7: RSS is 5.0 MiB, more than 5.0 MiB"),
            (
                false,
                |r| r.settled_rss += 1,
                "round 7: RSS, besides what is committed above the floor, is 5.0 MiB, more",
            ),
            (true, |r| r.settled.limbo = 1, "round 7: 1 B are in limbo"),
            (true, |r| r.back_ms = Some(10_001), "round 7: memory was back after 10001 ms, later than 10000 ms"),
        ];
        for (maintained, defect, told) in defects {
            let report = report(maintained, |number, round| {
                if number == 7 {
                    defect(round)
                }
            });
            assert_eq!(report.failures.len(), 1, "{told}: {:?}", report.failures);
            assert!(report.failures[0].starts_with(told), "{told}: {:?}", report.failures);
            assert!(report.to_string().ends_with("verdict    NOT sound"));
        }
    }

    #[test]
    fn the_limit_of_a_large_process_is_five_percent() {
        assert_eq!(Limits::new(100 << 20, Duration::ZERO).rss, 105 << 20);
        assert_eq!(Limits::new(4 << 20, Duration::ZERO).rss, 5 << 20);
    }

    #[test]
    fn drift_is_a_trend_and_not_a_single_step_or_noise() {
        let trend = report(true, |number, round| round.settled_rss = (3 << 20) + u64::from(number) * (64 << 10));
        assert_eq!(trend.failures, ["RSS drifts: 1.1 MiB from round 2 on"]);
        let first = report(true, |number, round| round.settled_rss = if number == 1 { 0 } else { 5 << 20 });
        assert_eq!(first.failures, Vec::<String>::new());
        let noise = report(false, |number, r| r.settled.committed += u64::from(number * 7 % 16) << 20);
        assert_eq!(noise.failures, Vec::<String>::new());
        assert_eq!(drift(&[]), 0.0);
        assert_eq!(drift(&[5]), 0.0);
        assert_eq!(drift(&[1, 2, 3, 4]), 0.0);
        assert_eq!(drift(&[1, 2, 3, 4, 5]), 4.0);
        assert_eq!(drift(&[5, 4, 3, 2, 1]), 0.0);
    }
}
