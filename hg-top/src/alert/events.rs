//! Alerts from events: within a second, with thread and stack.

use hg_probes::ProbeId;
use hg_probes::words::{Cause, StallKind};

use super::{Kind, Sighting};
use crate::event::{Event, Who};
use crate::process::{STOPPED, Thread, host_tid};
use crate::remedy;

/// What an event says, if it is one to alert of.
pub(super) fn sighting(event: &Event) -> Option<Sighting> {
    let new = |kind, subject: String, evidence| {
        Sighting::new(kind, event.pid, subject, evidence, event.time).role(event.role.as_deref())
    };
    // What is true of an arena is true of it whoever saw it.
    let of_arena =
        |kind, subject, evidence| Sighting::new(kind, event.owner.unwrap_or(event.pid), subject, evidence, event.time);
    Some(match event.probe.id {
        ProbeId::LockStall => match event.other.as_ref().filter(|holder| ![0, event.pid].contains(&holder.pid)) {
            Some(holder) => Sighting::new(
                Kind::LockStall,
                holder.pid,
                format!("{} held", event.shown("lock")),
                held_elsewhere(event, holder),
                event.time,
            )
            .role(holder.role.as_deref())
            .stuck(holder.state == STOPPED)
            .remedy(if holder.state == STOPPED { remedy::STOPPED } else { Kind::LockStall.next_step() }),
            None => {
                let subject = format!("{} {}", event.shown("lock"), event.shown("reason"));
                new(Kind::LockStall, subject, stall_evidence(event))
            }
        },
        ProbeId::OwnerDead => {
            let role = event.other.as_ref().and_then(|dead| dead.role.as_deref());
            of_arena(Kind::OwnerDead, event.shown("lock"), event.meaning()).role(role)
        }
        ProbeId::Corruption => {
            let evidence = format!("{} by thread {}", event.meaning(), own(event));
            new(Kind::Corruption, event.shown("kind"), evidence)
        }
        ProbeId::AllocFailed => new(Kind::AllocFailed, event.shown("cause"), event.meaning()),
        ProbeId::GrowBlocked if event.raw("on") != 0 => {
            let remedy = remedy::of_cause(Cause::from_u64(event.raw("cause")));
            of_arena(Kind::GrowBlocked, String::new(), event.meaning()).remedy(remedy)
        }
        _ => return None,
    })
}

/// The thread that hit the probe, by what its process says it does, else by name.
fn own(event: &Event) -> String {
    let Thread { comm, state } = Thread::look(event.pid, event.tid);
    // The alert names the process.
    Who { comm, role: event.role.clone(), ..Who::unknown(event.tid, state) }.name()
}

fn thread(pid: u32, tid: u32) -> String {
    let thread = Thread::look(pid, tid);
    match thread.comm.is_empty() {
        true => format!("{tid} ({})", thread.state),
        false => format!("{tid} \"{}\" ({})", thread.comm, thread.state),
    }
}

/// Another process has the lock: it comes first.
fn held_elsewhere(event: &Event, holder: &Who) -> String {
    let (lock, reason, ns) = (event.shown("lock"), event.shown("reason"), event.shown("ns"));
    let (tid, role) = (event.tid, event.role.as_ref().map_or_else(String::new, |role| format!(", {role}")));
    format!("{lock} held by tid {}; waited for {ns} ({reason}) by tid {tid}{role}", holder.name())
}

fn stall_evidence(event: &Event) -> String {
    let (lock, reason, ns) = (event.shown("lock"), event.shown("reason"), event.shown("ns"));
    // Locks know their holders by the ids of the process's own namespace. The holder itself tells of a long hold.
    let holder = || match (&event.other, event.raw("holder_tid") as u32) {
        (Some(other), _) => Some(other.name()),
        (None, 0) => None,
        (None, tid) => Some(thread(event.pid, host_tid(event.pid, tid))),
    };
    match StallKind::from_u64(event.raw("hold_or_wait")) {
        Some(StallKind::Wait) => {
            let held = holder().map_or_else(String::new, |holder| format!("; held by tid {holder}"));
            format!("{lock} waited for {ns} ({reason}) by tid {}{held}", event.tid)
        }
        _ => format!("{lock} held {ns} ({reason}) by tid {}", own(event)),
    }
}
