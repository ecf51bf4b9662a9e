//! The detail of the map: what keeps the pages under the cursor.

use std::time::Duration;

use ratatui::style::Style;

use super::map::full;
use super::paint::Pane;
use super::theme;
use crate::app::App;
use crate::model::map::{Cells, Detail, Holds, Page, PageMap};
use crate::unit::{age, bytes, class_size, count, percent};

/// Draws it.
pub(super) fn draw(pane: &mut Pane<'_>, app: &App, map: &PageMap, now: u64) {
    let (width, height) = (pane.width(), pane.height());
    let under = app.map.under_cursor();
    let group = map.group(under.clone());
    let detail = app.map.detail.as_ref().filter(|detail| detail.pages == under);
    let name = Detail { pages: under.clone(), ..Detail::default() }.name();
    let read = detail.map_or_else(String::new, |detail| {
        format!("read {} ago", age(Duration::from_nanos(now.saturating_sub(detail.read_at))))
    });
    if height < 3 {
        let text =
            detail.map_or_else(|| format!("{name}: reading …"), |detail| format!("{name}: {}", detail.meaning()));
        pane.wrap(1, 0, &text, theme::PLAIN);
        return;
    }
    pane.heading(1, 0, width.saturating_sub(2), &name.to_uppercase(), &read);
    let Some(detail) = detail else {
        pane.put(1, 1, "reading …", theme::DIM);
        return;
    };
    let sparse = group.is_sparse(map.slice_bytes);
    let y = pane.wrap(1, 1, &detail.meaning(), if sparse { theme::WATCH } else { theme::STRONG });
    let mut y = strip(pane, y, &detail.strip);
    let slices = &group.slices;
    let size = |slices: u64| bytes(slices.saturating_mul(map.slice_bytes));
    let parts = [
        ("spans", slices.span),
        ("large", slices.large),
        ("dirty", slices.dirty),
        ("fresh", slices.fresh),
        ("released", slices.released),
        ("going", slices.busy),
        ("damaged", slices.damaged),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(_, slices)| *slices > 0)
        .map(|(what, slices)| format!("{what} {}", size(*slices)))
        .collect();
    let used = percent(group.used, group.slices.all().saturating_mul(map.slice_bytes));
    let text = format!("{} · {used} used · {}", backing(&group, map, under.start), parts.join(", "));
    y = pane.wrap(1, y, &text, theme::DIM);
    // The sentence names a single one.
    let large =
        if detail.large_count > 1 { &detail.large[..detail.large.len().min(usize::from(height / 4))] } else { &[] };
    for large in large {
        pane.put(1, y, &format!("large object of {} at 0x{:x}", bytes(large.bytes), large.address), theme::PLAIN);
        y += 1;
    }
    classes(&mut pane.part(0, y, width, height.saturating_sub(y)), detail);
}

/// `THP, pinned · at 0x7f0000000000`.
fn backing(group: &Page, map: &PageMap, first: usize) -> String {
    let tier = match group.tier {
        _ if group.mixed => "several tiers",
        Some(tier) => tier.label(),
        None => "tier unknown",
    };
    let pin = if group.pinned { ", pinned" } else { "" };
    let address = map.base.saturating_add((first as u64).saturating_mul(map.page_bytes));
    format!("{tier}{pin} · at 0x{address:x}")
}

/// The slices, one a column, if they fit into one line; returns the line after them.
fn strip(pane: &mut Pane<'_>, y: u16, strip: &[Holds]) -> u16 {
    if strip.len() + 2 > usize::from(pane.width()) || pane.height() < 5 {
        return y;
    }
    for (x, holds) in (1..).zip(strip) {
        let (glyph, style) = slice(*holds);
        pane.put(x, y, glyph, style);
    }
    y + 1
}

fn slice(holds: Holds) -> (&'static str, Style) {
    match holds {
        Holds::Span(0) => ("o", theme::SPARE),
        Holds::Span(percent) => (full(f64::from(percent) / 100.0), theme::LIVE),
        Holds::Large => ("L", theme::LIVE),
        Holds::Dirty => ("·", theme::SPARE),
        Holds::Fresh => (".", theme::DIM),
        Holds::Released => (" ", theme::PLAIN),
        Holds::Busy => ("~", theme::WATCH),
        Holds::Damaged => ("!", theme::ALERT),
    }
}

/// The classes with cells there, those with the fewest live ones first: they are what is in the way.
fn classes(pane: &mut Pane<'_>, detail: &Detail) {
    if pane.height() < 3 || detail.classes.is_empty() {
        return;
    }
    pane.put(1, 0, "  CLASS  SPANS    LIVE  CACHED    FREE   LIVE", theme::DIM);
    let mut classes: Vec<(&u32, &Cells)> = detail.classes.iter().collect();
    classes.sort_by_key(|(size, cells)| (cells.live == 0, cells.live, **size));
    let room = usize::from(pane.height()) - 1;
    let shown = if classes.len() > room { room.saturating_sub(1) } else { classes.len() };
    for (y, (size, cells)) in (1..).zip(&classes[..shown]) {
        let all = cells.live.saturating_add(cells.cached).saturating_add(cells.free);
        let line = format!(
            "{:>7} {:>6} {:>7} {:>7} {:>7}  {:>5}",
            class_size(**size),
            count(cells.spans),
            count(cells.live),
            count(cells.cached),
            count(cells.free),
            percent(cells.live, all)
        );
        let x = pane.put(1, y, &line, if cells.live > 0 { theme::PLAIN } else { theme::DIM });
        if cells.damaged > 0 {
            pane.put(x + 2, y, &format!("{} damaged", count(cells.damaged)), theme::ALERT);
        }
    }
    if shown < classes.len() {
        pane.put(1, shown as u16 + 1, &format!("and {} classes more", classes.len() - shown), theme::DIM);
    }
}
