//! A look at everything while nobody works: each cell is in one place, and each live block in the slot that says so.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use hg_alloc::shared::{Arena, Cell};

use super::board::{self, Board};

/// What is written over the start of free memory: an allocator that keeps its links there would follow it.
const SCRIBBLE: u64 = 0xdead_5c21_bb1e_f7ee;

/// What a census found.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Live blocks.
    pub(crate) blocks: u64,
    /// Blocks whose right went with a dead process; they were freed.
    pub(crate) orphans: u64,
    /// Free cells in caches that were scribbled over.
    pub(crate) scribbled: u64,
    /// What is not as it must be.
    pub(crate) wrong: Vec<String>,
}

/// Takes a census. The caller is the only process left that uses the arena.
pub(crate) fn take(arena: &Arena, board: &Board) -> Census {
    let mut census = Census::default();
    let last = (0..100).map(|_| arena.recover()).find(|found| found.kept == 0);
    if last.is_none() {
        census.wrong.push("records of dead threads could not be recovered".into());
    }
    count(arena, board, &mut census);
    for slot in board.all_slots() {
        let (block, stamp) = (slot.block.load(Acquire), slot.stamp.load(Acquire));
        match (block, stamp) {
            (0, 0) => {}
            (0, _) => census.wrong.push(format!("slot {:p} has a stamp and no block", &slot.block)),
            (_, 0) => {
                census.orphans += 1;
                if !arena.free_from(&slot.block) {
                    census.wrong.push(format!("block {block:x} cannot be freed"));
                }
            }
            _ if !board::verify(block, slot.size.load(Relaxed) as usize, stamp) => {
                census.wrong.push(format!("block {block:x} does not hold its stamp"));
            }
            _ => {}
        }
    }
    arena.for_each(|cell| {
        if let Cell::Cached(address) = cell {
            // SAFETY: free memory of at least 16 bytes, aligned to 16, which nobody uses; the allocator keeps nothing there.
            unsafe { (address as *mut [u64; 2]).write_volatile([SCRIBBLE; 2]) };
            census.scribbled += 1;
        }
    });
    census
}

/// Frees all blocks and gives everything back: only the board may be left.
pub(crate) fn clear(arena: &Arena, board: &Board) -> Vec<String> {
    for slot in board.all_slots().filter(|slot| slot.block.load(Acquire) != 0) {
        slot.stamp.store(0, Release);
        arena.free_from(&slot.block);
    }
    arena.trim();
    let mut census = Census::default();
    count(arena, board, &mut census);
    let audit = arena.audit();
    if (audit.live, audit.large, audit.cached) != (0, 1, 0) {
        census.wrong.push(format!("not all is given back: {audit:?}"));
    }
    census.wrong
}

/// Compares the arena's own account, what is really there, and what the slots say.
fn count(arena: &Arena, board: &Board, census: &mut Census) {
    let audit = arena.audit();
    if (audit.lost_slices, audit.wrong_counters, audit.wrong_entries, audit.busy_pages) != (0, 0, 0, 0)
        || audit.cached != audit.entries
    {
        census.wrong.push(format!("the audit is not exact: {audit:?}"));
    }
    let mut free: HashMap<usize, (u32, u32)> = HashMap::new();
    let mut live: HashMap<usize, u32> = HashMap::new();
    arena.for_each(|cell| match cell {
        Cell::Live(address, _) => *live.entry(address).or_default() += 1,
        Cell::Cached(address) => free.entry(address).or_default().0 += 1,
        Cell::InCache(address) => free.entry(address).or_default().1 += 1,
        Cell::InHands(address) => census.wrong.push(format!("{address:x} is in somebody's hands")),
    });
    let mut tell = |what: &str, address: usize| {
        if census.wrong.len() < 20 {
            census.wrong.push(format!("{address:x} {what}"));
        }
    };
    for (address, places) in free {
        match places {
            (1, 1) => {}
            (1, 0) => tell("is a cell that is lost: in no cache", address),
            (1, _) => tell("is a cell that is doubled: in several caches", address),
            _ => tell("is in a cache, and no free cell", address),
        }
    }
    let own = std::ptr::from_ref(board) as usize;
    let slots = board.all_slots().map(|slot| slot.block.load(Acquire) as usize).filter(|block| *block != 0);
    for block in slots.chain([own]) {
        match live.get_mut(&block) {
            Some(left @ 1) => *left = 0,
            Some(_) => tell("is in two slots", block),
            None => tell("is in a slot, and not live", block),
        }
        census.blocks += 1;
    }
    live.into_iter().filter(|(_, left)| *left != 0).for_each(|(address, _)| tell("is live, and in no slot", address));
}
