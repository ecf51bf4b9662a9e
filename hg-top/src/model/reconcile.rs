//! The addition that ends in the kernel's number: where the memory of processes is.
//!
//! Every part is known from a source of its own; what they miss of the kernel's figure stands as a row of its own, so
//! that nobody has to trust the sum. That difference holds stacks and other mappings (it grows) and memory that hg set
//! aside but nobody touched yet (it shrinks), so it can be negative.
//!
//! An arena that several processes share counts once, and so does its memory in the kernel's figure: of what they share, each
//! process has its part there. One process looked at alone has all that it maps.

use std::collections::BTreeMap;

use super::scope::Scope;
use super::{Arena, FileId, KernelMemory, Part, Process, Snapshot};

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
    /// Whether that is a sum in which memory that several processes share counts once.
    pub once: bool,
    /// Free runs that hold no memory: committed, but outside the addition.
    pub free_clean: u64,
    /// What user memory may occupy.
    pub committed: u64,
    /// The caps.
    pub reserved: u64,
}

impl Sum {
    /// Over the processes in scope and the arenas that they use.
    pub fn of(snapshot: &Snapshot, scope: Scope) -> Sum {
        Sum::over(snapshot, scope.processes(snapshot).collect())
    }

    /// The same over any processes. Those that the kernel said nothing about are left out.
    pub fn over(snapshot: &Snapshot, mut processes: Vec<&Process>) -> Sum {
        processes.retain(|process| process.memory.is_some());
        let pids = processes.iter().map(|process| process.identity.pid).collect();
        let mut sum = Sum::default();
        snapshot.arenas().filter(|of| of.is_used_by(&pids)).for_each(|of| sum.arena(of.arena));
        let once = processes.len() > 1;
        // Hugetlb pages that they share, by the first of their arenas: each maps some of them, and who maps most, nearly all.
        let mut hugetlb: BTreeMap<Option<FileId>, u64> = BTreeMap::new();
        for process in processes {
            let Some(memory) = process.memory else { continue };
            match memory.part.filter(|_| once && !process.shared.is_empty()) {
                Some(part) => {
                    sum.part(part);
                    let most = hugetlb.entry(process.shared.first().copied()).or_default();
                    *most = part.hugetlb_shared.max(*most);
                }
                None => sum.whole(memory, process.shared.is_empty()),
            }
        }
        hugetlb.into_values().for_each(|most| add(&mut sum.kernel, most));
        sum
    }

    /// Of the arenas that are one process's alone.
    pub fn own(process: &Process) -> Sum {
        let mut sum = Sum::default();
        process.arenas.values().for_each(|arena| sum.arena(arena));
        if let Some(memory) = process.memory {
            sum.whole(memory, process.shared.is_empty());
        }
        sum
    }

    fn arena(&mut self, arena: &Arena) {
        let Some(figures) = &arena.figures else { return };
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

    /// All that a process maps. Where no arena is shared, shared memory is something else.
    fn whole(&mut self, memory: KernelMemory, alone: bool) {
        add(&mut self.files, memory.rss_file.saturating_add(if alone { memory.rss_shmem } else { 0 }));
        add(&mut self.kernel, memory.rss.saturating_add(memory.hugetlb));
    }

    /// Its part of that.
    fn part(&mut self, part: Part) {
        self.once = true;
        add(&mut self.files, part.file);
        add(&mut self.kernel, part.resident.saturating_add(part.hugetlb_own));
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

    /// What it is that the kernel does not count, where the known parts exceed its figure. Of pages that a child has by a fork
    /// and has not written, each process has its part only.
    pub fn excess(&self) -> &'static str {
        if self.once { "untouched or forked" } else { "not touched yet" }
    }

    /// What the known parts miss of the kernel's figure; negative if they exceed it.
    pub fn difference(&self) -> i64 {
        let known = i128::from(self.hg()) + i128::from(self.files);
        (i128::from(self.kernel) - known).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

fn add(into: &mut u64, bytes: u64) {
    *into = into.saturating_add(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Class, Counters, Figures, Identity, Shared};

    fn snapshot(arena: Arena, memory: KernelMemory) -> Snapshot {
        let mut process = Process::new(Identity::unknown(1));
        (process.memory, process.arenas) = (Some(memory), BTreeMap::from([(1, arena)]));
        Snapshot { processes: BTreeMap::from([(1, process)]), ..Snapshot::empty() }
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
        let memory =
            KernelMemory { rss: 100_000, hugetlb: 1000, rss_file: 9000, threads: 1, ..KernelMemory::default() };
        let sum = Sum::of(&snapshot(arena, memory), Scope::All);
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
        let sum = Sum::of(&snapshot(arena, KernelMemory::default()), Scope::All);
        assert_eq!(sum.live(), u64::MAX);
        assert_eq!(sum.difference(), i64::MIN);
    }

    #[test]
    fn what_processes_share_counts_once() {
        let figures = Figures { spans: 1 << 20, metadata: 4096, ..Figures::default() };
        let arena = Arena { figures: Some(figures), ..Arena::default() };
        let part = Part { resident: 600_000, file: 10_000, hugetlb_own: 0, hugetlb_shared: 0 };
        let memory = KernelMemory {
            rss: 1_160_000,
            rss_file: 20_000,
            rss_shmem: 1_100_000,
            part: Some(part),
            ..KernelMemory::default()
        };
        let processes = [1, 2].map(|pid| {
            let process = Process {
                memory: Some(memory),
                shared: [FileId::default()].into(),
                ..Process::new(Identity::unknown(pid))
            };
            (pid, process)
        });
        let shared = Shared { arena, processes: [1, 2].into(), owner: 1, ..Shared::default() };
        let mut now = Snapshot {
            processes: processes.into(),
            shared: BTreeMap::from([(FileId::default(), shared)]),
            ..Snapshot::empty()
        };
        let sum = Sum::of(&now, Scope::All);
        assert_eq!((sum.hg(), sum.files, sum.kernel, sum.once), ((1 << 20) + 4096, 20_000, 1_200_000, true));
        let one = Sum::of(&now, Scope::One(2));
        assert_eq!((one.hg(), one.files, one.kernel, one.once), ((1 << 20) + 4096, 20_000, 1_160_000, false));
        assert_eq!(Sum::own(&now.processes[&1]).hg(), 0);
        // The kernel does not divide hugetlb pages.
        for (pid, shared) in [(1, 3 << 20), (2, 2 << 20)] {
            let memory = now.processes.get_mut(&pid).and_then(|process| process.memory.as_mut()).unwrap();
            memory.part = Some(Part { hugetlb_shared: shared, ..part });
        }
        assert_eq!(Sum::of(&now, Scope::All).kernel, 1_200_000 + (3 << 20));
        // A worker that ended has no memory any more.
        now.processes.get_mut(&2).unwrap().exited = Some(now.time);
        let sum = Sum::of(&now, Scope::All);
        assert_eq!((sum.hg(), sum.kernel), ((1 << 20) + 4096, 1_160_000));
    }
}
