//! Records of a grid: a small one that is as it should be, one that lies wherever it can, and one that answers no read.

use std::ptr::addr_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use hg_probes::grid::{DescriptorRecord, PINNED, RunRecord, SpanRecord};
use hg_probes::page::StatsPage;
use hg_probes::words::{FreePool, RunKind, Tier};

/// Slices of the grid: two pages.
const SLICES: usize = 128;

/// The grid's tables.
#[repr(C)]
struct Grid {
    runs: [RunRecord; SLICES],
    spans: [SpanRecord; SLICES],
    descriptors: [DescriptorRecord; SLICES],
    tiers: [u8; 2],
    /// In blocks of 64 bytes: bitmap and states of the span at slice 0, then those of the one at slice 1.
    states: [[u8; 64]; 16],
}

/// Page 0: a span of class 4096 with one live cell, a span of class 64 with three cached ones, and dirty memory. Page 1: a
/// large object, fresh and released memory.
pub(crate) fn honest(page: &StatsPage) {
    let fronts = page.header.fronts_address.load(Relaxed);
    let array = |index: usize| fronts + u64::from(page.classes[index].front_offset.load(Relaxed));
    let mut grid = Grid {
        runs: [RunRecord::default(); SLICES],
        spans: [SpanRecord::default(); SLICES],
        descriptors: [DescriptorRecord::default(); SLICES],
        tiers: [Tier::Thp as u8, Tier::Hugetlb as u8 | PINNED],
        states: [[0; 64]; 16],
    };
    let run = |kind: RunKind, pool: FreePool, length| RunRecord {
        kind: kind as u8,
        pool: pool as u8,
        length,
        ..RunRecord::default()
    };
    grid.runs[0] = run(RunKind::Span, FreePool::Dirty, 1);
    grid.runs[1] = run(RunKind::Span, FreePool::Dirty, 1);
    grid.runs[2] = run(RunKind::Free, FreePool::Dirty, 62);
    grid.runs[64] = run(RunKind::Large, FreePool::Dirty, 40);
    grid.runs[104] = run(RunKind::Free, FreePool::Fresh, 16);
    grid.runs[120] = run(RunKind::Free, FreePool::Released, 8);
    grid.spans[0] = SpanRecord { carved: 8, free: 7, states: 0, ..SpanRecord::default() };
    grid.spans[1] = SpanRecord { carved: 512, free: 509, states: 2, ..SpanRecord::default() };
    grid.descriptors[0] = DescriptorRecord { reciprocal: 1, array: array(2), ..DescriptorRecord::default() };
    grid.descriptors[1] = DescriptorRecord { reciprocal: 1, array: array(1), ..DescriptorRecord::default() };
    grid.states[1][5] = 2;
    grid.states[3][..3].fill(1);
    let grid: &'static Grid = Box::leak(Box::new(grid));
    show(page, grid);
    let header = &page.header;
    let set = |word: &AtomicU64, slices: u64| word.store(slices << 15, Relaxed);
    set(&header.span_bytes, 2);
    set(&header.large_bytes, 40);
    set(&header.free_dirty_bytes, 62);
    set(&header.free_clean_bytes, 16);
    set(&header.committed_bytes, 120);
    set(&header.used_peak_bytes, 64);
}

fn show(page: &StatsPage, grid: &'static Grid) {
    let header = &page.header;
    header.base_address.store(0x7000_0000_0000, Relaxed);
    header.runs_address.store(addr_of!(grid.runs) as u64, Relaxed);
    header.spans_address.store(addr_of!(grid.spans) as u64, Relaxed);
    header.descriptors_address.store(addr_of!(grid.descriptors) as u64, Relaxed);
    header.tiers_address.store(addr_of!(grid.tiers) as u64, Relaxed);
    header.states_address.store(addr_of!(grid.states) as u64, Relaxed);
    header.top_slices.store(SLICES as u64, Relaxed);
}

/// Runs of no length, of lengths beyond the end, of unknown kinds; states and tiers nowhere; decisions of the largest numbers.
pub(crate) fn lying(page: &StatsPage) {
    honest(page);
    let mut runs = [RunRecord { kind: 3, length: u32::MAX, ..RunRecord::default() }; SLICES];
    for (index, run) in runs.iter_mut().enumerate() {
        match index % 4 {
            0 => run.length = 0,
            1 => run.kind = 200,
            2 => (run.kind, run.pool, run.length) = (1, 77, 1),
            _ => {}
        }
    }
    // A span whose class and states are made up.
    runs[0] = RunRecord { kind: RunKind::Span as u8, length: 7, ..RunRecord::default() };
    let spans = [SpanRecord { carved: 1, free: u32::MAX, states: u32::MAX, ..SpanRecord::default() }; SLICES];
    let header = &page.header;
    header.runs_address.store(Box::leak(Box::new(runs)).as_ptr() as u64, Relaxed);
    header.spans_address.store(Box::leak(Box::new(spans)).as_ptr() as u64, Relaxed);
    header.states_address.store(u64::MAX - 64, Relaxed);
    header.tiers_address.store(8, Relaxed);
    header.base_address.store(u64::MAX, Relaxed);
    let policy = &page.policy;
    policy.written.store(u64::MAX, Relaxed);
    policy.last_tick_ns.store(u64::MAX, Relaxed);
    for decision in &policy.decisions {
        decision.verdict.store(u32::MAX, Relaxed);
        decision.why.store(4, Relaxed);
        for word in [&decision.at_ns, &decision.times, &decision.bytes, &decision.cells, &decision.percent] {
            word.store(u64::MAX, Relaxed);
        }
    }
}

/// The records lie in memory that answers no read.
pub(crate) fn silent(page: &StatsPage) {
    honest(page);
    page.header.runs_address.store(super::silent::memory(), Relaxed);
}
