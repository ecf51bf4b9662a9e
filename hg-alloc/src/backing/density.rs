//! How densely a page of the grid is used.
//!
//! Lock: the grid's. Caller: `tend.rs`.

use crate::grid::runs::Pool;
use crate::grid::tables::{Kind, PAGE_SLICES, Tables};
use crate::size_class::SLICE_SHIFT;
use core::sync::atomic::Ordering::Relaxed;

const PAGE: u32 = PAGE_SLICES as u32;

/// Slices in use from which on a page is dense: seven eighths.
const DENSE: u32 = PAGE / 8 * 7;

/// How far back the head of a run is looked for, slices (32 MiB).
const LOOK_BACK: u32 = 1024;

/// Whether a resident page, all of it below the top, is dense, and all the rest of it holds memory anyway: one huge page
/// then takes no more memory than the base pages did.
pub(super) fn is_dense(tables: &Tables, page: u32, top: u32) -> bool {
    let end = (page + 1) * PAGE;
    let mut at = page * PAGE;
    let mut used = 0;
    let mut head = head_of(tables, at);
    while at < end {
        // Inside a run that is longer than is looked back: a large object, or free memory, which the caller found resident.
        let Some(run) = head else { return true };
        let length = tables.length(run).max(1);
        let next = (run + length).min(end);
        match tables.kind(run) {
            Kind::Span | Kind::Large => used += next.saturating_sub(at),
            Kind::Free if tables.free_run(run, top).is_some_and(|(pool, _)| pool == Pool::Dirty) => {}
            _ => return false,
        }
        if next <= at {
            return false;
        }
        at = next;
        head = Some(next);
    }
    used >= DENSE
}

/// The head of the run that a slice lies in.
fn head_of(tables: &Tables, slice: u32) -> Option<u32> {
    let descriptor = tables.descriptor(slice);
    if descriptor.reciprocal.load(Relaxed) != 0 {
        return Some((descriptor.start.load(Relaxed) >> SLICE_SHIFT) as u32);
    }
    let heads = slice.saturating_sub(LOOK_BACK)..=slice;
    let head = heads.rev().find(|slice| tables.kind(*slice) != Kind::None)?;
    match tables.kind(head) {
        Kind::FreeTail if head == slice => Some(slice + 1 - tables.length(slice).min(slice + 1)),
        Kind::FreeTail => None,
        _ => (slice < head + tables.length(head).max(1)).then_some(head),
    }
}
