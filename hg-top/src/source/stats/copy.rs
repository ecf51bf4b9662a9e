//! Copies of a stats page in which every block is whole.
//!
//! A block is taken if its `seq` was even and the same before, in and after the copy. The three reads are neighbouring pieces
//! of one system call, which takes them in order, with an atomic operation that orders memory (the pin of the page) before
//! each; so a block is open to change for a fraction of a microsecond only. Others are copied again, thrice at most, and are torn then. Blocks on pages of memory
//! that the target never wrote are left out: they are zero, and reading them would only make the target bigger.

use std::mem::offset_of;

use hg_probes::page::{
    ClassStats, GRID_LOCK, Header, LockStats, MAGIC, MAX_CLASSES, MAX_LOCKS, Policy, REASONS, StatsPage, VERSION,
};

use super::discover::Region;
use super::memory::{Memory, Piece, page_bytes};
use super::pagemap::Pagemap;
use crate::attach::rights::{Capability, Refusal};

/// Copies after the first that a block is worth.
const RETRIES: usize = 3;

/// Why a stats page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The process ended.
    #[error("no process {0}")]
    Gone(u32),
    /// It has no stats page.
    #[error(
        "process {0} does not run on hg: no stats page in its memory map. Start it with LD_PRELOAD=libhg_preload.so, or \
         make hg_alloc::HgAlloc its global allocator"
    )]
    NotOnHg(u32),
    /// We may not read its memory.
    #[error("{0}")]
    Denied(String),
    /// Its page is newer (or older) than this hg-top.
    #[error("the stats page of process {pid} has version {found}, this hg-top reads version {VERSION}: {advice}")]
    Version {
        /// The process.
        pid: u32,
        /// Its version.
        found: u32,
        /// What to do.
        advice: &'static str,
    },
    /// Its page makes no sense.
    #[error("the stats page of process {pid} is damaged: {what}")]
    Damaged {
        /// The process.
        pid: u32,
        /// What is wrong with it.
        what: String,
    },
}

/// Numbers at byte offsets of a block that was copied; what lies outside reads as 0.
#[derive(Clone, Copy)]
pub struct Block<'a>(&'a [u8]);

impl<'a> Block<'a> {
    /// What follows byte `offset` of `bytes`; nothing if that lies outside.
    pub fn at(bytes: &'a [u8], offset: usize) -> Block<'a> {
        Block(bytes.get(offset..).unwrap_or_default())
    }

    /// The 32-bit word at `offset`.
    pub fn u32(self, offset: usize) -> u32 {
        self.array(offset).map_or(0, u32::from_ne_bytes)
    }

    /// The 64-bit word at `offset`.
    pub fn u64(self, offset: usize) -> u64 {
        self.array(offset).map_or(0, u64::from_ne_bytes)
    }

    /// `N` bytes at `offset`.
    pub fn array<const N: usize>(self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..)?.first_chunk().copied()
    }
}

/// How the copy of a block went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never written by the target: all zero.
    Blank,
    /// Not copied yet, or torn at every attempt so far.
    Torn,
    /// Whole.
    Whole,
}

/// A copy of one page.
pub struct PageCopy {
    bytes: Vec<u8>,
    header: State,
    classes: [State; MAX_CLASSES],
    locks: [[State; MAX_LOCKS]; REASONS],
    policy: State,
}

/// A block of the page: where it lies, where its `seq` is, and where its state is kept.
struct Slot {
    offset: usize,
    len: usize,
    seq: usize,
    place: Place,
}

enum Place {
    Header,
    Class(usize),
    Lock(usize, usize),
    Policy,
}

impl PageCopy {
    /// Copies the page of `pid` at `region`.
    pub fn take(pid: u32, region: Region) -> Result<PageCopy, PageError> {
        let memory = Memory::of(pid);
        let mut copy = PageCopy {
            bytes: vec![0; size_of::<StatsPage>()],
            header: State::Blank,
            classes: [State::Blank; MAX_CLASSES],
            locks: [[State::Blank; MAX_LOCKS]; REASONS],
            policy: State::Blank,
        };
        // A shared page may have been written by others without being in this process's tables yet.
        let read = if region.shared { Memory::read } else { Memory::read_present };
        let whole = read(memory, region.start, &mut copy.bytes[..size_of::<Header>()])
            .map_err(|error| denied_or_gone(pid, &error))?;
        let damaged = |what: &str| PageError::Damaged { pid, what: what.into() };
        if !whole {
            return Err(damaged("its header cannot be read"));
        }
        copy.check(pid, region)?;
        let pagemap = Pagemap::open(pid).filter(|_| !region.shared);
        let populated = pagemap.and_then(|pagemap| pagemap.range(region.start, size_of::<StatsPage>() as u64));
        let mut pending = copy.slots(populated.as_deref());
        for slot in &pending {
            *copy.state(&slot.place) = State::Torn;
        }
        for _ in 0..=RETRIES {
            pending = copy.attempt(memory, region.start, pending).map_err(|error| denied_or_gone(pid, &error))?;
            if pending.is_empty() {
                break;
            }
        }
        if copy.header_block().u64(offset_of!(Header, magic)) != MAGIC {
            return Err(damaged("its magic changed while it was read"));
        }
        Ok(copy)
    }

    /// The header.
    pub fn header_block(&self) -> Block<'_> {
        Block(&self.bytes[..size_of::<Header>()])
    }

    /// Whether the figures of the header changed at each attempt.
    pub fn header_torn(&self) -> bool {
        self.header == State::Torn
    }

    /// The classes whose blocks are in use: the block, or `None` where it is torn.
    pub fn classes(&self) -> impl Iterator<Item = (usize, Option<Block<'_>>)> {
        let start = offset_of!(StatsPage, classes);
        self.classes.iter().enumerate().filter_map(move |(index, state)| {
            let block = Block(&self.bytes[start + index * size_of::<ClassStats>()..][..size_of::<ClassStats>()]);
            taken(*state, block).map(|block| (index, block))
        })
    }

    /// The locks whose blocks are in use, with the number of the reason and of the lock's place.
    pub fn locks(&self) -> impl Iterator<Item = (usize, usize, Option<Block<'_>>)> {
        self.locks.iter().enumerate().flat_map(move |(reason, locks)| {
            locks.iter().enumerate().filter_map(move |(index, state)| {
                let block = Block(&self.bytes[lock_offset(reason, index)..][..size_of::<LockStats>()]);
                taken(*state, block).map(|block| (reason, index, block))
            })
        })
    }

    /// What maintenance decided: `None` if it never wrote, or the block is torn.
    pub fn policy(&self) -> Option<Block<'_>> {
        let start = offset_of!(StatsPage, policy);
        (self.policy == State::Whole).then(|| Block(&self.bytes[start..start + size_of::<Policy>()]))
    }

    /// Size of the cells of a class whose block is torn, read from the bytes of the last attempt; `None` if unset.
    pub fn size_hint(&self, class: usize) -> Option<u32> {
        let block = self.bytes.get(offset_of!(StatsPage, classes) + class * size_of::<ClassStats>()..)?;
        match Block(block).u32(offset_of!(ClassStats, size)) {
            0 => None,
            size => Some(size),
        }
    }

    /// Number of torn blocks.
    pub fn torn(&self) -> u32 {
        let states = [&self.header, &self.policy].into_iter().chain(&self.classes).chain(self.locks.iter().flatten());
        states.filter(|state| **state == State::Torn).count() as u32
    }

    fn check(&self, pid: u32, region: Region) -> Result<(), PageError> {
        let header = self.header_block();
        let damaged = |what: String| Err(PageError::Damaged { pid, what });
        if header.u64(offset_of!(Header, magic)) != MAGIC {
            return damaged("its first word is not \"hg.stats\"".into());
        }
        let found = header.u32(offset_of!(Header, version));
        if found != VERSION {
            let advice = if found > VERSION { "use a newer hg-top" } else { "restart the process on a newer hg" };
            return Err(PageError::Version { pid, found, advice });
        }
        let size = header.u64(offset_of!(Header, size));
        if size < size_of::<StatsPage>() as u64 || size > region.len {
            return damaged(format!("it says it has {size} bytes, its mapping has {}", region.len));
        }
        let header_size = header.u32(offset_of!(Header, header_size));
        if header_size as usize != size_of::<Header>() {
            return damaged(format!("it says its header has {header_size} bytes, not {}", size_of::<Header>()));
        }
        let classes = header.u32(offset_of!(Header, class_count));
        if classes as usize > MAX_CLASSES {
            return damaged(format!("it says it has {classes} classes, at most {MAX_CLASSES} have room"));
        }
        Ok(())
    }

    fn slots(&self, populated: Option<&[bool]>) -> Vec<Slot> {
        let page = page_bytes() as usize;
        let classes = self.header_block().u32(offset_of!(Header, class_count)) as usize;
        let header = Slot { offset: 0, len: size_of::<Header>(), seq: offset_of!(Header, seq), place: Place::Header };
        let class = |index| Slot {
            offset: offset_of!(StatsPage, classes) + index * size_of::<ClassStats>(),
            len: size_of::<ClassStats>(),
            seq: offset_of!(ClassStats, seq),
            place: Place::Class(index),
        };
        let lock = |reason, index| Slot {
            offset: lock_offset(reason, index),
            len: size_of::<LockStats>(),
            seq: offset_of!(LockStats, seq),
            place: Place::Lock(reason, index),
        };
        let in_memory = |slot: &Slot| {
            populated.is_none_or(|pages| {
                (slot.offset / page..=(slot.offset + slot.len - 1) / page).any(|page| pages.get(page) == Some(&true))
            })
        };
        let policy = Slot {
            offset: offset_of!(StatsPage, policy),
            len: size_of::<Policy>(),
            seq: offset_of!(Policy, seq),
            place: Place::Policy,
        };
        [header, policy]
            .into_iter()
            .chain((0..classes).map(class))
            .chain(
                (0..REASONS).flat_map(|reason| (0..classes).chain([GRID_LOCK]).map(move |index| lock(reason, index))),
            )
            .filter(in_memory)
            .collect()
    }

    /// Copies `slots` once; returns those that changed meanwhile.
    fn attempt(&mut self, memory: Memory, start: u64, slots: Vec<Slot>) -> std::io::Result<Vec<Slot>> {
        let pieces = |slot: &Slot| {
            let seq = Piece { address: start + (slot.offset + slot.seq) as u64, len: 4 };
            [seq, Piece { address: start + slot.offset as u64, len: slot.len }, seq]
        };
        let all: Vec<Piece> = slots.iter().flat_map(pieces).collect();
        let mut bytes = vec![0; all.iter().map(|piece| piece.len).sum()];
        let readable = memory.gather(&all, &mut bytes)? / 3;
        let mut changed = Vec::new();
        let mut rest = bytes.as_slice();
        for (index, slot) in slots.into_iter().enumerate() {
            let (copied, later) = rest.split_at(slot.len + 8);
            rest = later;
            let (before, block, after) = (&copied[..4], &copied[4..4 + slot.len], &copied[4 + slot.len..]);
            if index < readable {
                self.bytes[slot.offset..slot.offset + slot.len].copy_from_slice(block);
            }
            let seq = Block(block).u32(slot.seq);
            let same = seq == Block(before).u32(0) && seq == Block(after).u32(0);
            if index < readable && same && seq.is_multiple_of(2) {
                *self.state(&slot.place) = State::Whole;
            } else {
                changed.push(slot);
            }
        }
        Ok(changed)
    }

    fn state(&mut self, place: &Place) -> &mut State {
        match *place {
            Place::Header => &mut self.header,
            Place::Class(index) => &mut self.classes[index],
            Place::Lock(reason, index) => &mut self.locks[reason][index],
            Place::Policy => &mut self.policy,
        }
    }
}

fn taken(state: State, block: Block<'_>) -> Option<Option<Block<'_>>> {
    match state {
        State::Blank => None,
        State::Torn => Some(None),
        State::Whole => Some(Some(block)),
    }
}

fn lock_offset(reason: usize, index: usize) -> usize {
    offset_of!(StatsPage, locks) + (reason * MAX_LOCKS + index) * size_of::<LockStats>()
}

/// What a failed read of a target's memory means.
pub fn denied_or_gone(pid: u32, error: &std::io::Error) -> PageError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PageError::Denied(denied(pid)),
        Some(libc::ESRCH | libc::ENOENT) => PageError::Gone(pid),
        _ => PageError::Damaged { pid, what: error.to_string() },
    }
}

fn denied(pid: u32) -> String {
    let what = format!("permission denied to read the memory of process {pid}");
    let refusal = Refusal::look(&[Capability::SysPtrace]);
    if refusal.missing.is_empty() {
        // Being root is not enough, so there is no use in advising it.
        return format!("{what} although CAP_SYS_PTRACE is there: {refusal}");
    }
    format!(
        "{what}: be its user, or have CAP_SYS_PTRACE (root); kernel.yama.ptrace_scope here: {}. Run: sudo hg-top --pid {pid}",
        yama()
    )
}

fn yama() -> String {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .map_or_else(|_| "absent".into(), |scope| scope.trim().to_owned())
}
