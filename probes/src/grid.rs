//! Records of the grid, as a reader finds them in the memory of a target: who has each slice, and how full spans are.
//!
//! They lie where the header of the stats page says, one per slice (a byte per page for tiers), up to `top_slices`. The
//! target changes them under locks that a reader does not have: a reader takes what it copies for a picture of a moment
//! that may not fit together, and every number for hostile.

use crate::words::Tier;

/// What the grid knows of a slice.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RunRecord {
    /// A [`RunKind`](crate::words::RunKind); only heads and free tails are other than 0.
    pub kind: u8,
    /// A [`FreePool`](crate::words::FreePool), for free runs.
    pub pool: u8,
    /// Nothing yet.
    pub reserved: u16,
    /// Slices of the run, at its head and at a free run's tail.
    pub length: u32,
    /// Links of a free run's bin.
    pub next: u32,
    /// As `next`.
    pub previous: u32,
}

/// What a class knows of one of its spans, at the span's head.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SpanRecord {
    /// Links of the class's list of spans with recycled cells.
    pub next: u32,
    /// As `next`.
    pub previous: u32,
    /// Whether the span stands in that list.
    pub listed: u8,
    /// Nothing yet.
    pub reserved: [u8; 3],
    /// Recycled cells.
    pub free: u32,
    /// Cells carved so far; those behind were never used.
    pub carved: u32,
    /// The span's block of states, in units of 64 bytes from the start of the states: a bitmap of the recycled cells in whole
    /// cache lines, then a byte of state for each cell (0 free with its span, 1 cached, 2 live, 3 live and sampled).
    pub states: u32,
    /// No word of the bitmap before this one has a bit set.
    pub hint: u32,
}

/// What every free reads of a slice.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DescriptorRecord {
    /// Reciprocal of the class's cell size; 0: the slice belongs to no span.
    pub reciprocal: u64,
    /// Where the span starts, bytes from the start of user memory.
    pub start: u64,
    /// Address of the state byte of the span's first cell.
    pub first_state: u64,
    /// The class's array in block 0 of the front caches: `fronts_address + front_offset` of the class.
    pub array: u64,
}

/// A page of the grid is locked into RAM.
pub const PINNED: u8 = 0x80;

/// The byte that says what backs a page.
pub const fn tier_byte(tier: Tier, pinned: bool) -> u8 {
    tier as u8 | if pinned { PINNED } else { 0 }
}

/// Number of the tier in such a byte.
pub const fn tier_of(byte: u8) -> u8 {
    byte & !PINNED
}
