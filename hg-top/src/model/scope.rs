//! What a view looks at: all watched processes or one of them, added up per class and per lock.

use std::collections::{BTreeMap, BTreeSet};

use hg_probes::words::{LockId, Reason};

use super::{Arena, ArenaId, ArenaRef, Class, Counters, HoldWait, Process, Snapshot};

/// Which processes a view adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    #[default]
    All,
    /// One.
    One(u32),
}

/// A size class over all arenas in scope.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassSum {
    /// Sums of the figures. `front_cells` counts what could be read.
    pub class: Class,
    /// Live cells; `None` if no page tells.
    pub live: Option<u64>,
    /// What was counted since the earlier snapshot; `None` where that is not known.
    pub change: Option<Counters>,
}

/// A lock over all arenas in scope.
#[derive(Clone, Debug, Default)]
pub struct LockSum {
    /// Since the start of each process (or the attach, where only eBPF knows the lock).
    pub total: HoldWait,
    /// Since the earlier snapshot; `None` where that is not known.
    pub change: Option<HoldWait>,
    /// Arena of the longest hold.
    pub hold_of: Option<ArenaId>,
    /// Arena of the longest wait.
    pub wait_of: Option<ArenaId>,
    /// Whether one of them was torn.
    pub torn: bool,
}

impl Scope {
    /// The processes in scope. Of all of them, the ended ones count only once all have ended: workers that come and go leave
    /// their last figures behind, which are no memory any more.
    pub fn processes(self, snapshot: &Snapshot) -> impl Iterator<Item = &Process> {
        let alive = |process: &Process| process.exited.is_none();
        let only_alive = self == Scope::All && snapshot.processes.values().any(alive);
        let holds = move |process: &&Process| self.holds(process.identity.pid) && (!only_alive || alive(process));
        snapshot.processes.values().filter(holds)
    }

    /// Whether process `pid` is in scope.
    pub fn holds(self, pid: u32) -> bool {
        match self {
            Scope::All => true,
            Scope::One(only) => only == pid,
        }
    }

    /// The arenas that the processes in scope use, each once, those that are shared first.
    pub fn arenas(self, snapshot: &Snapshot) -> impl Iterator<Item = ArenaRef<'_>> {
        let pids: BTreeSet<u32> = self.processes(snapshot).map(|process| process.identity.pid).collect();
        snapshot.arenas().filter(move |of| of.is_used_by(&pids))
    }

    /// The classes in scope, and how they changed since `earlier`.
    pub fn classes(self, now: &Snapshot, earlier: Option<&Snapshot>) -> BTreeMap<u32, ClassSum> {
        let mut sums: BTreeMap<u32, ClassSum> = BTreeMap::new();
        for of in self.arenas(now) {
            let before = earlier.and_then(|earlier| same_arena(earlier, &of));
            for (size, class) in &of.arena.classes {
                let before = before.and_then(|arena| arena.classes.get(size));
                sums.entry(*size).or_default().add(class, before);
            }
        }
        sums
    }

    /// The locks in scope, and how they changed since `earlier`.
    pub fn locks(self, now: &Snapshot, earlier: Option<&Snapshot>) -> BTreeMap<(LockId, Reason), LockSum> {
        let mut sums: BTreeMap<(LockId, Reason), LockSum> = BTreeMap::new();
        for of in self.arenas(now) {
            let before = earlier.and_then(|earlier| same_arena(earlier, &of));
            for (key, lock) in &of.arena.locks {
                let Some(best) = lock.best() else { continue };
                // A lock that was never taken before is not listed there: then all of it is new.
                let change = before.and_then(|arena| match arena.locks.get(key).and_then(super::Lock::best) {
                    Some(before) => best.since(before),
                    None => Some(best.clone()),
                });
                sums.entry(*key).or_default().add(best, change, of.id, lock.torn);
            }
        }
        sums
    }
}

impl ClassSum {
    fn add(&mut self, class: &Class, before: Option<&Class>) {
        let change = before.and_then(|before| match (class.total, before.total) {
            (Some(now), Some(then)) => now.since(&then),
            _ => class.traced?.since(&before.traced?),
        });
        if let Some(change) = change {
            self.change = Some(self.change.unwrap_or_default().plus(&change));
        }
        if let Some(live) = class.live() {
            self.live = Some(self.live.unwrap_or(0).saturating_add(live));
        }
        let sum = &mut self.class;
        if let Some(counters) = class.total.or(class.traced) {
            sum.total = Some(sum.total.unwrap_or_default().plus(&counters));
        }
        if let Some(front) = class.front_cells {
            sum.front_cells = Some(sum.front_cells.unwrap_or(0).saturating_add(front));
        }
        sum.transfer_cells = sum.transfer_cells.saturating_add(class.transfer_cells);
        sum.spans = sum.spans.saturating_add(class.spans);
        sum.cells = sum.cells.saturating_add(class.cells);
        sum.central_cells = sum.central_cells.saturating_add(class.central_cells);
        sum.span_bytes = sum.span_bytes.saturating_add(class.span_bytes);
        sum.torn |= class.torn;
    }
}

impl LockSum {
    fn add(&mut self, best: &HoldWait, change: Option<HoldWait>, id: ArenaId, torn: bool) {
        if best.hold.max_ns >= self.total.hold.max_ns {
            self.hold_of = Some(id);
        }
        if best.wait.max_ns >= self.total.wait.max_ns {
            self.wait_of = Some(id);
        }
        self.total.add(best);
        if let Some(change) = change {
            self.change.get_or_insert_default().add(&change);
        }
        self.torn |= torn;
    }
}

/// The same process (not merely the same pid) in another snapshot.
pub fn same_process<'a>(snapshot: &'a Snapshot, process: &Process) -> Option<&'a Process> {
    let other = snapshot.processes.get(&process.identity.pid)?;
    (other.identity.start_ticks == process.identity.start_ticks).then_some(other)
}

/// The same arena (not merely one of the same name) in another snapshot.
pub fn same_arena<'a>(snapshot: &'a Snapshot, of: &ArenaRef<'_>) -> Option<&'a Arena> {
    let other = snapshot.arena(of.id)?;
    let same = of.shared.is_some() || other.process.identity.start_ticks == of.process.identity.start_ticks;
    same.then_some(other.arena)
}
