//! The arenas that several watched processes share: each is read through one of them, whichever lives and answers, and belongs to
//! all of them.
//!
//! An arena stays as long as a process that maps it is listed, dead ones included: its last figures are shown then.

use std::collections::BTreeMap;

use super::target::{Target, Task};
use crate::model::{FileId, Identity, Member, Shared};

/// Through which process each arena is read.
pub(super) type Readers = BTreeMap<FileId, u32>;

/// The arenas, as they were read last.
#[derive(Default)]
pub(super) struct Arenas {
    known: BTreeMap<FileId, Shared>,
}

impl Arenas {
    /// All of them.
    pub(super) fn all(&self) -> &BTreeMap<FileId, Shared> {
        &self.known
    }

    /// Chooses the process that each known arena is to be read through: the first that answers. One that nobody answers for is
    /// tried through all.
    pub(super) fn readers(&self, targets: &BTreeMap<u32, Target>) -> Readers {
        let good = |pid: &&u32| targets.get(pid).is_some_and(Target::is_good);
        let reader = |(file, shared): (&FileId, &Shared)| Some((*file, *shared.processes.iter().find(good)?));
        self.known.iter().filter_map(reader).collect()
    }

    /// What a reading of process `pid` is to do.
    pub(super) fn task(&self, pid: u32, readers: &Readers) -> Task {
        let others = |file: &FileId| readers.get(file).is_some_and(|reader| *reader != pid);
        let own = |(file, shared): &(&FileId, &Shared)| shared.processes.contains(&pid) && !others(file);
        Task {
            last: self.known.iter().filter(own).map(|(file, shared)| (*file, shared.clone())).collect(),
            left_out: self.known.keys().copied().filter(others).collect(),
        }
    }

    /// Takes in what was read, the newest of each, and finds out whose it is.
    pub(super) fn take(&mut self, targets: &mut BTreeMap<u32, Target>) {
        for (file, read) in targets.values_mut().flat_map(Target::take_shared) {
            let known = self.known.get(&file);
            if known.is_none_or(|known| known.read_at < read.read_at) {
                let owner = known.map_or(0, |known| known.owner);
                self.known.insert(file, Shared { owner, ..read });
            }
        }
        for (file, shared) in &mut self.known {
            let maps = |target: &&Target| target.last.shared.contains(file);
            let processes: Vec<&Target> = targets.values().filter(maps).collect();
            shared.processes = processes.iter().map(|target| target.last.identity.pid).collect();
            let alive = |target: &&&Target| target.last.exited.is_none();
            let alive: Vec<&Identity> = processes.iter().filter(alive).map(|target| &target.last.identity).collect();
            shared.owner = owner(shared, &alive);
            shared.members.iter_mut().flatten().for_each(|member| find(member, &alive));
        }
        self.known.retain(|_, shared| !shared.processes.is_empty());
    }

    /// The arenas with this number that process `pid` uses; all of that number if the process is not listed yet.
    pub(super) fn of(&self, pid: u32, number: u32, targets: &BTreeMap<u32, Target>) -> impl Iterator<Item = &Shared> {
        let listed = targets.contains_key(&pid);
        let uses = move |shared: &&Shared| shared.number == number && (!listed || shared.processes.contains(&pid));
        self.known.values().filter(uses)
    }

    /// What a process does, as it says itself.
    pub(super) fn said_role(&self, pid: u32) -> Option<&str> {
        let mut roles = self.known.values().filter_map(|shared| Some(shared.member(pid)?.role.as_str()));
        roles.find(|role| !role.is_empty())
    }
}

/// The process that stands for an arena: who made it, else the one that did so far, else the first.
fn owner(shared: &Shared, alive: &[&Identity]) -> u32 {
    let creator = shared.arena.figures.as_ref().map(|figures| figures.creator);
    let maker = alive.iter().find(|identity| Some(identity.inner_pid) == creator).map(|identity| identity.pid);
    let before = alive.iter().find(|identity| identity.pid == shared.owner).map(|identity| identity.pid);
    let mut listed = std::iter::once(shared.owner).chain(shared.processes.iter().copied());
    let last = listed.find(|pid| shared.processes.contains(pid));
    maker.or(before).or(alive.first().map(|identity| identity.pid)).or(last).unwrap_or(0)
}

/// Finds the process of a record among those that are watched and live.
fn find(member: &mut Member, alive: &[&Identity]) {
    member.watched = false;
    if member.gone {
        return;
    }
    let started = |identity: &Identity| [identity.start_ticks, 0].contains(&member.start_ticks);
    let is_it = |identity: &&&Identity| match member.pid {
        Some(pid) => identity.pid == pid && started(identity),
        None => identity.inner_pid == member.inner_pid && started(identity),
    };
    if let Some(identity) = alive.iter().find(is_it) {
        (member.pid, member.watched) = (Some(identity.pid), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arena, Figures};

    fn identity(pid: u32, inner_pid: u32, start_ticks: u64) -> Identity {
        Identity { inner_pid, start_ticks, ..Identity::unknown(pid) }
    }

    #[test]
    fn a_record_is_found_by_pid_and_start_also_in_a_namespace() {
        let (host, inside) = (identity(40, 40, 7), identity(900, 2, 8));
        let alive = [&host, &inside];
        let found = |pid, inner_pid, start_ticks| {
            let mut member = Member { pid, inner_pid, start_ticks, watched: true, ..Member::default() };
            find(&mut member, &alive);
            (member.pid, member.watched)
        };
        assert_eq!(found(Some(40), 40, 7), (Some(40), true));
        assert_eq!(found(Some(40), 40, 6), (Some(40), false), "the pid came again");
        assert_eq!(found(Some(41), 41, 7), (Some(41), false), "it lives, and is not watched");
        assert_eq!(found(None, 2, 8), (Some(900), true));
        assert_eq!(found(None, 2, 9), (None, false));
        assert_eq!(found(None, 2, 0), (Some(900), true), "it could not tell when it started, and maps the arena");
    }

    #[test]
    fn who_made_it_stands_for_it_while_it_lives() {
        let figures = Figures { creator: 2, ..Figures::default() };
        let arena = Arena { figures: Some(figures), ..Arena::default() };
        let (first, maker) = (identity(40, 40, 7), identity(900, 2, 8));
        let mut shared = Shared { arena, processes: [40, 900].into(), ..Shared::default() };
        assert_eq!(owner(&shared, &[&first, &maker]), 900);
        assert_eq!(owner(&shared, &[&first]), 40);
        shared.owner = 900;
        assert_eq!(owner(&shared, &[&first]), 40, "one that lives, if any does");
        assert_eq!(owner(&shared, &[]), 900);
        let second = identity(50, 50, 9);
        (shared.owner, shared.processes) = (50, [40, 50].into());
        assert_eq!(owner(&shared, &[&first, &second]), 50, "it does not change for no reason");
    }
}
