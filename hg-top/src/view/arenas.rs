//! Arenas: which tier was wanted and obtained and why, what is pinned, how much is committed, growth and shrinking.

use hg_probes::words::{Cause, Tier, TierReason};
use ratatui::style::Style;

use super::paint::{Pane, Part, bar};
use super::table::{self, Cell, Column, Row};
use super::theme;
use crate::app::{App, View};
use crate::log::Line;
use crate::model::{Arena, Figures, Process};
use crate::unit::{age, bytes, count, percent};

const COLUMNS: &[Column] = &[
    Column::right("PID", "pid", 7, 0),
    Column::left("ARENA", "arena", 10, 0),
    Column::left("KIND", "kind", 7, 5),
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

/// Draws the view: the table, and below it the selected arena (or the only one).
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App) {
    let filter = app.filter(View::Arenas);
    let mut state = app.tables[View::Arenas as usize].clone();
    let rows = table::prepare(COLUMNS, rows(app), &state, &filter);
    let (width, height) = (pane.width(), pane.height());
    let detail = if height > DETAIL + 3 { DETAIL } else { 0 };
    // Below few arenas there is room for what happened to them.
    let table = (rows.len() as u16 + 2).min(height - detail);
    let log = height - detail - table;
    let empty = if filter.is_empty() { "no stats page can be read" } else { "no arena passes the filter" };
    table::draw(&mut pane.part(0, 0, width, table), COLUMNS, &rows, &mut state, empty);
    if detail > 0 {
        let chosen = state.selected.clone().or_else(|| rows.first().map(|row| row.id.clone()));
        draw_detail(&mut pane.part(0, table, width, detail), app, chosen.as_deref());
    }
    if log > 2 {
        growth(&mut pane.part(0, table + detail, width, log), app);
    }
    app.tables[View::Arenas as usize] = state;
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

/// `4K instead of THP: …`, and whether that is fine.
pub(super) fn tier(figures: &Figures) -> (String, Style) {
    let label = |tier: Option<Tier>| tier.map_or("unknown", Tier::label);
    let why = figures.tier_reason.map_or("unknown reason", TierReason::label);
    let (got, wanted) = (label(figures.tier), label(figures.tier_wanted));
    match figures.tier_reason {
        _ if figures.tier == Some(Tier::None) => ("nothing committed yet".into(), theme::DIM),
        Some(TierReason::Obtained) => (format!("{got}, as wanted"), theme::GOOD),
        Some(TierReason::NotAsked) => (format!("{got}, nothing better was asked for"), theme::PLAIN),
        _ => (format!("{got} instead of {wanted}: {why}"), theme::WATCH),
    }
}

/// What is pinned, and whether that is what was asked for.
pub(super) fn pin(figures: &Figures) -> (String, Style) {
    match (figures.pin_wanted, figures.pin_errno) {
        (false, _) => ("not asked".into(), theme::PLAIN),
        (true, 0) => (format!("{} of {}", bytes(figures.pinned), bytes(figures.committed)), theme::GOOD),
        (true, errno) => {
            let error = std::io::Error::from_raw_os_error(errno as i32);
            (format!("{} only: {error}", bytes(figures.pinned)), theme::WATCH)
        }
    }
}

fn rows(app: &App) -> Vec<Row> {
    let Some(latest) = app.timeline().latest() else { return Vec::new() };
    let arenas = app
        .scope
        .processes(latest)
        .flat_map(|process| process.arenas.iter().map(move |(number, arena)| (process, *number, arena)));
    arenas.filter_map(|(process, number, arena)| row(process, number, arena)).collect()
}

fn row(process: &Process, number: u32, arena: &Arena) -> Option<Row> {
    let f = arena.figures.as_ref()?;
    let label = |tier: Option<Tier>| tier.map_or("?", Tier::label);
    let figure = |value: u64| Cell::maybe(bytes(value), Some(value as f64));
    let times = |value: u64| Cell::maybe(count(value), Some(value as f64));
    let share = f.committed as f64 / f.reserved.max(1) as f64;
    let refused = f.grows_refused.iter().copied().fold(0, u64::saturating_add);
    let kind = f.shared.map_or("?", |shared| if shared { "shared" } else { "private" });
    let tiers = format!("{}→{}", label(f.tier_wanted), label(f.tier));
    Some(Row {
        id: format!("{}/{number}", process.identity.pid),
        cells: vec![
            Cell::number(process.identity.pid.to_string(), process.identity.pid.into()).styled(theme::STRONG),
            Cell::text(arena.name.clone()),
            Cell::text(kind),
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

fn draw_detail(pane: &mut Pane<'_>, app: &App, chosen: Option<&str>) {
    let Some(latest) = app.timeline().latest() else { return };
    let found = app.scope.processes(latest).find_map(|process| {
        let of = |number: &u32| Some(format!("{}/{number}", process.identity.pid)) == chosen.map(str::to_owned);
        process.arenas.iter().find(|(number, _)| of(number)).map(|(_, arena)| (process, arena))
    });
    let Some((process, arena)) = found else { return };
    let Some(f) = arena.figures.as_ref() else { return };
    let width = pane.width();
    let title = format!("ARENA {} OF {} ", arena.name, process.identity.pid);
    let since = std::time::Duration::from_nanos(latest.at.saturating_sub(f.created_at));
    pane.heading(1, 0, width.saturating_sub(2), &title, &format!("{} old", age(since)));
    let tier = tier(f);
    let pin = pin(f);
    pane.line(1, 1, &[("tier      ", theme::DIM), (&tier.0, tier.1)]);
    pane.line(1, 2, &[("pinned    ", theme::DIM), (&pin.0, pin.1)]);
    let free_cells = f.spans;
    let parts = [
        ("spans", free_cells, '█', theme::LIVE),
        ("large", f.large, '▓', theme::LIVE),
        ("dirty", f.free_dirty, '▒', theme::SPARE),
        ("empty", f.free_clean, '░', theme::GOOD),
    ];
    pane.line(
        1,
        4,
        &[
            ("committed ", theme::DIM),
            (&bytes(f.committed), theme::STRONG),
            (&format!(" of {} reserved, peak {}", bytes(f.reserved), bytes(f.committed_peak)), theme::DIM),
        ],
    );
    let stacked: Vec<Part> =
        parts.iter().map(|(_, size, glyph, style)| Part { size: *size, glyph: *glyph, style: *style }).collect();
    pane.stack(11, 5, width.saturating_sub(13), &stacked);
    let mut x = 11;
    for (name, size, glyph, style) in parts {
        x = pane.line(
            x,
            6,
            &[(&format!("{glyph} "), style), (name, theme::PLAIN), (&format!(" {}  ", bytes(size)), theme::DIM)],
        );
    }
    let growth = if f.grow_blocked { ("blocked", theme::ALERT) } else { ("possible", theme::GOOD) };
    pane.line(
        1,
        8,
        &[
            ("growth    ", theme::DIM),
            (growth.0, growth.1),
            (&format!("   grown {} ×, shrunk {} ×", count(f.grows), count(f.shrinks)), theme::PLAIN),
            (&causes("   refused: ", &f.grows_refused), theme::WATCH),
            (&causes("   failed allocations: ", &f.allocs_failed), theme::ALERT),
        ],
    );
    pane.line(
        1,
        9,
        &[
            ("large     ", theme::DIM),
            (
                &format!("{} live, {} ever, {}", count(f.large_count), count(f.large_allocs), bytes(f.large)),
                theme::PLAIN,
            ),
        ],
    );
    let index = if f.by_mm_cid { "concurrency id" } else { "CPU" };
    let (rseq, all) = f.fronts;
    pane.line(
        1,
        10,
        &[
            ("fronts    ", theme::DIM),
            (&format!("{rseq} by {index} and {} slot locks", all.saturating_sub(rseq)), theme::PLAIN),
            (&format!("   page {}   slice {}", bytes(f.page_bytes), bytes(f.slice_bytes)), theme::DIM),
            (&format!("   stall over {} µs", f.stall_us), theme::DIM),
        ],
    );
}

fn causes(title: &str, counts: &[u64]) -> String {
    let named = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(number, times)| {
        let cause = Cause::from_u64(number as u64).map_or("unknown cause", Cause::label);
        format!("{} × {cause}", count(*times))
    });
    let list = named.collect::<Vec<_>>().join(", ");
    if list.is_empty() { String::new() } else { format!("{title}{list}") }
}
