//! Arenas that several processes share: each is one arena, whoever's page it was read through, with the processes that use it.
//!
//! Who a process is, is told by its pid *and* its start: a pid comes again, a record of the directory does not know that.

use std::collections::BTreeSet;

use super::{Arena, ArenaId, Member, MonotonicNs, Process, Snapshot};

/// An arena that several processes share.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Its number, as probes give it.
    pub number: u32,
    /// Its figures.
    pub arena: Arena,
    /// The processes of its directory, in the order of their places; `None` if it has none, or it cannot be read.
    pub members: Option<Vec<Member>>,
    /// The process that its page was read through.
    pub reader: u32,
    /// When that was.
    pub read_at: MonotonicNs,
    /// Watched processes that map it, dead ones included.
    pub processes: BTreeSet<u32>,
    /// The process that stands for it: who made it, else the first that is watched.
    pub owner: u32,
}

impl Shared {
    /// Processes that use it: those that live, and the dead that are still listed.
    pub fn count(&self) -> (usize, usize) {
        let Some(members) = &self.members else { return (self.processes.len(), 0) };
        let gone = members.iter().filter(|member| member.gone).count();
        (members.len() - gone, gone)
    }

    /// Living processes of the directory that are not watched.
    pub fn unwatched(&self) -> usize {
        self.members.iter().flatten().filter(|member| !member.gone && !member.watched).count()
    }

    /// The record of a watched process.
    pub fn member(&self, pid: u32) -> Option<&Member> {
        self.members.iter().flatten().find(|member| member.watched && member.pid == Some(pid))
    }

    /// The same process in an earlier reading.
    pub fn same(&self, member: &Member) -> Option<&Member> {
        let same = |other: &&Member| (other.inner_pid, other.start_ticks) == (member.inner_pid, member.start_ticks);
        self.members.iter().flatten().find(same)
    }
}

/// An arena in a snapshot, with whose it is.
#[derive(Clone, Copy, Debug)]
pub struct ArenaRef<'a> {
    /// Which one.
    pub id: ArenaId,
    /// Its number, as probes give it.
    pub number: u32,
    /// Its figures.
    pub arena: &'a Arena,
    /// Its process; of a shared arena the one that stands for it.
    pub process: &'a Process,
    /// The processes that share it, if it is a shared one.
    pub shared: Option<&'a Shared>,
}

impl ArenaRef<'_> {
    /// Whose it is: `4242`, `12 processes`.
    pub fn whose(&self) -> String {
        match self.shared.map(Shared::count) {
            Some((live, _)) if live != 1 => format!("{live} processes"),
            _ => self.process.identity.pid.to_string(),
        }
    }

    /// Whether it is the arena of one of these processes.
    pub fn is_used_by(&self, pids: &BTreeSet<u32>) -> bool {
        match self.shared {
            Some(shared) => !shared.processes.is_disjoint(pids),
            None => pids.contains(&self.process.identity.pid),
        }
    }

    /// One of its threads as text: `4250 "io-2"`; of a shared arena the process and what it does: `27726, SIP receiver`.
    pub fn thread(&self, snapshot: &Snapshot, tid: u32) -> String {
        let Some(shared) = self.shared else { return self.process.thread(tid) };
        let member = shared.members.iter().flatten().find(|member| member.inner_pid == tid);
        let Some(member) = member else { return tid.to_string() };
        let role = Some(member.role.as_str()).filter(|role| !role.is_empty());
        let known =
            member.pid.and_then(|pid| snapshot.processes.get(&pid)).map(|process| process.identity.comm.as_str());
        let name = role.or(known).map_or_else(String::new, |name| format!(", {name}"));
        format!("{}{name}", member.shown_pid())
    }

    /// The process through which its memory can be read: one that lives, if any does.
    pub fn reader<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Process> {
        let pid = self.shared.map_or(self.process.identity.pid, |shared| shared.reader);
        let others = self.shared.into_iter().flat_map(|shared| shared.processes.iter().copied());
        let alive = |pid| snapshot.processes.get(&pid).filter(|process| process.exited.is_none());
        std::iter::once(pid).chain(others).find_map(alive)
    }
}

impl Snapshot {
    /// The arena of that name, if it is still there.
    pub fn arena(&self, id: ArenaId) -> Option<ArenaRef<'_>> {
        match id {
            ArenaId::Private(pid, number) => {
                let process = self.processes.get(&pid)?;
                let arena = process.arenas.get(&number)?;
                Some(ArenaRef { id, number, arena, process, shared: None })
            }
            ArenaId::Shared(file) => {
                let shared = self.shared.get(&file)?;
                let process = self.processes.get(&shared.owner)?;
                Some(ArenaRef { id, number: shared.number, arena: &shared.arena, process, shared: Some(shared) })
            }
        }
    }

    /// All arenas, each once, those that are shared first.
    pub fn arenas(&self) -> impl Iterator<Item = ArenaRef<'_>> {
        let shared = self.shared.keys().map(|file| ArenaId::Shared(*file));
        let private = self
            .processes
            .iter()
            .flat_map(|(pid, process)| process.arenas.keys().map(|number| ArenaId::Private(*pid, *number)));
        shared.chain(private).filter_map(|id| self.arena(id))
    }

    /// The records of a watched process in the directories of its arenas.
    pub fn members(&self, pid: u32) -> impl Iterator<Item = &Member> {
        let files = self.processes.get(&pid).into_iter().flat_map(|process| &process.shared);
        files.filter_map(move |file| self.shared.get(file)?.member(pid))
    }

    /// What a watched process does, as it says itself; `None` if it says nothing.
    pub fn said_role(&self, pid: u32) -> Option<&str> {
        self.members(pid).map(|member| member.role.as_str()).find(|role| !role.is_empty())
    }

    /// Processes that belong together, as an arena connects them; every process is in one of these groups.
    pub fn applications(&self) -> Vec<BTreeSet<u32>> {
        let mut groups: Vec<BTreeSet<u32>> = Vec::new();
        let alone = self.processes.keys().map(|pid| BTreeSet::from([*pid]));
        let sharing = self.shared.values().map(|shared| shared.processes.clone());
        for mut group in alone.chain(sharing).filter(|group| !group.is_empty()) {
            let (joined, apart) = groups.into_iter().partition(|other| !other.is_disjoint(&group));
            let joined: Vec<BTreeSet<u32>> = joined;
            joined.into_iter().for_each(|other| group.extend(other));
            groups = apart;
            groups.push(group);
        }
        groups.sort();
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FileId;

    #[test]
    fn applications_are_processes_that_an_arena_connects() {
        let file = |inode| FileId { inode, ..FileId::default() };
        let of = |pid: u32| (pid, Process::new(super::super::Identity::unknown(pid)));
        let shared = |processes: &[u32]| Shared { processes: processes.iter().copied().collect(), ..Shared::default() };
        let snapshot = Snapshot {
            processes: (1..=6).map(of).collect(),
            shared: [(file(7), shared(&[1, 3])), (file(8), shared(&[4, 5])), (file(9), shared(&[3, 5]))].into(),
            ..Snapshot::empty()
        };
        let found: Vec<Vec<u32>> = snapshot.applications().into_iter().map(|g| g.into_iter().collect()).collect();
        assert_eq!(found, [vec![1, 3, 4, 5], vec![2], vec![6]]);
    }

    #[test]
    fn a_pid_that_came_again_is_another_process() {
        let old = Member { inner_pid: 5, start_ticks: 100, gone: true, role: "old".into(), ..Member::default() };
        let new =
            Member { start_ticks: 900, gone: false, pid: Some(5), watched: true, role: "new".into(), ..old.clone() };
        let shared = Shared { members: Some(vec![old.clone(), new.clone()]), ..Shared::default() };
        assert_eq!((shared.member(5), shared.same(&old)), (Some(&new), Some(&old)));
        assert_eq!((shared.count(), shared.unwatched()), ((1, 1), 0));
    }
}
