//! The addition that ends in the kernel's number: where a process's memory is.
//!
//! Every part is known from a source of its own; what they miss of the kernel's figure stands as a row of its own, so
//! that nobody has to trust the sum. That difference holds stacks and other mappings (it grows) and memory that hg set
//! aside but nobody touched yet (it shrinks), so it can be negative.

use super::Process;

/// The parts, in bytes, over one or several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Live cells, by the size of their class.
    pub live_cells: u64,
    /// Live large objects, in whole slices.
    pub large: u64,
    /// Cells in front and transfer caches.
    pub cached: u64,
    /// The rest of the spans: free cells and what rounding leaves.
    pub free_cells: u64,
    /// Free runs that still hold memory.
    pub free_dirty: u64,
    /// hg's own tables.
    pub tables: u64,
    /// Resident pages of files and shared memory: code, mapped data.
    pub files: u64,
    /// The kernel's figure: resident set and hugetlb pages.
    pub kernel: u64,
    /// Free runs that hold no memory: committed, but outside the addition.
    pub free_clean: u64,
    /// What user memory may occupy.
    pub committed: u64,
    /// The caps.
    pub reserved: u64,
}

impl Sum {
    /// Adds the arenas of a process and what the kernel says about it. Processes the kernel said nothing about are left out.
    pub fn add(&mut self, process: &Process) {
        let Some(memory) = process.memory else { return };
        let add = |into: &mut u64, bytes: u64| *into = into.saturating_add(bytes);
        for arena in process.arenas.values() {
            let Some(figures) = &arena.figures else { continue };
            let (mut live, mut cached) = (0_u64, 0_u64);
            for (size, class) in &arena.classes {
                add(&mut live, class.live().unwrap_or(0).saturating_mul(u64::from(*size)));
                add(&mut cached, class.cached().saturating_mul(u64::from(*size)));
            }
            add(&mut self.live_cells, live);
            add(&mut self.cached, cached);
            add(&mut self.free_cells, figures.spans.saturating_sub(live.saturating_add(cached)));
            add(&mut self.large, figures.large);
            add(&mut self.free_dirty, figures.free_dirty);
            add(&mut self.free_clean, figures.free_clean);
            add(&mut self.tables, figures.metadata);
            add(&mut self.committed, figures.committed);
            add(&mut self.reserved, figures.reserved);
        }
        add(&mut self.files, memory.rss_file.saturating_add(memory.rss_shmem));
        add(&mut self.kernel, memory.rss.saturating_add(memory.hugetlb));
    }

    /// The addition over `processes`.
    pub fn over<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Sum {
        let mut sum = Sum::default();
        processes.into_iter().for_each(|process| sum.add(process));
        sum
    }

    /// Live bytes: cells and large objects.
    pub fn live(&self) -> u64 {
        self.live_cells.saturating_add(self.large)
    }

    /// All that hg holds.
    pub fn hg(&self) -> u64 {
        [self.live_cells, self.large, self.cached, self.free_cells, self.free_dirty, self.tables]
            .iter()
            .fold(0, |sum, part| sum.saturating_add(*part))
    }

    /// What the known parts miss of the kernel's figure; negative if they exceed it.
    pub fn difference(&self) -> i64 {
        let known = i128::from(self.hg()) + i128::from(self.files);
        (i128::from(self.kernel) - known).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arena, Class, Counters, Figures, Identity, KernelMemory};
    use std::collections::BTreeMap;
    use std::time::UNIX_EPOCH;

    fn process(arena: Arena, memory: KernelMemory) -> Process {
        let identity = Identity {
            pid: 1,
            start_ticks: 1,
            exe: String::new(),
            comm: String::new(),
            role: String::new(),
            started: UNIX_EPOCH,
        };
        Process {
            identity,
            read_at: 0,
            memory: Some(memory),
            arenas: BTreeMap::from([(1, arena)]),
            threads: BTreeMap::new(),
            traced: false,
            page_error: None,
            exited: None,
        }
    }

    #[test]
    fn the_addition_ends_in_the_kernels_number() {
        let counters = Counters { reused: 70, carved: 60, flushed: 20, ..Counters::default() };
        let class = Class { total: Some(counters), front_cells: Some(10), transfer_cells: 5, ..Class::default() };
        let arena = Arena {
            figures: Some(Figures { spans: 16_384, large: 4096, free_dirty: 100, metadata: 50, ..Figures::default() }),
            classes: BTreeMap::from([(64, class)]),
            ..Arena::default()
        };
        let memory = KernelMemory { rss: 100_000, hugetlb: 1000, rss_file: 9000, rss_shmem: 0, threads: 1 };
        let sum = Sum::over([&process(arena, memory)]);
        assert_eq!(sum.live_cells, 64 * (70 + 60 - 20 - 10));
        assert_eq!(sum.cached, 64 * 15);
        assert_eq!(sum.free_cells, 16_384 - sum.live_cells - sum.cached);
        assert_eq!(i64::try_from(sum.hg() + sum.files).unwrap() + sum.difference(), 101_000);
    }

    #[test]
    fn lies_saturate() {
        let lie = Class { total: Some(Counters { carved: u64::MAX, ..Counters::default() }), ..Class::default() };
        let arena = Arena {
            figures: Some(Figures { large: u64::MAX, spans: u64::MAX, ..Figures::default() }),
            classes: BTreeMap::from([(262_144, lie)]),
            ..Arena::default()
        };
        let sum = Sum::over([&process(arena, KernelMemory::default())]);
        assert_eq!(sum.live(), u64::MAX);
        assert_eq!(sum.difference(), i64::MIN);
    }
}
