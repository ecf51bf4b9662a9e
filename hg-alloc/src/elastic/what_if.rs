//! What a policy would have made of a load that was recorded.
//!
//! The trace says how much was in use, and when; what would have been committed is played: the policy grows and shrinks it,
//! and use beyond it commits granules on exhaustion, up to the ceiling. Owns nothing; called by tools.
//!
//! ```
//! use hg_alloc::policy::{Rules, Sample, what_if};
//! use hg_alloc::profile::Profile;
//!
//! let profile = Profile::parse("scale up to 1g on 70% for 3 cycles / scale down to 64m on 30% for 60 cycles");
//! let rules = Rules::new(Some(profile.expect("a good profile")));
//! let trace = (0..600).map(|second| Sample {
//!     at_ns: second * 1_000_000_000,
//!     used_bytes: (50 + second % 300) << 20,
//!     committed_bytes: 512 << 20,
//! });
//! let summary = what_if(rules, 64 << 20, 1 << 30, trace, |_sample, _event, _committed| {});
//! assert_eq!(summary.refusals, 0);
//! assert!(summary.committed_peak_bytes < 512 << 20);
//! ```

use super::policy::{Decision, Input, Policy, Rules};
use hg_probes::words::Verdict;

/// A moment of a recorded load. Times must not go back.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When, ns from any origin.
    pub at_ns: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that were committed.
    pub committed_bytes: u64,
}

/// What happens at a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The policy decides.
    Decided(Decision),
    /// A request finds nothing committed: so many bytes are committed while it waits.
    Exhausted(u64),
    /// So many bytes in use find no room below the ceiling.
    Refused(u64),
}

/// Sums over a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Samples.
    pub samples: u64,
    /// The most that was in use, bytes.
    pub used_peak_bytes: u64,
    /// The most that would have been committed, bytes.
    pub committed_peak_bytes: u64,
    /// The mean over time of what would have been committed, bytes.
    pub committed_mean_bytes: u64,
    /// The mean over time of what was committed, bytes.
    pub recorded_mean_bytes: u64,
    /// Growths before memory ran out.
    pub grows_ahead: u64,
    /// Growths that a request would have waited for.
    pub grows_exhausted: u64,
    /// Shrinks.
    pub shrinks: u64,
    /// Samples whose use found no room below the ceiling.
    pub refusals: u64,
}

/// Plays a trace. `floor_bytes` and `cap_bytes` are INIT and CAP; a profile's own floor and ceiling replace and lower them.
/// `tell` gets each event with the sample and the bytes committed after it.
pub fn what_if(
    rules: Rules,
    floor_bytes: u64,
    cap_bytes: u64,
    samples: impl IntoIterator<Item = Sample>,
    mut tell: impl FnMut(Sample, Event, u64),
) -> Summary {
    let (floor_bytes, ceiling_bytes) = rules.bounds(floor_bytes, cap_bytes);
    let mut policy = Policy::new(rules);
    let mut sums = Sums::default();
    let mut summary = Summary::default();
    let mut committed = floor_bytes;
    for sample in samples {
        sums.pass(sample);
        let used = sample.used_bytes.min(ceiling_bytes);
        if used < sample.used_bytes {
            summary.refusals += 1;
            tell(sample, Event::Refused(sample.used_bytes - used), committed);
        }
        if used > committed {
            let granules = (used - committed).checked_next_multiple_of(rules.granule_bytes.max(1));
            let bytes = granules.unwrap_or(u64::MAX).min(ceiling_bytes - committed);
            committed += bytes;
            summary.grows_exhausted += 1;
            tell(sample, Event::Exhausted(bytes), committed);
        }
        let decision = policy.step(&Input {
            now_ns: sample.at_ns,
            live_bytes: used,
            committed_bytes: committed,
            free_bytes: committed - used,
            floor_bytes,
            ceiling_bytes,
            blocked: false,
        });
        if let Some(decision) = decision {
            if !rules.dry_run {
                match decision.verdict {
                    Verdict::Grow => {
                        committed += decision.bytes;
                        summary.grows_ahead += 1;
                    }
                    Verdict::Shrink => {
                        committed -= decision.bytes.min(committed - used);
                        summary.shrinks += 1;
                    }
                    Verdict::Keep | Verdict::Drain => {}
                }
            }
            tell(sample, Event::Decided(decision), committed);
        }
        summary.samples += 1;
        summary.used_peak_bytes = summary.used_peak_bytes.max(sample.used_bytes);
        summary.committed_peak_bytes = summary.committed_peak_bytes.max(committed);
        sums.last = Some((sample, committed));
    }
    (summary.committed_mean_bytes, summary.recorded_mean_bytes) = sums.means();
    summary
}

/// Sums over time.
#[derive(Default)]
struct Sums {
    last: Option<(Sample, u64)>,
    ns: u64,
    committed: u128,
    recorded: u128,
}

impl Sums {
    /// Time passes until a sample.
    fn pass(&mut self, sample: Sample) {
        let Some((last, committed)) = self.last else { return };
        let ns = sample.at_ns.saturating_sub(last.at_ns);
        self.ns = self.ns.saturating_add(ns);
        self.committed = self.committed.saturating_add(u128::from(ns) * u128::from(committed));
        self.recorded = self.recorded.saturating_add(u128::from(ns) * u128::from(last.committed_bytes));
    }

    /// The means of what would have been and of what was committed; of a single sample, itself.
    fn means(&self) -> (u64, u64) {
        let mean = |sum: u128| sum.checked_div(self.ns.into()).map(|mean| mean as u64);
        let (last_recorded, last) = self.last.map_or((0, 0), |(sample, committed)| (sample.committed_bytes, committed));
        (mean(self.committed).unwrap_or(last), mean(self.recorded).unwrap_or(last_recorded))
    }
}
