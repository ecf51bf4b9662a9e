//! Bad frees on purpose, each checked against the allocator's own count.
//!
//! Every fault is real, but one whose outcome is defined: a cell is freed twice only if no one else can have got it in
//! between. For that the blocks of the faults have size classes of their own ([`Faults::reserved`]) and one fault is
//! injected at a time, by whichever of the fault threads is ready. A live block in each of these classes keeps its span: in
//! memory given back a second free is one of a wild pointer. After each, the counter of the expected kind must have
//! gone up by exactly one and no other; a block that the bad free aimed at must be whole and freeable.
//!
//! Calling the allocator's `dealloc` like this breaks the contract of `GlobalAlloc`. That is the point: hg promises to refuse.

use std::alloc::{GlobalAlloc, Layout};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};

use hg_probes::page::StatsPage;
use hg_probes::words::CorruptionKind;

use crate::HEAP;
use crate::block::{Block, Torn};
use crate::config::{Reserved, Sizes};
use crate::counters::{self, Corruptions};
use crate::rng::Rng;

/// Length of a mapping that the allocator does not know, bytes.
const MAPPING_BYTES: usize = 65_536;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A cell freed twice by one thread.
    DoubleFree,
    /// A cell freed by one thread, then by another.
    DoubleFreeElsewhere,
    /// A pointer into the middle of a cell.
    InteriorCell,
    /// A pointer into the middle of a large object.
    InteriorLarge,
    /// An address on the stack.
    ForeignStack,
    /// An address in a mapping that the allocator does not know.
    ForeignMapping,
    /// An address that no process can have.
    ForeignNonsense,
    /// An address of the arena's memory where no object can be.
    Wild,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Fault; 8] = [
        Fault::DoubleFree,
        Fault::DoubleFreeElsewhere,
        Fault::InteriorCell,
        Fault::InteriorLarge,
        Fault::ForeignStack,
        Fault::ForeignMapping,
        Fault::ForeignNonsense,
        Fault::Wild,
    ];

    /// What the allocator must call it.
    pub fn expected(self) -> CorruptionKind {
        match self {
            Fault::DoubleFree | Fault::DoubleFreeElsewhere => CorruptionKind::DoubleFree,
            Fault::InteriorCell | Fault::InteriorLarge => CorruptionKind::InteriorFree,
            Fault::ForeignStack | Fault::ForeignMapping | Fault::ForeignNonsense => CorruptionKind::ForeignFree,
            Fault::Wild => CorruptionKind::WildFree,
        }
    }
}

/// A fault that was not answered as it must be.
#[derive(Clone, Debug)]
pub enum Unanswered {
    /// The counters did not change by exactly one of the expected kind.
    Miscounted {
        /// What was injected.
        fault: Fault,
        /// The address that was freed.
        address: usize,
        /// How the counters changed.
        counted: Corruptions,
    },
    /// The block that was aimed at was damaged.
    Damaged(Torn),
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unanswered::Miscounted { fault, address, counted } => {
                write!(f, "{fault:?} of {address:#x}: expected one {:?}, counted", fault.expected())?;
                let seen = CorruptionKind::ALL.iter().filter(|&&kind| counted.of(kind) != 0);
                seen.clone().try_for_each(|&kind| write!(f, " {} {}", counted.of(kind), kind.label()))?;
                if seen.count() == 0 { f.write_str(" nothing") } else { Ok(()) }
            }
            Unanswered::Damaged(torn) => write!(f, "a fault damaged a live {torn}"),
        }
    }
}

/// Injects faults, one at a time.
pub struct Faults {
    page: &'static StatsPage,
    ranges: Vec<RangeInclusive<usize>>,
    /// A block of each class.
    _kept: Vec<Vec<u8>>,
    mapping: usize,
    turn: Mutex<Turn>,
}

/// What the thread whose turn it is works with.
#[derive(Debug)]
struct Turn {
    number: u32,
    accomplice: SyncSender<(usize, Layout)>,
    done: Receiver<()>,
}

impl Faults {
    /// Chooses the classes of the faults, apart from the one that workers use who ask for one size, and starts the thread
    /// that frees for a second time. `None` if the allocator's classes leave too few, or the kernel refuses.
    pub fn new(page: &'static StatsPage, sizes: Sizes) -> Option<Faults> {
        let classes = counters::class_sizes(page);
        let fixed = if let Sizes::Fixed(size) = sizes { size } else { 0 };
        // A class for faults is no power of two, so that no aligned block of a worker is rounded up into it, and large
        // enough that nothing in the standard library asks for it now and then.
        let class = |at_least: usize| {
            let ranges = classes.windows(2).map(|pair| pair[0] + 1..=pair[1]);
            ranges.into_iter().find(|r| *r.start() > at_least && !r.end().is_power_of_two() && !r.contains(&fixed))
        };
        let ranges = [1024, 2048, 16_384].into_iter().map(class).collect::<Option<Vec<_>>>()?;
        let kept = ranges.iter().map(|range| vec![1; *range.end()]).collect();
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let mapping = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), MAPPING_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if mapping == libc::MAP_FAILED {
            return None;
        }
        let (accomplice, requests) = mpsc::sync_channel(1);
        let (finished, done) = mpsc::sync_channel(1);
        let free_for_others = move || {
            for (address, layout) in requests {
                free_badly(address, layout);
                if finished.send(()).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("accomplice".into()).spawn(free_for_others).ok()?;
        let turn = Mutex::new(Turn { number: 0, accomplice, done });
        Some(Faults { page, ranges, _kept: kept, mapping: mapping as usize, turn })
    }

    /// The sizes that belong to the faults.
    pub fn reserved(&self) -> Reserved {
        Reserved(self.ranges.clone())
    }

    /// Injects one fault and checks the answer.
    pub fn inject(&self, fault: Fault, rng: &mut Rng) -> Result<(), Unanswered> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.number += 1;
        let before = Corruptions::now(self.page);
        let address = self.commit(fault, &turn, rng).map_err(Unanswered::Damaged)?;
        let counted = Corruptions::now(self.page).since(before);
        if counted.total() == 1 && counted.of(fault.expected()) == 1 {
            Ok(())
        } else {
            Err(Unanswered::Miscounted { fault, address, counted })
        }
    }

    /// Does the bad deed; returns the address that was freed badly.
    fn commit(&self, fault: Fault, turn: &Turn, rng: &mut Rng) -> Result<usize, Torn> {
        let range = &self.ranges[rng.below(self.ranges.len())];
        let size = range.start() + rng.below(range.end() - range.start() + 1);
        let small = Layout::new::<[u64; 8]>();
        match fault {
            Fault::DoubleFree | Fault::DoubleFreeElsewhere => {
                let Some(block) = Block::new(size, 8, u32::MAX, turn.number, false)? else { return Ok(0) };
                let (address, layout) = (block.address(), block.layout());
                block.free()?;
                if fault == Fault::DoubleFree || turn.accomplice.send((address, layout)).is_err() {
                    free_badly(address, layout);
                } else {
                    let _ = turn.done.recv();
                }
                Ok(address)
            }
            Fault::InteriorCell | Fault::InteriorLarge => {
                let size = if fault == Fault::InteriorLarge { rng.log_uniform(1 << 20, 4 << 20) } else { size };
                let Some(block) = Block::new(size, 8, u32::MAX, turn.number, false)? else { return Ok(0) };
                let offsets = [1, 8, 16, size / 2, (size / 65_536 * 32_768).max(1), size - 1];
                let address = block.address() + offsets[rng.below(offsets.len())];
                free_badly(address, block.layout());
                block.free()?;
                Ok(address)
            }
            Fault::ForeignStack => {
                let local = std::hint::black_box([0u64; 8]);
                let address = &raw const local as usize;
                free_badly(address, small);
                std::hint::black_box(&local);
                Ok(address)
            }
            Fault::ForeignMapping => {
                let address = self.mapping + 16 * rng.below(MAPPING_BYTES / 16);
                free_badly(address, small);
                Ok(address)
            }
            Fault::ForeignNonsense => {
                let addresses = [1, 16, 4096, usize::MAX, usize::MAX - 15, 1 << 63, 0x0008_0000_0000_0000];
                let address = addresses[rng.below(addresses.len())];
                free_badly(address, small);
                Ok(address)
            }
            Fault::Wild => {
                // The top of the reservation: an arena grows upwards, and no run lies so high within a test's memory.
                let header = &self.page.header;
                let end = header.base_address.load(Relaxed) + header.reserved_bytes.load(Relaxed);
                let address = end as usize - 16 * (1 + rng.below(1 << 16));
                free_badly(address, small);
                Ok(address)
            }
        }
    }
}

fn free_badly(address: usize, layout: Layout) {
    // SAFETY: none, on purpose: the address is not one to free. hg promises to refuse it, and that is what is tested.
    unsafe { HEAP.dealloc(std::hint::black_box(address as *mut u8), layout) };
}
