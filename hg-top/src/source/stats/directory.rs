//! The directory of a shared arena: which processes use it, what each says it does, and what each did.
//!
//! Records are copied a few at a time, from the first place on, until none of a chunk was ever used: places are given out from
//! the first, and to read memory that nobody wrote would only make the target bigger. Whether a process of a record still lives
//! is asked of the kernel, where its pids are ours too; in a pid namespace of its own the collector looks for it among the
//! processes that are watched.

use std::mem::offset_of;

use hg_probes::directory::{PROCESSES, ProcessRecord, ROLE_BYTES, state};
use hg_probes::page::{Header, feature};
use hg_probes::words::LockId;

use super::copy::{Block, PageCopy};
use super::memory::Memory;
use crate::escape;
use crate::model::Member;
use crate::model::member::{Counts, Stall};
use crate::process::{Process, inner_pid};

/// Records that are copied at once.
const CHUNK: usize = 16;

/// The processes of the arena, read through process `pid`; `None` if the page tells of no directory, or it cannot be read.
pub fn members(copy: &PageCopy, pid: u32) -> Option<Vec<Member>> {
    let header = copy.header_block();
    if header.u64(offset_of!(Header, features)) & feature::DIRECTORY == 0 {
        return None;
    }
    let start = header.u64(offset_of!(Header, processes_address));
    let memory = Memory::of(pid);
    let mut members = Vec::new();
    let mut bytes = vec![0; CHUNK * size_of::<ProcessRecord>()];
    for chunk in 0..PROCESSES.div_ceil(CHUNK) {
        let address = start.checked_add((chunk * bytes.len()) as u64)?;
        if !memory.read(address, &mut bytes).is_ok_and(|whole| whole) {
            // Of a directory that ends early, what there is.
            return (chunk > 0).then_some(members);
        }
        if bytes.iter().all(|byte| *byte == 0) {
            break;
        }
        let records = bytes.chunks_exact(size_of::<ProcessRecord>());
        members.extend(records.filter_map(|record| member(Block::at(record, 0))));
    }
    if inner_pid(pid) == pid {
        members.iter_mut().for_each(find);
    }
    Some(members)
}

fn member(record: Block<'_>) -> Option<Member> {
    let word = |offset| record.u64(offset);
    let gone = match record.u32(offset_of!(ProcessRecord, state)) {
        state::LIVE => false,
        state::DEAD => true,
        _ => return None,
    };
    let role: [u8; ROLE_BYTES] = record.array(offset_of!(ProcessRecord, role)).unwrap_or([0; ROLE_BYTES]);
    let end = role.iter().position(|byte| *byte == 0).unwrap_or(ROLE_BYTES);
    let stall = Stall {
        ns: word(offset_of!(ProcessRecord, stall_ns)),
        at: word(offset_of!(ProcessRecord, stall_at_ns)),
        lock: LockId(record.u32(offset_of!(ProcessRecord, stall_lock))),
    };
    Some(Member {
        inner_pid: record.u32(offset_of!(ProcessRecord, pid)),
        start_ticks: word(offset_of!(ProcessRecord, start_ticks)),
        pid: None,
        watched: false,
        gone,
        role: escape::bytes(&role[..end]),
        counts: Counts {
            refills: word(offset_of!(ProcessRecord, refills)),
            flushes: word(offset_of!(ProcessRecord, flushes)),
            large_allocs: word(offset_of!(ProcessRecord, large_allocs)),
            large_frees: word(offset_of!(ProcessRecord, large_frees)),
            grows: word(offset_of!(ProcessRecord, grows)),
            shrinks: word(offset_of!(ProcessRecord, shrinks)),
            failed: word(offset_of!(ProcessRecord, failed)),
            corruptions: word(offset_of!(ProcessRecord, corruptions)),
            repairs: word(offset_of!(ProcessRecord, repairs)),
            recovered: word(offset_of!(ProcessRecord, recovered)),
            stalls: word(offset_of!(ProcessRecord, stalls)),
        },
        stall: (stall.at > 0).then_some(stall),
        cpus: record.u32(offset_of!(ProcessRecord, cpus)),
    })
}

/// Asks the kernel for it: a pid that came again has started at another time. A record without a start proves nothing.
fn find(member: &mut Member) {
    if member.start_ticks == 0 {
        return;
    }
    let alive = !member.gone && Process::start_ticks(member.inner_pid).is_ok_and(|ticks| ticks == member.start_ticks);
    member.pid = alive.then_some(member.inner_pid);
    member.gone = !alive;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as its bytes.
    fn record(change: impl Fn(&mut dyn FnMut(usize, &[u8]))) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<ProcessRecord>()];
        change(&mut |offset, value| bytes[offset..offset + value.len()].copy_from_slice(value));
        bytes
    }

    fn of(pid: u32, ticks: u64, state: u32, role: &[u8]) -> Option<Member> {
        let bytes = record(|set| {
            set(offset_of!(ProcessRecord, state), &state.to_ne_bytes());
            set(offset_of!(ProcessRecord, pid), &pid.to_ne_bytes());
            set(offset_of!(ProcessRecord, start_ticks), &ticks.to_ne_bytes());
            set(offset_of!(ProcessRecord, role), role);
            set(offset_of!(ProcessRecord, stalls), &3_u64.to_ne_bytes());
        });
        member(Block::at(&bytes, 0))
    }

    #[test]
    fn records_are_what_they_say_within_bounds() {
        let full = of(5, 6, state::LIVE, &[b'x'; ROLE_BYTES]).unwrap();
        assert_eq!((full.role.len(), full.counts.stalls, full.stall, full.gone), (ROLE_BYTES, 3, None, false));
        assert_eq!(of(5, 6, state::DEAD, b"\x1b[2Jworker\n\xff").unwrap().role, "\\x1b[2Jworker\\n\\xff");
        assert!(of(5, 6, state::FREE, b"").is_none() && of(5, 6, 77, b"").is_none());
    }

    #[test]
    fn a_pid_that_came_again_is_not_the_process_of_the_record() {
        let me = std::process::id();
        let ticks = Process::start_ticks(me).unwrap();
        let found = |ticks, state| {
            let mut member = of(me, ticks, state, b"").unwrap();
            find(&mut member);
            (member.pid, member.gone)
        };
        assert_eq!(found(ticks, state::LIVE), (Some(me), false));
        assert_eq!(found(ticks - 1, state::LIVE), (None, true));
        assert_eq!(found(ticks, state::DEAD), (None, true));
        assert_eq!(found(0, state::LIVE), (None, false), "it could not tell its start: nobody knows");
    }
}
