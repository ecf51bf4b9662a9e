//! The JSON document: field names here are a contract, described in `docs/json.md`.
//!
//! Fields may be added; none is renamed, removed or given another meaning without raising [`VERSION`]. Figures that no
//! source told are `null`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use hg_probes::page::BUCKETS;
use serde::Serialize;

mod elastic;
mod event;
mod map;
mod shared;

pub use elastic::Advice;
use elastic::Elastic;
use event::{AlertEntry, EventEntry, alert, event};
use map::Map;
use shared::{Application, SharedArena};

use crate::advise::Host;
use crate::alert::Alerts;
use crate::collect::map::Maps;
use crate::event::Event;
use crate::model;
use crate::model::scope::same_arena;
use crate::model::{ArenaId, ArenaRef, EbpfState};

/// Version of the document.
pub const VERSION: u32 = 1;

/// The whole document.
#[derive(Debug, Serialize)]
pub struct Document {
    version: u32,
    time: f64,
    sources: Sources,
    applications: Vec<Application>,
    processes: Vec<Process>,
    shared_arenas: Vec<SharedArena>,
    events: Vec<EventEntry>,
    alerts: Vec<AlertEntry>,
    lost_events: u64,
}

#[derive(Debug, Serialize)]
struct Sources {
    stats_page: SourceState,
    ebpf: SourceState,
}

#[derive(Debug, Serialize)]
struct SourceState {
    on: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sites_attached: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sites_found: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    exe: String,
    comm: String,
    role: String,
    said_role: Option<String>,
    start_time: f64,
    exited: Option<f64>,
    sources: Vec<&'static str>,
    page_error: Option<String>,
    rss_bytes: Option<u64>,
    hugetlb_bytes: Option<u64>,
    pss_bytes: Option<u64>,
    threads: Option<u64>,
    arenas: Vec<Arena>,
    shared_arenas: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Arena {
    arena: u32,
    name: String,
    kind: Option<&'static str>,
    tier: Option<&'static str>,
    tier_wanted: Option<&'static str>,
    tier_reason: Option<&'static str>,
    pinned_bytes: Option<u64>,
    committed_bytes: Option<u64>,
    committed_peak_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    live_bytes: Option<u64>,
    cached_bytes: Option<u64>,
    large_bytes: Option<u64>,
    span_bytes: Option<u64>,
    free_dirty_bytes: Option<u64>,
    free_clean_bytes: Option<u64>,
    metadata_bytes: Option<u64>,
    grows: Option<u64>,
    shrinks: Option<u64>,
    grow_blocked: Option<bool>,
    corruptions: BTreeMap<String, u64>,
    allocs_failed: BTreeMap<String, u64>,
    inherited: Option<bool>,
    owner_deaths: Option<u64>,
    recovered: Option<u64>,
    stranded_bytes: Option<u64>,
    #[serde(flatten)]
    elastic: Elastic,
    torn_blocks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<Map>,
    classes: Vec<Class>,
    locks: Vec<Lock>,
}

#[derive(Debug, Serialize)]
struct Class {
    size: u32,
    live: Option<u64>,
    cached: u64,
    carved: u64,
    reused: u64,
    refills: u64,
    flushes: u64,
    flushed: u64,
    drained: u64,
    spans: u64,
    cells: u64,
    span_bytes: u64,
    torn: bool,
    traced: Option<Traced>,
}

/// What eBPF counted since the attach.
#[derive(Debug, Serialize)]
struct Traced {
    carved: u64,
    reused: u64,
    refills: u64,
    flushes: u64,
    flushed: u64,
}

#[derive(Debug, Serialize)]
struct Lock {
    lock: String,
    reason: &'static str,
    hold: Histogram,
    wait: Histogram,
    torn: bool,
    traced: Option<TracedLock>,
}

/// What eBPF counted since the attach.
#[derive(Debug, Serialize)]
struct TracedLock {
    hold: Histogram,
    wait: Histogram,
}

#[derive(Debug, Serialize)]
struct Histogram {
    count: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: u64,
    sum_ns: u64,
    stalls: u64,
    buckets: [u64; BUCKETS],
}

/// What a document tells beside the snapshot.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    /// The snapshot before it.
    pub before: Option<&'a model::Snapshot>,
    /// Events up to it.
    pub events: &'a [Event],
    /// Alerts so far.
    pub alerts: &'a Alerts,
    /// What the host offers.
    pub host: &'a Host,
    /// Page maps, if they were asked for.
    pub maps: Option<&'a Maps>,
}

/// The document of a snapshot.
pub fn document(snapshot: &model::Snapshot, beside: Beside<'_>) -> Document {
    let read = snapshot.arenas().any(|of| of.arena.figures.is_some());
    let page_error = snapshot.processes.values().find_map(|process| process.page_error.clone());
    Document {
        version: VERSION,
        time: seconds(snapshot.time),
        sources: Sources {
            stats_page: SourceState { on: read, sites_attached: None, sites_found: None, reason: page_error },
            ebpf: match &snapshot.ebpf {
                EbpfState::On { attached, found } => {
                    SourceState { on: true, sites_attached: Some(*attached), sites_found: Some(*found), reason: None }
                }
                EbpfState::Off(reason) => {
                    SourceState { on: false, sites_attached: None, sites_found: None, reason: Some(reason.clone()) }
                }
            },
        },
        applications: shared::applications(snapshot),
        processes: snapshot.processes.values().map(|of| process(of, snapshot, beside)).collect(),
        shared_arenas: snapshot.arenas().filter_map(|of| SharedArena::of(&of, snapshot, beside)).collect(),
        events: beside.events.iter().map(event).collect(),
        alerts: beside.alerts.all().into_iter().map(alert).collect(),
        lost_events: snapshot.lost_events(),
    }
}

fn process(process: &model::Process, snapshot: &model::Snapshot, beside: Beside<'_>) -> Process {
    let ids = process.arenas.keys().map(|number| ArenaId::Private(process.identity.pid, *number));
    let arenas = ids.filter_map(|id| snapshot.arena(id)).map(|of| whole(&of, snapshot, beside));
    let identity = &process.identity;
    Process {
        pid: identity.pid,
        exe: identity.exe.clone(),
        comm: identity.comm.clone(),
        role: identity.role.clone(),
        said_role: snapshot.said_role(identity.pid).map(str::to_owned),
        start_time: seconds(identity.started),
        exited: process.exited.map(seconds),
        sources: process.sources(),
        page_error: process.page_error.clone(),
        rss_bytes: process.memory.map(|memory| memory.rss),
        hugetlb_bytes: process.memory.map(|memory| memory.hugetlb),
        pss_bytes: process.memory.and_then(|memory| memory.part).map(|part| part.resident),
        threads: process.memory.map(|memory| memory.threads),
        arenas: arenas.collect(),
        shared_arenas: process.shared.iter().map(ToString::to_string).collect(),
    }
}

/// An arena with all that is known beside its figures.
fn whole(of: &ArenaRef<'_>, snapshot: &model::Snapshot, beside: Beside<'_>) -> Arena {
    let before = beside.before.and_then(|before| same_arena(before, of)?.figures.as_ref());
    Arena {
        elastic: Elastic::of(of.arena, before, snapshot, beside.host),
        map: beside.maps.and_then(|maps| maps.get(&of.id)).map(Map::of),
        ..arena(of.number, of.arena)
    }
}

fn arena(number: u32, arena: &model::Arena) -> Arena {
    let figures = arena.figures.as_ref();
    let bytes = |of: fn(&model::Figures) -> u64| figures.map(of);
    let sum = |of: &dyn Fn(&model::Class) -> u64| {
        let sizes = arena.classes.iter().map(|(size, class)| of(class).saturating_mul(u64::from(*size)));
        sizes.fold(0, u64::saturating_add)
    };
    Arena {
        arena: number,
        name: arena.name.clone(),
        kind: figures.and_then(|f| f.shared).map(|shared| if shared { "shared" } else { "private" }),
        tier: figures.and_then(|f| f.tier).map(hg_probes::words::Tier::label),
        tier_wanted: figures.and_then(|f| f.tier_wanted).map(hg_probes::words::Tier::label),
        tier_reason: figures.and_then(|f| f.tier_reason).map(hg_probes::words::TierReason::label),
        pinned_bytes: bytes(|f| f.pinned),
        committed_bytes: bytes(|f| f.committed),
        committed_peak_bytes: bytes(|f| f.committed_peak),
        reserved_bytes: bytes(|f| f.reserved),
        live_bytes: figures.map(|f| sum(&|class| class.live().unwrap_or(0)).saturating_add(f.large)),
        cached_bytes: figures.map(|_| sum(&model::Class::cached)),
        large_bytes: bytes(|f| f.large),
        span_bytes: bytes(|f| f.spans),
        free_dirty_bytes: bytes(|f| f.free_dirty),
        free_clean_bytes: bytes(|f| f.free_clean),
        metadata_bytes: bytes(|f| f.metadata),
        grows: bytes(|f| f.grows),
        shrinks: bytes(|f| f.shrinks),
        grow_blocked: figures.map(|f| f.grow_blocked),
        corruptions: named(figures.map(|f| &f.corruptions), |number| {
            hg_probes::words::CorruptionKind::from_u64(number).map(|kind| kind.label())
        }),
        allocs_failed: named(figures.map(|f| &f.allocs_failed), |number| {
            hg_probes::words::Cause::from_u64(number).map(|cause| cause.label())
        }),
        inherited: figures.map(|f| f.inherited),
        owner_deaths: bytes(|f| f.owner_deaths),
        recovered: bytes(|f| f.recovered),
        stranded_bytes: bytes(|f| f.stranded),
        elastic: Elastic::default(),
        torn_blocks: arena.torn,
        map: None,
        classes: arena.classes.iter().map(|(size, of)| class(*size, of)).collect(),
        locks: arena.locks.iter().filter_map(|(key, of)| lock(*key, of)).collect(),
    }
}

fn class(size: u32, class: &model::Class) -> Class {
    let counters = class.total.or(class.traced).unwrap_or_default();
    Class {
        size,
        live: class.live(),
        cached: class.cached(),
        carved: counters.carved,
        reused: counters.reused,
        refills: counters.refills,
        flushes: counters.flushes,
        flushed: counters.flushed,
        drained: counters.drained,
        spans: class.spans,
        cells: class.cells,
        span_bytes: class.span_bytes,
        torn: class.torn,
        traced: class.traced.map(|traced| Traced {
            carved: traced.carved,
            reused: traced.reused,
            refills: traced.refills,
            flushes: traced.flushes,
            flushed: traced.flushed,
        }),
    }
}

fn lock(key: (hg_probes::words::LockId, hg_probes::words::Reason), lock: &model::Lock) -> Option<Lock> {
    let best = lock.best()?;
    Some(Lock {
        lock: key.0.to_string(),
        reason: key.1.label(),
        hold: histogram(&best.hold),
        wait: histogram(&best.wait),
        torn: lock.torn,
        traced: lock
            .traced
            .as_ref()
            .map(|traced| TracedLock { hold: histogram(&traced.hold), wait: histogram(&traced.wait) }),
    })
}

fn histogram(histogram: &model::Histogram) -> Histogram {
    Histogram {
        count: histogram.count,
        p50_ns: histogram.percentile(50.0),
        p99_ns: histogram.percentile(99.0),
        max_ns: histogram.max_ns,
        sum_ns: histogram.sum_ns,
        stalls: histogram.stalls,
        buckets: histogram.buckets,
    }
}

/// Counts by their words; those that are 0 are left out, and a number without a word stays one.
fn named(list: Option<&Vec<u64>>, word: fn(u64) -> Option<&'static str>) -> BTreeMap<String, u64> {
    let counts = list.into_iter().flatten().enumerate().filter(|(_, count)| **count > 0);
    let name = |number: usize| word(number as u64).map_or_else(|| number.to_string(), str::to_owned);
    counts.map(|(number, count)| (name(number), *count)).collect()
}

/// Seconds since 1970, to the millisecond.
fn seconds(time: SystemTime) -> f64 {
    let ms = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    ms as f64 / 1000.0
}
