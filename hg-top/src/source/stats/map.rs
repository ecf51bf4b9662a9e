//! The page map: reads the grid's records of a target and walks its runs.
//!
//! Records lie where the stats page says. They change under locks that we do not have, and the target may lie, so nothing
//! is followed: a walk only ever goes forward, from a run to the slice behind it, and a run that makes no sense (length 0,
//! beyond the top, an unknown kind) counts as one damaged slice. What is read is bounded by [`MAX_SLICES`].

use std::collections::BTreeMap;
use std::io;
use std::mem::offset_of;
use std::time::Instant;

use hg_probes::grid::{DescriptorRecord, PINNED, RunRecord, SpanRecord, tier_of};
use hg_probes::words::{FreePool, RunKind, Tier};

use super::copy::Block;
use super::memory::{Memory, Piece};
use crate::model::Figures;
use crate::model::map::{Page, PageMap, Records};
use crate::process::monotonic_ns;

/// Slices that are read: 128 GiB of them.
pub const MAX_SLICES: u64 = 4 << 20;

/// Slices whose records are copied at once, for the whole map.
const CHUNK: u64 = 8192;

/// Walks that are tried until one finds no damage: records that change meanwhile look damaged too.
const TRIES: usize = 3;

/// The shape of an arena's grid, checked.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    pub(super) records: &'a Records,
    pub(super) slice_bytes: u64,
    pub(super) page_slices: u64,
    /// Slices that are looked at.
    pub(super) top: u64,
    /// Slices that there are.
    pub(super) all: u64,
}

/// A run as a walk finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) head: u64,
    pub(super) length: u64,
    pub(super) kind: Kind,
}

/// What a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Span { class: Option<u32>, used: u64, states: u32 },
    Large,
    Free(FreePool),
    Busy,
    Damaged,
}

impl<'a> Shape<'a> {
    /// The shape that `figures` tell of; `None` if it makes no sense, or there is nothing yet.
    pub(super) fn of(figures: &'a Figures) -> Option<Shape<'a>> {
        let (records, slice_bytes) = (&figures.records, figures.slice_bytes);
        let page_slices = figures.page_bytes.checked_div(slice_bytes)?;
        let sane = slice_bytes.is_power_of_two()
            && (4096..=1 << 30).contains(&slice_bytes)
            && figures.page_bytes.is_multiple_of(slice_bytes)
            && (1..=4096).contains(&page_slices);
        let there = records.runs != 0 && records.spans != 0 && records.descriptors != 0;
        let (all, top) = (records.top, records.top.min(MAX_SLICES));
        (sane && there).then_some(Shape { records, slice_bytes, page_slices, top, all })
    }

    /// The same with as many slices as there are now: the arena may have grown since the stats page was read.
    pub(super) fn renew(&mut self, memory: Memory) -> io::Result<()> {
        let mut word = [0; 8];
        if memory.read(self.records.top_at, &mut word)? {
            self.all = u64::from_ne_bytes(word);
            self.top = self.all.min(MAX_SLICES);
        }
        Ok(())
    }

    /// Calls `found` for each run from the one at slice `from` on, until it says to stop or the top is reached. Records are
    /// copied by `chunk` slices.
    pub(super) fn walk(
        &self,
        memory: Memory,
        from: u64,
        chunk: u64,
        mut found: impl FnMut(Run) -> bool,
    ) -> io::Result<()> {
        let mut at = from;
        while at < self.top {
            let chunk = Chunk::read(self, memory, at, chunk)?;
            while at < chunk.end {
                let run = chunk.run(self, at);
                if !found(run) {
                    return Ok(());
                }
                at = run.head + run.length;
            }
        }
        Ok(())
    }

    /// Cells of a span of `length` slices.
    pub(super) fn cells(&self, length: u64, class: u32) -> u64 {
        length.saturating_mul(self.slice_bytes).checked_div(class.into()).unwrap_or(0)
    }
}

/// Records of some slices, copied.
struct Chunk {
    start: u64,
    end: u64,
    runs: Vec<u8>,
    spans: Vec<u8>,
    descriptors: Vec<u8>,
}

impl Chunk {
    fn read(shape: &Shape<'_>, memory: Memory, start: u64, slices: u64) -> io::Result<Chunk> {
        let slices = (shape.top - start).min(slices);
        let table = |address: u64, size: usize| match start.checked_mul(size as u64) {
            Some(offset) => copy(memory, address.saturating_add(offset), size * slices as usize),
            None => Ok(vec![0; size * slices as usize]),
        };
        Ok(Chunk {
            start,
            end: start + slices,
            runs: table(shape.records.runs, size_of::<RunRecord>())?,
            spans: table(shape.records.spans, size_of::<SpanRecord>())?,
            descriptors: table(shape.records.descriptors, size_of::<DescriptorRecord>())?,
        })
    }

    /// The run at slice `at`; one damaged slice if there is none.
    fn run(&self, shape: &Shape<'_>, at: u64) -> Run {
        let index = (at - self.start) as usize;
        let record = |bytes, size: usize| Block::at(bytes, index * size);
        let run = record(&self.runs, size_of::<RunRecord>());
        let [kind, pool] = run.array(offset_of!(RunRecord, kind)).unwrap_or_default();
        let length = u64::from(run.u32(offset_of!(RunRecord, length)));
        let kind = match (RunKind::from_u64(kind.into()), FreePool::from_u64(pool.into())) {
            (Some(RunKind::Free), Some(pool)) => Kind::Free(pool),
            (Some(RunKind::Large), _) => Kind::Large,
            (Some(RunKind::Busy), _) => Kind::Busy,
            (Some(RunKind::Span), _) => {
                let span = record(&self.spans, size_of::<SpanRecord>());
                let descriptor = record(&self.descriptors, size_of::<DescriptorRecord>());
                let carved = u64::from(span.u32(offset_of!(SpanRecord, carved)));
                let free = u64::from(span.u32(offset_of!(SpanRecord, free)));
                let array = descriptor.u64(offset_of!(DescriptorRecord, array));
                Kind::Span {
                    class: shape.records.arrays.get(&array).copied().filter(|size| *size > 0),
                    used: carved.saturating_sub(free),
                    states: span.u32(offset_of!(SpanRecord, states)),
                }
            }
            _ => Kind::Damaged,
        };
        match kind {
            Kind::Damaged => Run { head: at, length: 1, kind },
            // Of an arena larger than what is looked at, the last run may end behind that.
            _ if (1..=shape.all - at).contains(&length) => Run { head: at, length: length.min(shape.top - at), kind },
            _ => Run { head: at, length: 1, kind: Kind::Damaged },
        }
    }
}

/// Copies what can be read from an address on; what cannot is zeros, which is no run.
fn copy(memory: Memory, address: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    // Piece by piece up to the ends of pages: the first that cannot be read ends it.
    let mut pieces = Vec::with_capacity(len / 4096 + 2);
    let mut at = 0;
    while at < len {
        let Some(address) = address.checked_add(at as u64) else { break };
        let piece = Piece { address, len: (4096 - (address % 4096) as usize).min(len - at) };
        at += piece.len;
        pieces.push(piece);
    }
    let whole = memory.gather(&pieces, &mut bytes[..at])?;
    let read = pieces[..whole].iter().map(|piece| piece.len).sum::<usize>();
    bytes[read..].fill(0);
    Ok(bytes)
}

/// Reads the map of an arena of process `pid`; `None` if its page tells of no records.
pub fn read(pid: u32, figures: &Figures) -> io::Result<Option<PageMap>> {
    let Some(mut shape) = Shape::of(figures) else { return Ok(None) };
    let memory = Memory::of(pid);
    let begin = Instant::now();
    let mut best: Option<Vec<Page>> = None;
    for _ in 0..TRIES {
        shape.renew(memory)?;
        let pages = pages(&shape, memory)?;
        let damage = |pages: &[Page]| pages.iter().map(|page| page.slices.damaged).sum::<u64>();
        let found = damage(&pages);
        if best.as_deref().is_none_or(|best| found < damage(best)) {
            best = Some(pages);
        }
        if found == 0 {
            break;
        }
    }
    let pages = best.unwrap_or_default();
    let left_out = shape.all.div_ceil(shape.page_slices).saturating_sub(pages.len() as u64);
    Ok(Some(PageMap {
        read_at: monotonic_ns(),
        took: begin.elapsed(),
        base: figures.records.base,
        page_bytes: figures.page_bytes,
        slice_bytes: shape.slice_bytes,
        pages,
        left_out,
    }))
}

fn pages(shape: &Shape<'_>, memory: Memory) -> io::Result<Vec<Page>> {
    let count = shape.top.div_ceil(shape.page_slices) as usize;
    let mut pages = vec![Page::default(); count];
    let mut tiers = vec![0; count];
    if count > 0 && shape.records.tiers != 0 && memory.read(shape.records.tiers, &mut tiers)? {
        for (page, byte) in pages.iter_mut().zip(tiers) {
            page.tier = Tier::from_u64(tier_of(byte).into());
            page.pinned = byte & PINNED != 0;
        }
    }
    shape.walk(memory, 0, CHUNK, |run| {
        spread(shape, &mut pages, run);
        true
    })?;
    Ok(pages)
}

/// Adds a run to the pages that it touches.
fn spread(shape: &Shape<'_>, pages: &mut [Page], run: Run) {
    let mut at = run.head;
    let end = run.head + run.length;
    while at < end {
        let index = at / shape.page_slices;
        let Some(page) = pages.get_mut(index as usize) else { return };
        let here = ((index + 1) * shape.page_slices).min(end) - at;
        if at.is_multiple_of(shape.page_slices) {
            page.head = run.head as u32;
        }
        let bytes = here.saturating_mul(shape.slice_bytes);
        let slices = &mut page.slices;
        match run.kind {
            Kind::Span { class, used, .. } => {
                slices.span += here;
                page.used = page.used.saturating_add(match class {
                    Some(class) => (used.saturating_mul(class.into()) / run.length).saturating_mul(here).min(bytes),
                    None => bytes,
                });
            }
            Kind::Large => {
                slices.large += here;
                page.used = page.used.saturating_add(bytes);
            }
            Kind::Free(FreePool::Dirty) => slices.dirty += here,
            Kind::Free(FreePool::Fresh) => slices.fresh += here,
            Kind::Free(FreePool::Released) => slices.released += here,
            Kind::Busy => slices.busy += here,
            Kind::Damaged => slices.damaged += here,
        }
        at += here;
    }
}

/// Sizes of classes by the array that descriptors name: `fronts_address` plus the class's `front_offset`.
pub(super) fn arrays(fronts: u64, classes: impl Iterator<Item = (u32, u32)>) -> BTreeMap<u64, u32> {
    classes.filter_map(|(offset, size)| Some((fronts.checked_add(offset.into())?, size))).collect()
}
