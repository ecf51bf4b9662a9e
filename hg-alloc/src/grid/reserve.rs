//! The reservation of an arena's address space: all of the cap at once, as a rule.
//!
//! Where a limit refuses that (RLIMIT_AS, strict overcommit), places are chosen for the whole cap all the same, far from
//! other mappings, and only the first slices of it are mapped, with the parts of the tables that belong to them: as many as
//! the limit allows by halving. When those are spent more are mapped behind them, step by step. So addresses are computed in
//! one way only, whatever was mapped when.
//!
//! Lock: none; a growth maps more in its second phase. Callers: `arena.rs`, `grow.rs`.

use super::GRANULE;
use super::tables::Tables;
use crate::size_class::SLICE_SHIFT;
use crate::sys::{Errno, clock, memory};

/// The fewest slices worth an arena (64 MiB).
const FEWEST: u32 = (64 << 20) >> SLICE_SHIFT;

/// Where places for a whole cap are looked for, and how many are tried: the lower half of the address space of a process is
/// empty but for a program that is loaded at a fixed address, near its start.
const LOWEST: usize = 1 << 40;
const PLACES: usize = 1 << 45;
const TRIES: usize = 8;

/// Reserves address space for a cap and its tables. Returns where they lie, and how many slices are mapped.
pub(crate) fn reserve(cap_bytes: usize) -> Result<(Tables, u32), Errno> {
    let cap = (cap_bytes.next_multiple_of(memory::HUGE_PAGE) >> SLICE_SHIFT) as u32;
    if let Ok(tables) = reserve_whole(cap) {
        return Ok((tables, cap));
    }
    if let Some(found) = reserve_first(cap) {
        return Ok(found);
    }
    // No address of our choice can be had, as under valgrind: a smaller cap then.
    let mut cap = cap;
    loop {
        cap /= 2;
        match reserve_whole(cap) {
            Err(_) if cap > FEWEST => {}
            outcome => return outcome.map(|tables| (tables, cap)),
        }
    }
}

fn reserve_whole(cap: u32) -> Result<Tables, Errno> {
    let tables = Tables::lay_out(memory::reserve(Tables::bytes(cap))?, cap);
    tables.avoid_huge();
    Ok(tables)
}

/// Maps the first slices of a cap, as many as can be had.
fn reserve_first(cap: u32) -> Option<(Tables, u32)> {
    let mut random = clock::now_ns() as usize;
    for _ in 0..TRIES {
        random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        let start = LOWEST + random % PLACES / memory::HUGE_PAGE * memory::HUGE_PAGE;
        let tables = Tables::lay_out(start, cap);
        let mut slices = cap / 2;
        while slices >= FEWEST {
            match map_more(&tables, 0, slices) {
                Ok(()) => return Some((tables, slices)),
                Err(Errno(libc::EEXIST)) => break,
                Err(_) => slices /= 2,
            }
        }
    }
    None
}

/// Maps address space for slices `from..to`, and for their tables, or nothing.
pub(super) fn map_more(tables: &Tables, from: u32, to: u32) -> Result<(), Errno> {
    // Of the first slices the parts begin at their own start.
    let old = tables.extents(from).map(|(start, end)| if from == 0 { start } else { end });
    let new = tables.extents(to).map(|(_, end)| end);
    for (index, (start, end)) in old.iter().zip(new).enumerate() {
        // A few slices more may need no page more of some table.
        if *start < end
            && let Err(errno) = memory::reserve_at(*start, end - start)
        {
            for (start, end) in old.iter().zip(new).take(index) {
                memory::unmap(*start, end - start);
            }
            return Err(errno);
        }
    }
    tables.avoid_huge();
    Ok(())
}

/// Unmaps what [`reserve`] mapped: the arena's start failed.
pub(crate) fn unreserve(tables: &Tables, slices: u32) {
    if slices == tables.cap {
        return memory::unmap(tables.descriptors, Tables::bytes(tables.cap));
    }
    for (start, end) in tables.extents(slices) {
        memory::unmap(start, end - start);
    }
}

/// Slices to map when those below `reserved` are spent, of which `missing` are needed: an eighth more, to leave address space to
/// the program.
pub(super) fn next_step(reserved: u32, missing: u32, cap: u32) -> u32 {
    reserved.saturating_add((reserved / 8).max(missing).max(GRANULE)).min(cap)
}
