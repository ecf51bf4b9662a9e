//! How an arena grows and gives back: its limits and peaks, tiers, pin, maintenance, decisions and the advice.

use std::collections::BTreeMap;
use std::time::Duration;

use hg_probes::words::{Cause, Tier, TierReason, Verdict, Why};
use serde::Serialize;

use super::{named, seconds};
use crate::advise::{self, Host};
use crate::model;
use crate::model::{Figures, MonotonicNs, Snapshot};

/// Fields beside those of the arena.
#[derive(Debug, Default, Serialize)]
pub(super) struct Elastic {
    used_bytes: Option<u64>,
    used_peak_bytes: Option<u64>,
    floor_bytes: Option<u64>,
    ceiling_bytes: Option<u64>,
    limbo_bytes: Option<u64>,
    page_bytes: Option<u64>,
    slice_bytes: Option<u64>,
    tier_bytes: BTreeMap<String, u64>,
    tier_steps_down: BTreeMap<String, u64>,
    pin_wanted: Option<bool>,
    pin_errno: Option<u32>,
    grows_refused: BTreeMap<String, u64>,
    grow_blocked_cause: Option<&'static str>,
    grow_blocked_since: Option<f64>,
    maintenance: Option<Maintenance>,
    decisions: Vec<Decision>,
    advice: Option<Advice>,
}

#[derive(Debug, Serialize)]
struct Maintenance {
    tid: Option<u32>,
    ticks: u64,
    last_tick: Option<f64>,
    decay_ms: u64,
}

#[derive(Debug, Serialize)]
struct Decision {
    time: f64,
    times: u64,
    verdict: Option<&'static str>,
    why: Option<&'static str>,
    bytes: u64,
    page: u32,
    class: u32,
    cells: u64,
    usage_percent: u32,
    limit_percent: u32,
    meaning: String,
}

/// What an arena should be like.
#[derive(Debug, Serialize)]
pub struct Advice {
    init_bytes: u64,
    cap_bytes: u64,
    setting: String,
    sure: &'static str,
    doubts: Vec<String>,
    evidence: String,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Finding {
    topic: &'static str,
    text: String,
    command: Option<String>,
}

impl Elastic {
    /// Of an arena in a snapshot; `before` are its earlier figures.
    pub(super) fn of(arena: &model::Arena, before: Option<&Figures>, snapshot: &Snapshot, host: &Host) -> Elastic {
        let Some(f) = arena.figures.as_ref() else { return Elastic::default() };
        let time = |at: MonotonicNs| {
            let ago = Duration::from_nanos(snapshot.at.saturating_sub(at));
            seconds(snapshot.time.checked_sub(ago).unwrap_or(snapshot.time))
        };
        let steps = |number| TierReason::from_u64(number).map(TierReason::label);
        let mut tier_steps_down = named(Some(&f.tier_reasons), steps);
        // These two are no steps.
        tier_steps_down.remove(TierReason::Obtained.label());
        tier_steps_down.remove(TierReason::NotAsked.label());
        let policy = arena.policy.as_ref();
        Elastic {
            used_bytes: Some(f.used()),
            used_peak_bytes: Some(f.used_peak),
            floor_bytes: Some(f.floor),
            ceiling_bytes: Some(f.ceiling),
            limbo_bytes: Some(f.limbo),
            page_bytes: Some(f.page_bytes),
            slice_bytes: Some(f.slice_bytes),
            tier_bytes: named(Some(&f.tier_bytes), |number| Tier::from_u64(number).map(Tier::label)),
            tier_steps_down,
            pin_wanted: Some(f.pin_wanted),
            pin_errno: Some(f.pin_errno),
            grows_refused: named(Some(&f.grows_refused), |number| Cause::from_u64(number).map(Cause::label)),
            grow_blocked_cause: f.blocked_cause.map(Cause::label),
            grow_blocked_since: Some(f.blocked_since).filter(|since| f.grow_blocked && *since > 0).map(time),
            maintenance: policy.map(|policy| Maintenance {
                tid: Some(f.maintenance_tid).filter(|tid| *tid != 0),
                ticks: policy.ticks,
                last_tick: Some(policy.last_tick_at).filter(|at| *at > 0).map(time),
                decay_ms: f.decay_ms,
            }),
            decisions: policy.map_or_else(Vec::new, |policy| {
                policy.decisions.iter().map(|decision| self::decision(decision, time(decision.at))).collect()
            }),
            advice: advise::advise(f, before, snapshot.at, host).map(Advice::of),
        }
    }
}

fn decision(decision: &model::Decision, time: f64) -> Decision {
    Decision {
        time,
        times: decision.times,
        verdict: decision.verdict.map(Verdict::label),
        why: decision.why.map(Why::label),
        bytes: decision.bytes,
        page: decision.page,
        class: decision.class,
        cells: decision.cells,
        usage_percent: decision.percent.0,
        limit_percent: decision.percent.1,
        meaning: decision.meaning(),
    }
}

impl Advice {
    /// From the advice itself.
    pub fn of(advice: advise::Advice) -> Advice {
        Advice {
            init_bytes: advice.init,
            cap_bytes: advice.cap,
            setting: advice.setting(),
            sure: advice.sure.label(),
            doubts: advice.doubts,
            evidence: advice.evidence,
            findings: advice
                .findings
                .into_iter()
                .map(|finding| Finding { topic: finding.topic, text: finding.text, command: finding.command })
                .collect(),
        }
    }
}
