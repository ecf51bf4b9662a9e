//! Arenas: which tier was wanted and obtained and why, what is pinned, how much is committed, growth and shrinking.

use hg_probes::words::Tier;

use super::arena::{self, Known, tier};
use super::paint::{Pane, bar};
use super::table::{self, Cell, Column, Row};
use super::theme;
use crate::app::{App, View};
use crate::log::Line;
use crate::model::ArenaRef;
use crate::unit::{age, bytes, count, percent};

const COLUMNS: &[Column] = &[
    Column::right("PID", "pid", 7, 0),
    Column::left("ARENA", "arena", 10, 0),
    Column::left("KIND", "kind", 9, 5),
    Column::left("WANTED→GOT", "tier", 20, 1),
    Column::right("COMMITTED", "committed", 9, 0),
    Column::left("OF CAP", "share", 12, 4),
    Column::right("PEAK", "peak", 8, 6),
    Column::right("RESERVED", "reserved", 8, 3),
    Column::right("TABLES", "tables", 8, 7),
    Column::right("PINNED", "pinned", 8, 6),
    Column::right("GROWN", "grown", 5, 2),
    Column::right("SHRUNK", "shrunk", 6, 2),
    Column::right("REFUSED", "refused", 7, 8),
];

/// Rows that the detail needs.
const DETAIL: u16 = 12;

/// Least width where it is drawn side by side.
const WIDE: u16 = 130;

/// Draws the view: the table, and below it the selected arena (or the only one).
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App) {
    let filter = app.filter(View::Arenas);
    let mut state = app.tables[View::Arenas as usize].clone();
    let rows = table::prepare(COLUMNS, rows(app), &state, &filter);
    let (width, height) = (pane.width(), pane.height());
    // Below few arenas there is room for all about one of them.
    let needed = rows.len() as u16 + if height > 20 { 2 } else { 1 };
    let table = if height > DETAIL + 3 { needed.min(height - DETAIL) } else { height };
    let empty = if filter.is_empty() { "no stats page can be read" } else { "no arena passes the filter" };
    table::draw(&mut pane.part(0, 0, width, table), COLUMNS, &rows, &mut state, empty);
    let chosen = state.selected.clone().or_else(|| rows.first().map(|row| row.id.clone()));
    if let Some(known) = chosen.and_then(|chosen| find(app, &chosen)) {
        let mut below = pane.part(0, table, width, height - table);
        if width >= WIDE { beside(&mut below, app, &known) } else { stacked(&mut below, app, &known) }
    }
    app.tables[View::Arenas as usize] = state;
}

/// The arena of a row.
fn find<'a>(app: &'a App, id: &str) -> Option<Known<'a>> {
    Known::of(app, app.timeline().latest()?.arena(id.parse().ok()?)?)
}

/// Figures, decisions, the log of growth, one below the other.
fn stacked(pane: &mut Pane<'_>, app: &App, known: &Known<'_>) {
    let (width, height) = (pane.width(), pane.height());
    let y = arena::figures(&mut pane.part(0, 0, width, height), known, true);
    let left = height.saturating_sub(y);
    let log = if left >= 9 { left / 2 } else { 0 };
    if left >= 2 {
        arena::decisions(&mut pane.part(0, y, width, left - log), known.of.arena.policy.as_ref(), known.at);
    }
    if log > 0 {
        growth(&mut pane.part(0, height - log, width, log), app);
    }
}

/// Figures and the log at the left, advice and decisions at the right.
fn beside(pane: &mut Pane<'_>, app: &App, known: &Known<'_>) {
    let (width, height) = (pane.width(), pane.height());
    let left = width / 2 + 4;
    let y = arena::figures(&mut pane.part(0, 0, left, height), known, false);
    if height > y + 3 {
        growth(&mut pane.part(0, y + 1, left, height - y - 1), app);
    }
    let right = width - left;
    let y = arena::advice(&mut pane.part(left, 0, right, height), known.advice.as_ref());
    let y = if y > 0 { y + 1 } else { 0 };
    if height > y + 2 {
        arena::decisions(&mut pane.part(left, y, right, height - y), known.of.arena.policy.as_ref(), known.at);
    }
}

/// The latest events that changed the size of an arena, or did not.
fn growth(pane: &mut Pane<'_>, app: &App) {
    let width = pane.width();
    pane.heading(1, 0, width.saturating_sub(2), "GROWTH AND SHRINKING", "newest first");
    let of_growth = |line: &&Line| app.scope.holds(line.first.pid) && line.is_growth();
    let rows = 1..pane.height();
    for (y, line) in rows.zip(app.log.newest_first().filter(of_growth)) {
        let ago = age(app.now.duration_since(line.time()).unwrap_or_default());
        pane.right(10, y, &ago, theme::DIM);
        pane.put(12, y, &format!("{:>7}  {}", line.first.pid, line.meaning()), theme::PLAIN);
    }
}

fn rows(app: &App) -> Vec<Row> {
    let Some(latest) = app.timeline().latest() else { return Vec::new() };
    app.scope.arenas(latest).filter_map(row).collect()
}

fn row(of: ArenaRef<'_>) -> Option<Row> {
    let arena = of.arena;
    let f = arena.figures.as_ref()?;
    let label = |tier: Option<Tier>| tier.map_or("?", Tier::label);
    let figure = |value: u64| Cell::maybe(bytes(value), Some(value as f64));
    let times = |value: u64| Cell::maybe(count(value), Some(value as f64));
    let share = f.committed as f64 / f.reserved.max(1) as f64;
    let refused = f.refused();
    let pid = of.process.identity.pid;
    let tiers = format!("{}→{}", label(f.tier_wanted), label(f.tier));
    Some(Row {
        id: of.id.to_string(),
        cells: vec![
            Cell::number(of.shared.map_or(pid.to_string(), |shared| format!("× {}", shared.count().0)), pid.into())
                .styled(theme::STRONG),
            Cell::text(arena.name.clone()),
            Cell::text(arena::kind(f)),
            Cell::text(tiers).styled(tier(f).1),
            figure(f.committed),
            Cell::number(format!("{} {:>4}", bar(7, share), percent(f.committed, f.reserved)), share)
                .styled(theme::LIVE),
            figure(f.committed_peak),
            figure(f.reserved),
            figure(f.metadata),
            figure(f.pinned),
            times(f.grows),
            times(f.shrinks),
            times(refused),
        ],
    })
}
