//! Size classes: what is live, cached, carved and reused, and how full the spans are.

use super::paint::{Pane, bar, spark};
use super::table::{self, Cell, Column, Row};
use super::theme;
use crate::app::{App, View};
use crate::filter::Filter;
use crate::model::scope::ClassSum;
use crate::model::timeline::Basis;
use crate::model::{Counters, Snapshot};
use crate::unit::{bytes, class_size, count, ns, percent, rate};

const COLUMNS: &[Column] = &[
    Column::right("SIZE", "size", 6, 0),
    Column::right("LIVE", "live", 6, 0),
    Column::right("BYTES", "bytes", 8, 1),
    Column::right("CACHED", "cached", 6, 3),
    Column::right("REUSED", "reused", 7, 1),
    Column::right("CARVED", "carved", 7, 1),
    Column::right("REFILLS", "refills", 7, 4),
    Column::right("FLUSHES", "flushes", 7, 6),
    Column::right("FLUSHED", "flushed", 7, 8),
    Column::right("SPANS", "spans", 6, 7),
    Column::right("IN SPANS", "span_bytes", 8, 7),
    Column::right("FREE", "free", 6, 9),
    Column::left("OCCUPANCY", "occupancy", 16, 2),
    Column::left("LIVE, LAST 10 MIN", "trend", 30, 10),
];

/// Rows of the detail.
const DETAIL: u16 = 8;

/// Draws the view.
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App) {
    let filter = app.filter(View::Classes);
    let mut state = app.tables[View::Classes as usize].clone();
    let rows = table::prepare(COLUMNS, rows(app), &state, &filter);
    let (width, height) = (pane.width(), pane.height());
    let detail = if state.detail && height > DETAIL + 4 { DETAIL } else { 0 };
    let empty = if filter.is_empty() { "no class in use yet" } else { "no class passes the filter" };
    table::draw(&mut pane.part(0, 0, width, height - detail), COLUMNS, &rows, &mut state, empty);
    if detail > 0 {
        let size = state.selected.as_deref().and_then(|id| id.parse().ok());
        draw_detail(&mut pane.part(0, height - detail, width, detail), app, size);
    }
    app.tables[View::Classes as usize] = state;
}

/// The classes with the most live bytes, for the summary.
pub(super) fn top(pane: &mut Pane<'_>, app: &App) {
    let mut state = table::TableState::sorted(2);
    let rows = table::prepare(COLUMNS, rows(app), &state, &Filter::default());
    let fit = usize::from(pane.height().saturating_sub(1));
    table::draw(pane, COLUMNS, &rows[..rows.len().min(fit)], &mut state, "no class in use yet");
}

fn rows(app: &App) -> Vec<Row> {
    let timeline = app.timeline();
    let Some(latest) = timeline.latest() else { return Vec::new() };
    let base = timeline.base(app.basis);
    let seconds = base.map_or(1.0, |base| timeline.seconds_since(base));
    let used = |sum: &ClassSum| sum.class.cells > 0 || sum.class.total.unwrap_or_default() != Counters::default();
    app.scope
        .classes(latest, base)
        .into_iter()
        .filter(|(_, sum)| used(sum))
        .map(|(size, sum)| row(app, size, &sum, seconds))
        .collect()
}

fn row(app: &App, size: u32, sum: &ClassSum, seconds: f64) -> Row {
    let class = &sum.class;
    let live_bytes = sum.live.map(|live| live.saturating_mul(size.into()));
    let counted = match app.basis {
        Basis::Total => class.total,
        _ => sum.change,
    };
    let flow = |of: fn(&Counters) -> u64| {
        let value = counted.map(|counters| of(&counters) as f64);
        match app.basis {
            Basis::PerSecond => Cell::maybe(rate(value.map(|value| value / seconds)), value),
            _ => Cell::maybe(counted.map_or("-".into(), |counters| count(of(&counters))), value),
        }
    };
    let share = sum.live.map_or(0.0, |live| live as f64 / class.cells.max(1) as f64);
    let occupancy = format!("{} {:>4}", bar(11, share), percent(sum.live.unwrap_or(0), class.cells));
    let trend: Vec<f64> = app.timeline().class_series(size).iter().map(|cells| *cells as f64).collect();
    let name = if class.torn { format!("~{}", class_size(size)) } else { class_size(size) };
    let size_style = if class.torn { theme::WATCH } else { theme::STRONG };
    let free = class.cells.saturating_sub(sum.live.unwrap_or(0)).saturating_sub(class.cached());
    Row {
        id: size.to_string(),
        cells: vec![
            Cell::number(name, size.into()).styled(size_style),
            Cell::maybe(sum.live.map_or("-".into(), count), sum.live.map(|live| live as f64)),
            Cell::maybe(live_bytes.map_or("-".into(), bytes), live_bytes.map(|bytes| bytes as f64)),
            Cell::maybe(count(class.cached()), Some(class.cached() as f64)),
            flow(|c| c.reused),
            flow(|c| c.carved),
            flow(|c| c.refills),
            flow(|c| c.flushes),
            flow(|c| c.flushed),
            Cell::maybe(count(class.spans), Some(class.spans as f64)),
            Cell::maybe(bytes(class.span_bytes), Some(class.span_bytes as f64)),
            Cell::maybe(count(free), Some(free as f64)),
            Cell::number(occupancy, share).styled(theme::LIVE),
            Cell::text(spark(&trend, 30)).styled(theme::LIVE),
        ],
    }
}

fn draw_detail(pane: &mut Pane<'_>, app: &App, size: Option<u32>) {
    let width = pane.width();
    let timeline = app.timeline();
    let (Some(latest), Some(size)) = (timeline.latest(), size) else {
        pane.heading(1, 0, width.saturating_sub(2), "DETAIL", "");
        pane.put(1, 1, "choose a row with ↑ ↓", theme::DIM);
        return;
    };
    let Some(sum) = app.scope.classes(latest, None).get(&size).copied() else { return };
    let total = sum.class.total.unwrap_or_default();
    let title = format!("CLASS {} ", class_size(size));
    pane.heading(1, 0, width.saturating_sub(2), &title, "since the process started");
    let carved = percent(total.carved, total.carved.saturating_add(total.reused));
    let batch =
        |cells: u64, hits: u64| if hits == 0 { "-".into() } else { format!("{:.1}", cells as f64 / hits as f64) };
    let facts = [
        ("reused", count(total.reused), format!("{} of all cells handed out were new", carved)),
        (
            "carved",
            count(total.carved),
            format!("{} spans, {} in them", count(sum.class.spans), count(sum.class.cells)),
        ),
        ("refills", count(total.refills), format!("{} cells each", batch(total.reused + total.carved, total.refills))),
        ("flushes", count(total.flushes), format!("{} cells each", batch(total.flushed, total.flushes))),
        (
            "cached",
            count(sum.class.cached()),
            format!(
                "{} in front caches, {} in the transfer cache",
                sum.class.front_cells.map_or("?".into(), count),
                count(sum.class.transfer_cells)
            ),
        ),
    ];
    for (y, (name, figure, note)) in (1..).zip(&facts) {
        pane.put(1, y, name, theme::PLAIN);
        pane.right(18, y, figure, theme::STRONG);
        pane.put(20, y, note, theme::DIM);
    }
    lock_lines(pane, app, latest, size);
    if width > 110 {
        let series: Vec<f64> = timeline.class_series(size).iter().map(|cells| *cells as f64).collect();
        pane.chart(70, 1, width - 72, 6, &series, theme::LIVE);
        pane.put(70, 7, "live cells, last 10 min", theme::DIM);
    }
}

fn lock_lines(pane: &mut Pane<'_>, app: &App, latest: &Snapshot, size: u32) {
    let locks = app.scope.locks(latest, None);
    let mut own: Vec<_> = locks.iter().filter(|((lock, _), _)| lock.class_size() == Some(size)).collect();
    own.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.total.hold.count));
    let time = |value: Option<u64>| value.map_or("-".into(), ns);
    for (y, ((_, reason), sum)) in (6..).zip(own.into_iter().take(2)) {
        let text = format!(
            "wait p99 {}  max {}   hold p99 {}  max {}",
            time(sum.total.wait.percentile(99.0)),
            ns(sum.total.wait.max_ns),
            time(sum.total.hold.percentile(99.0)),
            ns(sum.total.hold.max_ns)
        );
        pane.put(1, y, &format!("lock, {}", reason.label()), theme::PLAIN);
        pane.put(20, y, &text, theme::DIM);
    }
}
