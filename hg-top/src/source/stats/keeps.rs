//! What keeps pages of a target: the runs that touch them, and the state of every cell of their spans.
//!
//! Exact as of the moment of the copy: a cell counts where its bytes touch the pages, by its state byte alone.

use std::io;
use std::ops::Range;

use super::map::{Kind, Run, Shape};
use super::memory::Memory;
use crate::model::Figures;
use crate::model::map::{Cells, Detail, Holds, Large, PageMap};
use crate::process::monotonic_ns;
use hg_probes::words::FreePool;

/// Pages that are looked at together.
pub const MAX_PAGES: usize = 64;

/// Runs that are stepped over before the pages are reached, where the map's head of their first slice is out of date.
const MAX_STEPS: usize = 1 << 16;

/// Slices whose records are copied at once: a few pages.
const CHUNK: u64 = 256;

/// Large objects that are named.
const MAX_LARGE: usize = 64;

/// Cells that a span may have; one with more makes no sense.
const MAX_CELLS: u64 = 1 << 20;

/// Looks at `pages` of an arena of process `pid`, as `map` has them. `None` if there are no such pages.
pub fn look(pid: u32, figures: &Figures, map: &PageMap, pages: Range<usize>) -> io::Result<Option<Detail>> {
    let Some(mut shape) = Shape::of(figures) else { return Ok(None) };
    let memory = Memory::of(pid);
    shape.renew(memory)?;
    let pages = pages.start..pages.end.min(pages.start.saturating_add(MAX_PAGES)).min(map.pages.len());
    let Some(first) = map.pages.get(pages.start).filter(|_| !pages.is_empty()) else { return Ok(None) };
    let slices = pages.start as u64 * shape.page_slices..(pages.end as u64 * shape.page_slices).min(shape.top);
    let mut detail = Detail {
        pages,
        strip: vec![Holds::Damaged; slices.end.saturating_sub(slices.start) as usize],
        ..Detail::default()
    };
    let mut runs = Vec::new();
    let mut steps = 0;
    shape.walk(memory, u64::from(first.head), CHUNK, |run| {
        steps += 1;
        if run.head + run.length > slices.start && run.head < slices.end {
            runs.push(run);
        }
        run.head + run.length < slices.end && steps < MAX_STEPS
    })?;
    for run in runs {
        take(&mut detail, &shape, memory, &slices, run)?;
    }
    detail.read_at = monotonic_ns();
    Ok(Some(detail))
}

/// Adds a run that touches the slices.
fn take(detail: &mut Detail, shape: &Shape<'_>, memory: Memory, slices: &Range<u64>, run: Run) -> io::Result<()> {
    let holds = match run.kind {
        Kind::Span { class: Some(class), states, .. } => {
            let full = cells(detail, shape, memory, slices, run, class, states)?;
            full.map_or(Holds::Damaged, Holds::Span)
        }
        Kind::Span { class: None, .. } => {
            detail.unreadable += 1;
            Holds::Damaged
        }
        Kind::Large => {
            detail.large_count += 1;
            if detail.large.len() < MAX_LARGE {
                let offset = run.head.saturating_mul(shape.slice_bytes);
                let bytes = run.length.saturating_mul(shape.slice_bytes);
                detail.large.push(Large { address: shape.records.base.saturating_add(offset), bytes });
            }
            Holds::Large
        }
        Kind::Free(FreePool::Dirty) => Holds::Dirty,
        Kind::Free(FreePool::Fresh) => Holds::Fresh,
        Kind::Free(FreePool::Released) => Holds::Released,
        Kind::Busy => Holds::Busy,
        Kind::Damaged => Holds::Damaged,
    };
    let inside = run.head.max(slices.start) - slices.start..(run.head + run.length).min(slices.end) - slices.start;
    if let Some(strip) = detail.strip.get_mut(inside.start as usize..inside.end as usize) {
        strip.fill(holds);
    }
    Ok(())
}

/// Counts the cells of a span that touch the slices; how full the span is, percent. `None` if its states make no sense.
fn cells(
    detail: &mut Detail,
    shape: &Shape<'_>,
    memory: Memory,
    slices: &Range<u64>,
    run: Run,
    class: u32,
    states: u32,
) -> io::Result<Option<u8>> {
    let count = shape.cells(run.length, class);
    let block = u64::from(states).checked_mul(64).and_then(|offset| shape.records.states.checked_add(offset));
    // The bitmap of recycled cells comes first, in whole cache lines.
    let first = block.and_then(|block| block.checked_add(count.div_ceil(512) * 64));
    let mut bytes = vec![0; count.min(MAX_CELLS) as usize];
    let readable = match first {
        Some(first) if count <= MAX_CELLS && !bytes.is_empty() => memory.read(first, &mut bytes)?,
        _ => false,
    };
    if !readable {
        detail.unreadable += 1;
        return Ok(None);
    }
    let (start, end) = (slices.start * shape.slice_bytes, slices.end * shape.slice_bytes);
    let found = detail.classes.entry(class).or_default();
    found.spans += 1;
    let mut full = 0;
    for (index, state) in bytes.iter().enumerate() {
        full += u64::from(*state != 0);
        let at = run.head * shape.slice_bytes + index as u64 * u64::from(class);
        if at < end && at + u64::from(class) > start {
            count_one(found, *state);
        }
    }
    Ok(Some((full * 100 / count.max(1)).min(100) as u8))
}

/// States as `hg_probes::grid::SpanRecord::states` numbers them.
fn count_one(cells: &mut Cells, state: u8) {
    match state {
        0 => cells.free += 1,
        1 => cells.cached += 1,
        2 | 3 => cells.live += 1,
        _ => cells.damaged += 1,
    }
}
