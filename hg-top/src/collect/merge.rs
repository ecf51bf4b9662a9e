//! Puts what eBPF counted beside what the stats pages say.

use std::collections::BTreeMap;

use hg_probes::maps::{ClassKey, ClassValue, HistogramValue, LockKey, LockValue};
use hg_probes::words::{LockId, Reason};

use crate::model::{Arena, Counters, FileId, Histogram, HoldWait, Snapshot};

/// Enters the sums of the kernel maps into the processes they belong to. Keys of processes that are not watched, and
/// reasons that this version does not know, are left out.
pub(super) fn traced(
    snapshot: &mut Snapshot,
    classes: &BTreeMap<ClassKey, ClassValue>,
    locks: &BTreeMap<LockKey, LockValue>,
) {
    for (key, value) in classes {
        let Some(arena) = arena(snapshot, key.tgid, key.arena) else { continue };
        let traced = &mut arena.classes.entry(key.class).or_default().traced;
        *traced = Some(traced.unwrap_or_default().plus(&counters(value)));
    }
    for (key, value) in locks {
        let Some(reason) = Reason::from_u64(u64::from(key.reason)) else { continue };
        let Some(arena) = arena(snapshot, key.tgid, key.arena) else { continue };
        let both = HoldWait { hold: histogram(&value.hold), wait: histogram(&value.wait) };
        arena.locks.entry((LockId(key.lock), reason)).or_default().traced.get_or_insert_default().add(&both);
    }
    if matches!(snapshot.ebpf, crate::model::EbpfState::On { .. }) {
        snapshot.processes.values_mut().for_each(|process| process.traced = true);
    }
}

/// The arena of that number in a process: one that it shares, else its own. Of a shared one the counts of all processes are
/// added up.
fn arena(snapshot: &mut Snapshot, pid: u32, number: u32) -> Option<&mut Arena> {
    let process = snapshot.processes.get_mut(&pid)?;
    let own = process.arenas.contains_key(&number);
    let is_it = |file: &&FileId| snapshot.shared.get(file).is_some_and(|shared| shared.number == number);
    if let Some(file) = process.shared.iter().find(is_it).filter(|_| !own) {
        return snapshot.shared.get_mut(file).map(|shared| &mut shared.arena);
    }
    let unnamed = || Arena { name: format!("arena {number}"), ..Arena::default() };
    Some(process.arenas.entry(number).or_insert_with(unnamed))
}

fn counters(value: &ClassValue) -> Counters {
    Counters {
        refills: value.refills,
        reused: value.reused,
        carved: value.carved,
        flushes: value.flushes,
        flushed: value.flushed,
        drained: 0,
    }
}

fn histogram(value: &HistogramValue) -> Histogram {
    Histogram {
        count: value.count,
        sum_ns: value.sum_ns,
        max_ns: value.max_ns,
        buckets: value.buckets,
        ..Histogram::default()
    }
}
