//! Free runs, found by size in constant time (two-level segregated fit; Masmano, Ripoll, Crespo, Real, "TLSF: a new
//! dynamic memory allocator for real-time systems", 2004).
//!
//! Lengths below 8 slices have bins of their own, above that there are 8 bins per doubling. A request is rounded up to the
//! next bin, so that every run of that bin fits; only if all those are empty are some of its own bin's runs looked at.
//! Boundary tags stand in the run records: a free run merges with its neighbours of the same pool at once.

use super::tables::{Kind, NONE, Run, Tables};
use crate::size_class::log2;
pub(crate) use hg_probes::words::FreePool as Pool;

const POOLS: usize = 3;
const BINS: usize = 256;
const LINEAR: u32 = 8;

/// Runs of a request's own bin that are looked at before a request fails.
const LOOKS: u32 = 16;

/// The bins of all pools. Under the grid lock.
pub(crate) struct Bins {
    heads: [[u32; BINS]; POOLS],
    filled: [[u64; BINS / 64]; POOLS],
    slices: [u32; POOLS],
}

/// The bin of a length.
const fn bin(length: u32) -> usize {
    if length < LINEAR {
        return length as usize;
    }
    let exponent = log2(length as usize);
    (exponent - 2) as usize * 8 + (length >> (exponent - 3) & 7) as usize
}

/// The first bin all of whose runs have at least `length` slices.
const fn fitting_bin(length: u32) -> usize {
    if length < LINEAR {
        return length as usize;
    }
    bin(length.saturating_add((1 << (log2(length as usize) - 3)) - 1))
}

impl Bins {
    pub(crate) const fn new() -> Self {
        Bins { heads: [[NONE; BINS]; POOLS], filled: [[0; BINS / 64]; POOLS], slices: [0; POOLS] }
    }

    /// Slices of a pool.
    pub(crate) fn slices(&self, pool: Pool) -> u32 {
        self.slices[pool as usize]
    }

    /// A run of a pool with at least `length` slices: its head and length.
    pub(crate) fn find(&self, tables: &Tables, pool: Pool, length: u32) -> Option<(u32, u32)> {
        let head = match self.filled_from(pool, fitting_bin(length)) {
            Some(bin) => self.head(pool, bin),
            None => self.look_for(tables, pool, length)?,
        };
        Some((head, tables.length(head)))
    }

    /// One of the longest runs of a pool.
    pub(crate) fn longest(&self, tables: &Tables, pool: Pool) -> Option<(u32, u32)> {
        let word = self.filled[pool as usize].iter().rposition(|word| *word != 0)?;
        let bits = self.filled[pool as usize][word];
        let head = self.head(pool, word * 64 + log2(bits as usize) as usize);
        Some((head, tables.length(head)))
    }

    /// One of the shortest runs of a pool.
    pub(crate) fn shortest(&self, tables: &Tables, pool: Pool) -> Option<(u32, u32)> {
        let head = self.head(pool, self.filled_from(pool, 0)?);
        Some((head, tables.length(head)))
    }

    /// Puts a run into a pool, merged with its free neighbours there.
    pub(crate) fn insert(&mut self, tables: &Tables, pool: Pool, mut head: u32, mut length: u32) {
        self.slices[pool as usize] += length;
        tables.set_run(head, Kind::None, 0);
        if let Some(before) = self.neighbour_before(tables, pool, head) {
            let joined = tables.length(before);
            self.unlink(tables, pool, before);
            head = before;
            length += joined;
        }
        // The run behind the top is accessible and says None.
        let after = head + length;
        if tables.kind(after) == Kind::Free && pool_of(tables, after) == pool {
            length += tables.length(after);
            self.unlink(tables, pool, after);
        }
        self.link(tables, pool, head, length);
    }

    /// Takes a whole run out of its pool; the caller makes it something else.
    pub(crate) fn remove(&mut self, tables: &Tables, pool: Pool, head: u32) {
        self.slices[pool as usize] -= tables.length(head);
        self.unlink(tables, pool, head);
    }

    fn neighbour_before(&self, tables: &Tables, pool: Pool, head: u32) -> Option<u32> {
        let last = head.checked_sub(1)?;
        let before = match tables.kind(last) {
            Kind::Free if tables.length(last) == 1 => last,
            Kind::FreeTail => head - tables.length(last),
            _ => return None,
        };
        (pool_of(tables, before) == pool).then_some(before)
    }

    fn link(&mut self, tables: &Tables, pool: Pool, head: u32, length: u32) {
        let bin = bin(length).min(BINS - 1);
        let first = self.head(pool, bin);
        let run = tables.run(head);
        // SAFETY: S3, under the grid lock, which owns the records of free runs.
        unsafe {
            (*run).kind = Kind::Free;
            (*run).pool = pool;
            (*run).length = length;
            (*run).next = first;
            (*run).previous = NONE;
            if first != NONE {
                (*tables.run(first)).previous = head;
            }
        }
        if length > 1 {
            tables.set_run(head + length - 1, Kind::FreeTail, length);
        }
        self.set_head(pool, bin, head);
    }

    fn unlink(&mut self, tables: &Tables, pool: Pool, head: u32) {
        // SAFETY: S3, under the grid lock; the record is the head of a free run.
        let &Run { length, next, previous, .. } = unsafe { &*tables.run(head) };
        // SAFETY: S3, neighbours in the bin are heads of free runs too.
        unsafe {
            if next != NONE {
                (*tables.run(next)).previous = previous;
            }
            if previous != NONE {
                (*tables.run(previous)).next = next;
            }
        }
        if previous == NONE {
            self.set_head(pool, bin(length).min(BINS - 1), next);
        }
        tables.set_run(head, Kind::None, 0);
        if length > 1 {
            tables.set_run(head + length - 1, Kind::None, 0);
        }
    }

    fn look_for(&self, tables: &Tables, pool: Pool, length: u32) -> Option<u32> {
        let mut head = self.head(pool, bin(length).min(BINS - 1));
        for _ in 0..LOOKS {
            if head == NONE || tables.length(head) >= length {
                break;
            }
            // SAFETY: S3, under the grid lock; heads in bins are heads of free runs.
            head = unsafe { (*tables.run(head)).next };
        }
        (head != NONE && tables.length(head) >= length).then_some(head)
    }

    fn head(&self, pool: Pool, bin: usize) -> u32 {
        self.heads[pool as usize].get(bin).copied().unwrap_or(NONE)
    }

    fn set_head(&mut self, pool: Pool, bin: usize, head: u32) {
        if let (Some(place), Some(word)) =
            (self.heads[pool as usize].get_mut(bin), self.filled[pool as usize].get_mut(bin / 64))
        {
            *place = head;
            let bit = 1 << (bin % 64);
            *word = if head == NONE { *word & !bit } else { *word | bit };
        }
    }

    fn filled_from(&self, pool: Pool, bin: usize) -> Option<usize> {
        let words = &self.filled[pool as usize];
        let first = words.get(bin / 64)? & (u64::MAX << (bin % 64));
        if first != 0 {
            return Some(bin / 64 * 64 + first.trailing_zeros() as usize);
        }
        let word = words.iter().enumerate().skip(bin / 64 + 1).find(|(_, word)| **word != 0)?;
        Some(word.0 * 64 + word.1.trailing_zeros() as usize)
    }
}

fn pool_of(tables: &Tables, head: u32) -> Pool {
    // SAFETY: S3, under the grid lock; the record is the head of a free run.
    unsafe { (*tables.run(head)).pool }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_grow_with_length_and_fitting_bins_fit() {
        let mut last = 0;
        for length in 1..100_000 {
            let own = bin(length);
            assert!(own == last || own == last + 1, "length {length}");
            last = own;
            let fitting = fitting_bin(length);
            assert!(fitting >= own && fitting <= own + 1);
            assert!(fitting == own + 1 || bin(length - 1) < own, "length {length} starts its bin");
        }
        assert!(bin(1 << 30) < BINS);
    }
}
