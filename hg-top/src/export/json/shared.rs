//! Arenas that several processes share, and the applications that these make.

use std::time::Duration;

use serde::Serialize;

use super::{Arena, Beside, seconds, whole};
use crate::model::reconcile::Sum;
use crate::model::{ArenaRef, Member, MonotonicNs, Process, Snapshot};

/// Processes that an arena connects, or a process by itself.
#[derive(Debug, Serialize)]
pub(super) struct Application {
    name: String,
    processes: Vec<u32>,
    exited: Vec<u32>,
    shared_arenas: Vec<String>,
    private_arenas: usize,
    memory_bytes: u64,
    live_bytes: u64,
    committed_bytes: u64,
    reserved_bytes: u64,
    hg_bytes: u64,
}

/// A shared arena, which is in no process's list.
#[derive(Debug, Serialize)]
pub(super) struct SharedArena {
    id: String,
    owner_pid: u32,
    read_through: u32,
    read: f64,
    #[serde(flatten)]
    arena: Arena,
    mapped_by: Vec<u32>,
    processes: Option<Vec<Entry>>,
}

/// A process of its directory.
#[derive(Debug, Serialize)]
struct Entry {
    pid: Option<u32>,
    pid_inside: u32,
    start_ticks: u64,
    state: &'static str,
    watched: bool,
    role: String,
    refills: u64,
    flushes: u64,
    large_allocs: u64,
    large_frees: u64,
    grows: u64,
    shrinks: u64,
    allocs_failed: u64,
    corruptions: u64,
    repairs: u64,
    recovered: u64,
    stalls: u64,
    last_stall: Option<LastStall>,
    cpus: Option<u32>,
}

#[derive(Debug, Serialize)]
struct LastStall {
    time: f64,
    lock: String,
    ns: u64,
}

/// The applications of a snapshot.
pub(super) fn applications(snapshot: &Snapshot) -> Vec<Application> {
    let application = |pids: std::collections::BTreeSet<u32>| {
        let processes: Vec<&Process> = pids.iter().filter_map(|pid| snapshot.processes.get(pid)).collect();
        let exited: Vec<&Process> = processes.iter().copied().filter(|process| process.exited.is_some()).collect();
        let alive: Vec<&Process> = processes.iter().copied().filter(|process| process.exited.is_none()).collect();
        let counted = if alive.is_empty() { &processes } else { &alive };
        let sum = Sum::over(snapshot, counted.clone());
        let shared = snapshot.shared.iter().filter(|(_, shared)| !shared.processes.is_disjoint(&pids));
        let pids_of = |processes: &[&Process]| processes.iter().map(|process| process.identity.pid).collect();
        Application {
            name: counted.first().map_or_else(String::new, |process| process.identity.comm.clone()),
            processes: pids_of(&alive),
            exited: pids_of(&exited),
            shared_arenas: shared.map(|(file, _)| file.to_string()).collect(),
            private_arenas: counted.iter().map(|process| process.arenas.len()).sum(),
            memory_bytes: sum.kernel,
            live_bytes: sum.live(),
            committed_bytes: sum.committed,
            reserved_bytes: sum.reserved,
            hg_bytes: sum.hg(),
        }
    };
    snapshot.applications().into_iter().map(application).collect()
}

impl SharedArena {
    /// `None` for one that is a process's alone.
    pub(super) fn of(of: &ArenaRef<'_>, snapshot: &Snapshot, beside: Beside<'_>) -> Option<SharedArena> {
        let (shared, crate::model::ArenaId::Shared(id)) = (of.shared?, of.id) else { return None };
        let time = |at: MonotonicNs| {
            let ago = Duration::from_nanos(snapshot.at.saturating_sub(at));
            seconds(snapshot.time.checked_sub(ago).unwrap_or(snapshot.time))
        };
        Some(SharedArena {
            id: id.to_string(),
            owner_pid: shared.owner,
            read_through: shared.reader,
            read: time(shared.read_at),
            arena: whole(of, snapshot, beside),
            mapped_by: shared.processes.iter().copied().collect(),
            processes: shared.members.as_ref().map(|members| members.iter().map(|m| entry(m, &time)).collect()),
        })
    }
}

fn entry(member: &Member, time: &dyn Fn(MonotonicNs) -> f64) -> Entry {
    let counts = member.counts;
    Entry {
        pid: member.pid,
        pid_inside: member.inner_pid,
        start_ticks: member.start_ticks,
        state: if member.gone { "dead" } else { "live" },
        watched: member.watched,
        role: member.role.clone(),
        refills: counts.refills,
        flushes: counts.flushes,
        large_allocs: counts.large_allocs,
        large_frees: counts.large_frees,
        grows: counts.grows,
        shrinks: counts.shrinks,
        allocs_failed: counts.failed,
        corruptions: counts.corruptions,
        repairs: counts.repairs,
        recovered: counts.recovered,
        stalls: counts.stalls,
        last_stall: member.stall.map(|stall| LastStall {
            time: time(stall.at),
            lock: stall.lock.to_string(),
            ns: stall.ns,
        }),
        cpus: Some(member.cpus).filter(|cpus| *cpus > 0),
    }
}
