//! The map: one cell a page of the grid (or a few), how full it is and what backs it; below, or beside it where there is
//! room, what keeps the pages under the cursor.

use std::time::Duration;

use hg_probes::words::Tier;
use ratatui::style::{Modifier, Style};

use super::page;
use super::paint::Pane;
use super::theme;
use crate::app::App;
use crate::map::Layer;
use crate::model::map::{Page, PageMap};
use crate::unit::{age, bytes, count, percent, whole_bytes};

/// Columns for the number of a row's first page.
const LABEL: u16 = 7;

/// Least width where the detail goes beside the map.
const WIDE: u16 = 130;

/// Draws the view.
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App, now: u64) {
    let (width, height) = (pane.width(), pane.height());
    let title = match app.map_arena() {
        Some(of) => format!("MAP OF {} OF {} ", of.arena.name, of.whose()),
        None => "MAP ".into(),
    };
    let current = app.map_arena().map(|of| of.id);
    let map = app.map.map.clone().filter(|_| app.map.of.is_some() && app.map.of == current);
    let Some(map) = map else {
        pane.heading(1, 0, width.saturating_sub(2), &title, "");
        let (text, style) = match (current, &app.map.error) {
            (None, _) => ("no stats page can be read", theme::DIM),
            _ if app.map.stuck => (STUCK, theme::WATCH),
            (_, Some(error)) => (error.as_str(), theme::WATCH),
            _ => ("reading the grid's records …", theme::DIM),
        };
        pane.wrap(1, 2, text, style);
        return;
    };
    let wide = width >= WIDE;
    // A row of 64 pages is 128 MiB: addresses are easy to tell.
    let most = if wide { 64 } else { width.saturating_sub(LABEL + 1) };
    let columns = (0..=7).map(|shift| 1 << shift).take_while(|columns| *columns <= most).last().unwrap_or(1);
    let notes = if height >= 12 { 3 } else { 0 };
    let detail = match height {
        _ if wide => 0,
        16.. => 8,
        10.. => 4,
        5.. => 2,
        _ => 0,
    };
    let room = height.saturating_sub(1 + notes + detail).max(1);
    app.map.fit(columns.into(), room.into());
    let rows = (app.map.all_rows(columns.into()).min(room.into()) as u16).max(1);
    let note = note(app, &map, now);
    let left = if wide { LABEL + 66 } else { width };
    pane.heading(1, 0, left.saturating_sub(2), &title, &note);
    cells(&mut pane.part(0, 1, left, rows), app, &map);
    if notes > 0 {
        legend(&mut pane.part(0, 1 + rows, left, 1), app.map.layer);
        totals(&mut pane.part(0, 2 + rows, left, 2), &map);
    }
    let below = 1 + rows + notes;
    if wide {
        sparse(&mut pane.part(0, below + 1, left, height.saturating_sub(below + 1)), &map);
    }
    let mut part = match wide {
        true => pane.part(left + 1, 0, width.saturating_sub(left + 1), height),
        false => pane.part(0, below, width, height.saturating_sub(below)),
    };
    page::draw(&mut part, app, &map, now);
}

/// What is said when a process does not let itself be read.
const STUCK: &str = "reading the process's memory takes more than 5 s: it may not want to be read";

/// `176 pages of 2 MiB, 2 a cell · read 0.4 s ago`.
fn note(app: &App, map: &PageMap, now: u64) -> String {
    let scale = if app.map.scale > 1 { format!(", {} a cell", app.map.scale) } else { String::new() };
    let ago = age(Duration::from_nanos(now.saturating_sub(map.read_at)));
    let stuck = if app.map.stuck || app.map.error.is_some() { "cannot be read now; " } else { "" };
    let more = if map.left_out > 0 { format!(" of {}", map.pages.len() as u64 + map.left_out) } else { String::new() };
    format!("{}{more} pages of {}{scale} · {stuck}read {ago} ago", map.pages.len(), whole_bytes(map.page_bytes))
}

fn cells(pane: &mut Pane<'_>, app: &App, map: &PageMap) {
    let state = &app.map;
    let under = state.under_cursor();
    for row in 0..usize::from(pane.height()) {
        let first = (state.first_row + row) * state.columns * state.scale;
        if first >= map.pages.len() {
            break;
        }
        pane.right(LABEL - 1, row as u16, &first.to_string(), theme::DIM);
        for column in 0..state.columns {
            let page = first + column * state.scale;
            if page >= map.pages.len() {
                break;
            }
            let group = map.group(page..page + state.scale);
            let (glyph, style) = match state.layer {
                Layer::Heat => heat(&group, map.slice_bytes),
                Layer::Tier => tier(&group),
            };
            let style = if page == under.start { style.patch(theme::SELECTED) } else { style };
            pane.put(LABEL + column as u16, row as u16, glyph, style);
        }
    }
}

/// How full a page is: a glyph that reads without colour.
pub fn heat(page: &Page, slice_bytes: u64) -> (&'static str, Style) {
    let slices = &page.slices;
    let backed = match page.tier {
        Some(Tier::Thp | Tier::Collapsed | Tier::Hugetlb | Tier::Mid) => theme::LIVE,
        _ => theme::SPARE,
    };
    let backed = if page.pinned { backed.add_modifier(Modifier::UNDERLINED) } else { backed };
    if slices.damaged > 0 {
        return ("!", theme::ALERT);
    }
    if slices.span + slices.large == 0 {
        return match slices {
            slices if slices.busy > 0 => ("~", theme::WATCH),
            slices if slices.dirty > 0 => ("·", backed),
            slices if slices.fresh > 0 => (".", theme::DIM),
            _ => (" ", theme::PLAIN),
        };
    }
    // The pages to look at when memory does not come back.
    if page.is_sparse(slice_bytes) {
        return ("▁", theme::WATCH);
    }
    (full(page.occupancy(slice_bytes)), backed)
}

/// The glyph of a share that is not nothing.
pub(super) fn full(share: f64) -> &'static str {
    match share {
        0.9.. => "█",
        0.6.. => "▓",
        0.3.. => "▒",
        _ => "░",
    }
}

/// What backs a page, as a letter; a capital one if it is pinned.
fn tier(page: &Page) -> (&'static str, Style) {
    let (small, capital, style) = match page.tier {
        _ if page.mixed => ("*", "*", theme::PLAIN),
        Some(Tier::None) => (".", ".", theme::DIM),
        Some(Tier::Base) => ("b", "B", theme::SPARE),
        Some(Tier::Mid) => ("m", "M", theme::LIVE),
        Some(Tier::Collapsed) => ("c", "C", theme::LIVE),
        Some(Tier::Thp) => ("t", "T", theme::LIVE),
        Some(Tier::Hugetlb) => ("h", "H", theme::LIVE),
        None => ("!", "!", theme::ALERT),
    };
    (if page.pinned { capital } else { small }, style)
}

fn legend(pane: &mut Pane<'_>, layer: Layer) {
    let entries: &[(&str, &str, Style)] = match layer {
        Layer::Heat => &[
            ("█", "90%", theme::LIVE),
            ("▓", "60%", theme::LIVE),
            ("▒", "30%", theme::LIVE),
            ("░", "less", theme::LIVE),
            ("▁", "little", theme::WATCH),
            ("·", "dirty", theme::SPARE),
            (".", "fresh", theme::DIM),
            ("␣", "released", theme::DIM),
            ("~", "going", theme::WATCH),
            ("!", "damaged", theme::ALERT),
        ],
        Layer::Tier => &[
            ("h", "hugetlb", theme::LIVE),
            ("t", "THP", theme::LIVE),
            ("c", "collapsed", theme::LIVE),
            ("m", "64K", theme::LIVE),
            ("b", "4K", theme::SPARE),
            (".", "none", theme::DIM),
            ("*", "several", theme::PLAIN),
            ("B", "capital: pinned", theme::PLAIN),
        ],
    };
    let mut x = 1;
    for (glyph, word, style) in entries {
        if usize::from(x) + word.chars().count() + 4 > usize::from(pane.width()) {
            break;
        }
        x = pane.line(x, 0, &[(glyph, *style), (" ", theme::PLAIN), (word, theme::DIM), ("  ", theme::PLAIN)]);
    }
}

/// How much is used of what is held, and how much of that little keeps.
fn totals(pane: &mut Pane<'_>, map: &PageMap) {
    let total = map.total();
    let size = |slices: u64| bytes(slices.saturating_mul(map.slice_bytes));
    let held = total.held(map.slice_bytes);
    pane.line(
        1,
        0,
        &[
            (&bytes(total.used), theme::STRONG),
            (" used of ", theme::DIM),
            (&bytes(held), theme::PLAIN),
            (&format!(" held ({}), dirty ", percent(total.used, held)), theme::DIM),
            (&size(total.slices.dirty), theme::PLAIN),
            (", given back ", theme::DIM),
            (&size(total.slices.released), theme::GOOD),
        ],
    );
    let (pages, held, used) = map.sparse();
    match pages {
        0 => pane.put(1, 1, "no page is kept by less than a tenth of what it holds", theme::DIM),
        _ => {
            let plural = if pages == 1 { " is" } else { "s are" };
            let text = format!("{} page{plural} kept by little: {} hold {}", count(pages), bytes(held), bytes(used));
            pane.put(1, 1, &text, theme::WATCH)
        }
    };
}

/// The pages that keep the most memory for the least, where there is room for them.
fn sparse(pane: &mut Pane<'_>, map: &PageMap) {
    if pane.height() < 4 {
        return;
    }
    let waste = |page: &Page| page.held(map.slice_bytes).saturating_sub(page.used);
    let mut pages: Vec<(usize, &Page)> =
        map.pages.iter().enumerate().filter(|(_, page)| page.is_sparse(map.slice_bytes)).collect();
    if pages.is_empty() {
        return;
    }
    pages.sort_by_key(|(number, page)| (std::cmp::Reverse(waste(page)), *number));
    let width = pane.width();
    pane.heading(1, 0, width.saturating_sub(2), "KEPT BY LITTLE", "n goes to the next");
    pane.put(1, 1, "  PAGE  BACKED BY      HOLDS      USED  SHARE", theme::DIM);
    for (y, (number, page)) in (2..pane.height()).zip(pages) {
        let held = page.held(map.slice_bytes);
        let tier = page.tier.map_or("?", Tier::label);
        let line = format!(
            "{number:>6}  {tier:<13} {:>9} {:>9}  {:>5}",
            bytes(held),
            bytes(page.used),
            percent(page.used, held)
        );
        pane.put(1, y, &line, theme::PLAIN);
    }
}
