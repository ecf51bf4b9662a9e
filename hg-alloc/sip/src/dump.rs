//! What stands in place of the server's own dump of its memory: totals, a line for each size class in use, and one for each
//! place in the server's code that holds much.
//!
//! Servers walk and print all blocks; an arena shows what a walk would be for, and `hg-top` shows the rest.

use crate::domain::Domain;
use crate::figures::{Figures, blocks};
use crate::report::{Place, report};
use core::sync::atomic::Ordering::Relaxed;

/// A place in the code is worth a line if it holds more than this part of all.
const SHARE: u64 = 64;

/// Writes the totals of a domain, and with `classes` its size classes.
pub(crate) fn write(domain: &Domain, classes: bool) {
    let Some(arena) = domain.arena() else { return };
    let label = domain.label;
    let Figures { total, used, real_used, max_used, free } = Figures::of(domain);
    let committed = arena.committed_bytes();
    let (live, cells) = blocks(domain);
    report!(
        Info,
        "{label}: total={total} used={used} real_used={real_used} max_used={max_used} free={free} committed={committed}"
    );
    report!(Info, "{label}: {live} blocks in use, {cells} cells free");
    if let Some(old) = domain.old() {
        report!(Info, "{label}: of used, {} bytes are of the server's own allocator, from its start", old.live());
    }
    if !classes {
        return;
    }
    let page = arena.stats_page();
    for class in &page.classes {
        let (cells, free) = (class.cells.load(Relaxed), class.central_cells.load(Relaxed));
        if cells > free {
            let (size, spans) = (class.size.load(Relaxed), class.spans.load(Relaxed));
            report!(Info, "{label}: class {size}: {} in use, {free} free, {spans} spans", cells - free);
        }
    }
    let (large, bytes) = (page.header.large_count.load(Relaxed), page.header.large_bytes.load(Relaxed));
    if large > 0 {
        report!(Info, "{label}: large: {large} of {bytes} bytes");
    }
    let least = used as u64 / SHARE;
    arena.for_each_site(|site| {
        let held = site.bytes.load(Relaxed).saturating_sub(site.freed_bytes.load(Relaxed));
        if held > least {
            let place = Place(site.file.load(Relaxed) as *const u8, site.line_and_tag.load(Relaxed) >> 1);
            report!(Info, "{label}: about {held} bytes from {place} (samples)");
        }
    });
}
