//! Memory for the states of spans' cells: chunks of 16 KiB, each cut into blocks for one class.
//!
//! A span's block is a bitmap and a byte per cell, so its size is the class's own. Chunks with a free block stand in a list
//! of their class, under the class lock; a chunk none of whose blocks is used goes back to the grid, which keeps it for the next
//! class that wants one, and gives its memory back to the system when all free memory goes. A free block is all zero: the
//! states of a span that is given back say CENTRAL, and its bitmap is cleared. So whether a chunk's memory was given back makes
//! no difference.
//!
//! Lock: that of the class which has the chunk, or that of the grid. Callers: `central.rs`, `shrink.rs`.

use super::tables::{self, Chunk, NONE, Tables};
use super::{Grid, Need, SharedGrid};
use crate::size_class::CLASSES;
use crate::sys::memory;
use hg_probes::words::Reason;

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 16 << 10;

/// Units of 64 bytes in a chunk.
const UNITS: u32 = (CHUNK / 64) as u32;

/// Chunks given back in one hold of the lock, and such holds in one call.
const BATCH: usize = 64;
const BATCHES: usize = 256;

/// The chunks of one class that have a free block.
pub(crate) struct Blocks {
    tables: Tables,
    /// Bytes of a block, and how many fit a chunk.
    bytes: u32,
    count: u32,
    first: u32,
}

impl Blocks {
    pub(crate) const fn new() -> Self {
        Blocks { tables: Tables::new(), bytes: 64, count: 1, first: NONE }
    }

    /// Tells whose blocks these are, and where the tables lie.
    pub(crate) fn start(&mut self, tables: Tables, class: usize) {
        let cells = CLASSES.get(class).map_or(1, |shape| shape.cells);
        self.tables = tables;
        self.bytes = tables::states_bytes(cells) as u32;
        self.count = (CHUNK as u32 / self.bytes).min(128);
    }

    /// A free block, in units of 64 bytes from the start of the states; from a new chunk of the grid's if need be.
    pub(crate) fn take(&mut self, grid: &mut Grid) -> Result<u32, Need> {
        if self.first == NONE {
            let chunk = grid.take_chunk()?;
            self.chunk(chunk).used = 0;
            self.link(chunk);
        }
        let number = self.first;
        let chunk = self.chunk(number);
        let block = (!chunk.used).trailing_zeros().min(self.count - 1);
        chunk.used |= 1 << block;
        if chunk.used.count_ones() >= self.count {
            self.unlink(number);
        }
        Ok(number * UNITS + block * (self.bytes / 64))
    }

    /// Takes a block back, whose memory is zero.
    pub(crate) fn give(&mut self, states: u32, grid: &mut Grid) {
        let number = states / UNITS;
        let block = states % UNITS / (self.bytes / 64);
        let chunk = self.chunk(number);
        let was_full = chunk.used.count_ones() >= self.count;
        chunk.used &= !(1 << block);
        let is_free = chunk.used == 0;
        if was_full && !is_free {
            self.link(number);
        } else if is_free {
            if !was_full {
                self.unlink(number);
            }
            grid.return_chunk(number);
        }
    }

    /// The record of one of the class's chunks. No two are borrowed at once.
    #[allow(clippy::mut_from_ref)]
    fn chunk<'a>(&self, number: u32) -> &'a mut Chunk {
        // SAFETY: S3, the class lock is held, and the chunk is the class's.
        unsafe { &mut *self.tables.chunk(number) }
    }

    fn link(&mut self, number: u32) {
        let next = core::mem::replace(&mut self.first, number);
        let chunk = self.chunk(number);
        (chunk.next, chunk.previous) = (next, NONE);
        if next != NONE {
            self.chunk(next).previous = number;
        }
    }

    fn unlink(&mut self, number: u32) {
        let &mut Chunk { next, previous, .. } = self.chunk(number);
        if next != NONE {
            self.chunk(next).previous = previous;
        }
        if previous == NONE {
            self.first = next;
        } else {
            self.chunk(previous).next = next;
        }
    }
}

/// The chunks that no class has. Under the grid lock.
pub(super) struct Chunks {
    /// First chunk that may hold memory, and first one that does not.
    dirty: u32,
    clean: u32,
    dirty_count: usize,
    clean_count: usize,
    /// Bytes of chunks handed out so far, and accessible.
    used: usize,
    pub(super) committed: usize,
}

impl Chunks {
    pub(super) const fn new() -> Self {
        Chunks { dirty: NONE, clean: NONE, dirty_count: 0, clean_count: 0, used: 0, committed: 0 }
    }

    /// Bytes of chunks that may hold memory.
    pub(super) fn bytes(&self) -> usize {
        self.used - self.clean_count * CHUNK
    }

    /// Whether a chunk can be had, with room to spare.
    pub(super) fn has_room(&self) -> bool {
        self.clean != NONE || self.dirty != NONE || self.used + CHUNK + tables::STATES_MARGIN <= self.committed
    }
}

impl Grid {
    fn take_chunk(&mut self) -> Result<u32, Need> {
        let chunks = &mut self.chunks;
        let clean = chunks.dirty == NONE;
        let list = if clean { &mut chunks.clean } else { &mut chunks.dirty };
        if *list != NONE {
            let number = *list;
            // SAFETY: S3, the grid lock is held, and the chunk is no class's.
            *list = unsafe { (*self.tables.chunk(number)).next };
            chunks.clean_count -= usize::from(clean);
            chunks.dirty_count -= usize::from(!clean);
            return Ok(number);
        }
        // A racing bad free may read past a block by the most cells a span can have: never to the end of the memory.
        if !chunks.has_room() {
            return Err(Need::States);
        }
        chunks.used += CHUNK;
        Ok((chunks.used / CHUNK - 1) as u32)
    }

    fn return_chunk(&mut self, number: u32) {
        // SAFETY: S3, as in `take_chunk`.
        unsafe { (*self.tables.chunk(number)).next = self.chunks.dirty };
        self.chunks.dirty = number;
        self.chunks.dirty_count += 1;
    }
}

impl SharedGrid {
    /// Gives the memory of chunks back that no class has, if they are more than `keep`.
    pub(super) fn give_back_chunks(&self, keep: usize) {
        for _ in 0..BATCHES {
            let Some(mut grid) = self.lock.lock(Reason::Shrink) else { return };
            if grid.chunks.dirty_count <= keep {
                return;
            }
            let tables = grid.tables;
            let mut batch = [NONE; BATCH];
            for place in &mut batch {
                let number = grid.chunks.dirty;
                if number == NONE {
                    break;
                }
                // SAFETY: S3, the grid lock is held, and the chunk is no class's.
                grid.chunks.dirty = unsafe { (*tables.chunk(number)).next };
                grid.chunks.dirty_count -= 1;
                *place = number;
            }
            grid.releasing += 1;
            drop(grid);

            let taken = batch.iter().copied().filter(|number| *number != NONE);
            let mut given = [false; BATCH];
            for (given, number) in given.iter_mut().zip(taken.clone()) {
                *given = memory::give_back(tables.states + number as usize * CHUNK, CHUNK).is_ok();
            }

            let mut grid = self.lock.lock_again(Reason::Shrink);
            grid.releasing = grid.releasing.saturating_sub(1);
            for (given, number) in given.iter().zip(taken) {
                let chunks = &mut grid.chunks;
                let list = if *given { &mut chunks.clean } else { &mut chunks.dirty };
                // SAFETY: S3, as above.
                unsafe { (*tables.chunk(number)).next = core::mem::replace(list, number) };
                chunks.clean_count += usize::from(*given);
                chunks.dirty_count += usize::from(!*given);
            }
            grid.publish();
            if given.contains(&false) && batch[BATCH - 1] == NONE {
                return;
            }
        }
    }
}
