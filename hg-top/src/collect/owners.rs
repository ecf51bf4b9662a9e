//! Whose the threads are that events tell of: a lock of a shared arena may be held by a thread of another process than the one
//! that waits, and is known by its id in the pid namespace of these processes.
//!
//! Lives for one batch of events. Each look costs some reads of /proc, so a target that makes up threads gets only so many.

use std::collections::BTreeMap;

use hg_probes::ProbeId;
use hg_probes::words::StallKind;

use super::shared::Arenas;
use super::target::Target;
use crate::event::{Event, Who};
use crate::model::Identity;
use crate::process::{Process as Proc, Thread, owner};

/// Threads that are looked for in one batch.
const MAX_LOOKS: usize = 64;

/// Names the threads of events.
pub(super) struct Owners<'a> {
    arenas: &'a Arenas,
    targets: &'a BTreeMap<u32, Target>,
    /// Those found, by the process that told of them and the id that it knows them by.
    found: BTreeMap<(u32, u32), Who>,
}

impl<'a> Owners<'a> {
    /// Of these processes and what they share.
    pub(super) fn new(arenas: &'a Arenas, targets: &'a BTreeMap<u32, Target>) -> Owners<'a> {
        Owners { arenas, targets, found: BTreeMap::new() }
    }

    /// Enters what the event's process does, and of an arena that several processes share, whose the other thread is.
    pub(super) fn name(&mut self, event: &mut Event) {
        event.role = self.arenas.said_role(event.pid).map(str::to_owned);
        let (pid, number) = (event.pid, event.raw("arena") as u32);
        event.owner = self.arenas.of(pid, number, self.targets).next().map(|shared| shared.owner);
        let tid = match event.probe.id {
            ProbeId::LockStall if event.raw("hold_or_wait") == StallKind::Wait as u64 => event.raw("holder_tid"),
            ProbeId::OwnerDead => event.raw("dead_tid"),
            _ => return,
        } as u32;
        if tid == 0 || event.owner.is_none() {
            return;
        }
        let known = self.found.get(&(pid, tid)).cloned();
        if known.is_none() && self.found.len() >= MAX_LOOKS {
            return;
        }
        let who = known.unwrap_or_else(|| match event.probe.id {
            ProbeId::OwnerDead => self.dead(pid, number, tid),
            _ => self.living(pid, number, tid),
        });
        self.found.insert((pid, tid), who.clone());
        event.other = Some(who);
    }

    /// A thread that has a lock.
    fn living(&self, pid: u32, number: u32, tid: u32) -> Who {
        let Ok(asker) = self.targets.get(&pid).map_or_else(|| Proc::outline(pid), |t| Ok(t.last.identity.clone()))
        else {
            return Who::unknown(tid, "not found");
        };
        let sharing = self.arenas.of(pid, number, self.targets).flat_map(|shared| &shared.processes);
        let among = sharing.filter_map(|pid| self.targets.get(pid)).filter(|target| target.last.exited.is_none());
        let mut among: Vec<&Identity> = among.map(|target| &target.last.identity).collect();
        // Processes of the directory that are not watched.
        let members = self.arenas.of(pid, number, self.targets).flat_map(|shared| shared.members.iter().flatten());
        let others = members.filter(|member| !member.watched).filter_map(|member| member.pid).map(Identity::unknown);
        let others: Vec<Identity> = others.collect();
        among.extend(others.iter().chain([&asker]));
        match owner(&asker, tid, &among) {
            Some(found) => {
                let Thread { comm, state } = Thread::look(found.pid, found.tid);
                Who { pid: found.pid, tid: found.tid, comm, state, role: self.role(found.pid) }
            }
            // Its id may be another process's by now, so nothing is said of that one.
            None => Who::unknown(tid, "dead or not watched"),
        }
    }

    /// A thread that died: of servers without threads, the process of that id.
    fn dead(&self, pid: u32, number: u32, tid: u32) -> Who {
        let mut members = self.arenas.of(pid, number, self.targets).flat_map(|shared| shared.members.iter().flatten());
        let member = members.find(|member| member.inner_pid == tid);
        let mut listed = self.arenas.of(pid, number, self.targets).flat_map(|shared| &shared.processes);
        let is_it = |pid: &&u32| self.targets.get(pid).is_some_and(|target| target.last.identity.inner_pid == tid);
        let role = member.map(|member| member.role.clone()).filter(|role| !role.is_empty());
        match (listed.find(is_it), role) {
            (Some(pid), role) => Who { pid: *pid, role: role.or_else(|| self.role(*pid)), ..Who::unknown(tid, "dead") },
            (None, role) => Who { role, ..Who::unknown(tid, "dead") },
        }
    }

    /// What a process does, by its own word or its command line.
    fn role(&self, pid: u32) -> Option<String> {
        let said = self.arenas.said_role(pid).map(str::to_owned);
        said.or_else(|| Some(self.targets.get(&pid)?.last.identity.role.clone()))
    }
}
