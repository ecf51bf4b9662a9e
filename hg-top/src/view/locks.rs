//! Locks: how long they were waited for and held, side by side, and who was the worst.

use std::time::Duration;

use hg_probes::words::{LockId, Reason};

use super::paint::{Pane, miniature};
use super::table::{self, Cell, Column, Row, TableState};
use super::theme;
use crate::app::{App, View};
use crate::filter::Filter;
use crate::model::scope::LockSum;
use crate::model::timeline::Basis;
use crate::model::{ArenaId, Histogram, HoldWait, Snapshot};
use crate::unit::{age, class_size, count, ns, rate};

const COLUMNS: &[Column] = &[
    Column::right("LOCK", "lock", 5, 0),
    Column::left("REASON", "reason", 6, 0),
    Column::right("COUNT", "count", 5, 1),
    Column::right("p50", "wait_p50", 6, 3),
    Column::right("p99", "wait_p99", 6, 1),
    Column::right("max", "wait_max", 6, 1),
    Column::left("WAIT", "wait", 8, 4),
    Column::right("p50", "hold_p50", 6, 3),
    Column::right("p99", "hold_p99", 6, 1),
    Column::right("max", "hold_max", 6, 1),
    Column::left("HOLD", "hold", 8, 4),
    Column::right("STALLS", "stalls", 6, 5),
    Column::right("WAITED", "wait_sum", 8, 8),
    Column::right("HELD", "hold_sum", 8, 8),
    Column::left("WORST", "worst", 30, 9),
];

/// The column of the longest hold.
pub const LONGEST_HOLD: usize = 9;

/// Rows of the detail.
const DETAIL: u16 = 13;

/// Rows of the line about the worst.
const WORST: u16 = 3;

/// Draws the view.
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App) {
    let filter = app.filter(View::Locks);
    let mut state = app.tables[View::Locks as usize].clone();
    let rows = table::prepare(COLUMNS, rows(app), &state, &filter);
    let (width, height) = (pane.width(), pane.height());
    let detail = match (state.detail, height) {
        (true, 18..) => DETAIL,
        (_, 12..) => WORST,
        _ => 0,
    };
    groups(pane);
    let empty = if filter.is_empty() { "no lock was taken yet" } else { "no lock passes the filter" };
    table::draw(&mut pane.part(0, 1, width, height.saturating_sub(detail + 1)), COLUMNS, &rows, &mut state, empty);
    let mut below = pane.part(0, height - detail, width, detail);
    match detail {
        0 => {}
        WORST => worst(&mut below, app),
        _ => histograms(&mut below, app, state.selected.as_deref()),
    }
    app.tables[View::Locks as usize] = state;
}

/// The locks that were held longest, for the summary.
pub(super) fn top(pane: &mut Pane<'_>, app: &App) {
    let mut state = TableState::sorted(LONGEST_HOLD);
    let rows = table::prepare(COLUMNS, rows(app), &state, &Filter::default());
    groups(pane);
    let (width, height) = (pane.width(), pane.height().saturating_sub(1));
    let fit = usize::from(height.saturating_sub(1));
    table::draw(
        &mut pane.part(0, 1, width, height),
        COLUMNS,
        &rows[..rows.len().min(fit)],
        &mut state,
        "no lock was taken yet",
    );
}

/// The line over the header that tells the two sides apart.
fn groups(pane: &mut Pane<'_>) {
    let places = table::layout(COLUMNS, pane.width());
    for (title, columns) in [("WAIT ", 3..=6), ("HOLD ", 7..=10)] {
        let inside = || places.iter().filter(|(i, ..)| columns.contains(i));
        if let (Some(first), Some(last)) = (inside().next(), inside().next_back()) {
            let width = last.1 + COLUMNS[last.0].width.min(last.2) - first.1;
            pane.heading(first.1, 0, width, title, "");
        }
    }
}

fn rows(app: &App) -> Vec<Row> {
    let timeline = app.timeline();
    let Some(latest) = timeline.latest() else { return Vec::new() };
    let base = timeline.base(app.basis);
    let seconds = base.map_or(1.0, |base| timeline.seconds_since(base));
    // Counts over one interval, percentiles over ten: one interval alone holds too few.
    let counts = app.scope.locks(latest, base);
    let histograms = app.scope.locks(latest, timeline.histogram_base(app.basis));
    let row_of = |(key, sum): ((LockId, Reason), LockSum)| {
        let counted = counts.get(&key).and_then(|sum| sum.change.as_ref());
        row(app, latest, key, &sum, counted, seconds)
    };
    histograms.into_iter().map(row_of).collect()
}

fn row(
    app: &App,
    latest: &Snapshot,
    (lock, reason): (LockId, Reason),
    sum: &LockSum,
    counted: Option<&HoldWait>,
    seconds: f64,
) -> Row {
    let nothing = HoldWait::default();
    let shown = match app.basis {
        Basis::Total => &sum.total,
        _ => sum.change.as_ref().unwrap_or(&nothing),
    };
    let hits = match app.basis {
        Basis::Total => Some(sum.total.hold.count as f64),
        _ => counted.map(|counted| counted.hold.count as f64),
    };
    let hits_text = match app.basis {
        Basis::PerSecond => rate(hits.map(|hits| hits / seconds)),
        _ => hits.map_or("-".into(), |hits| count(hits as u64)),
    };
    let quantile = |histogram: &Histogram, percent| {
        let value = histogram.percentile(percent);
        Cell::maybe(value.map_or("-".into(), ns), value.map(|value| value as f64))
    };
    let stalls = sum.total.hold.stalls.saturating_add(sum.total.wait.stalls);
    let longest = |histogram: &Histogram| {
        let style = if histogram.stalls > 0 { theme::WATCH } else { theme::PLAIN };
        Cell::number(ns(histogram.max_ns), histogram.max_ns as f64).styled(style)
    };
    let small = |histogram: &Histogram| Cell::text(miniature(&histogram.miniature())).styled(theme::LIVE);
    let name = lock.class_size().map_or_else(|| lock.to_string(), class_size);
    let id = format!("{}/{}", lock.0, reason.label());
    let lock_style = if sum.torn { theme::WATCH } else { theme::STRONG };
    Row {
        id,
        cells: vec![
            Cell::number(name, f64::from(lock.0)).styled(lock_style),
            Cell::text(reason.label()),
            Cell::maybe(hits_text, hits),
            quantile(&shown.wait, 50.0),
            quantile(&shown.wait, 99.0),
            longest(&sum.total.wait),
            small(&shown.wait),
            quantile(&shown.hold, 50.0),
            quantile(&shown.hold, 99.0),
            longest(&sum.total.hold),
            small(&shown.hold),
            Cell::maybe(count(stalls), Some(stalls as f64)),
            Cell::number(ns(shown.wait.sum_ns), shown.wait.sum_ns as f64),
            Cell::number(ns(shown.hold.sum_ns), shown.hold.sum_ns as f64),
            Cell::text(whose(&sum.total.hold, sum.hold_of, latest)),
        ],
    }
}

/// When the longest was, and whose: `held 2 s ago by 4250 "io-2"`.
fn whose(histogram: &Histogram, of: Option<ArenaId>, latest: &Snapshot) -> String {
    if histogram.max_at_ns == 0 {
        return String::new();
    }
    let ago = age(Duration::from_nanos(latest.at.saturating_sub(histogram.max_at_ns)));
    let tid = histogram.max_tid;
    let thread = of.and_then(|of| latest.arena(of)).map_or_else(|| tid.to_string(), |of| of.thread(latest, tid));
    format!("{ago} ago by {thread}")
}

fn worst(pane: &mut Pane<'_>, app: &App) {
    let width = pane.width();
    pane.heading(
        1,
        0,
        width.saturating_sub(2),
        "WORST SINCE START ",
        "percentiles are right to their power of two, max exactly",
    );
    let Some(latest) = app.timeline().latest() else { return };
    let locks = app.scope.locks(latest, None);
    type Side = fn(&LockSum) -> (&Histogram, Option<ArenaId>);
    let hold: Side = |sum| (&sum.total.hold, sum.hold_of);
    let wait: Side = |sum| (&sum.total.wait, sum.wait_of);
    for (y, name, side) in [(1, "hold", hold), (2, "wait", wait)] {
        let Some(((lock, reason), sum)) = locks.iter().max_by_key(|(_, sum)| side(sum).0.max_ns) else { continue };
        let (histogram, of) = side(sum);
        if histogram.max_ns == 0 {
            continue;
        }
        pane.line(
            1,
            y,
            &[
                (name, theme::PLAIN),
                (" ", theme::PLAIN),
                (&ns(histogram.max_ns), theme::STRONG),
                (&format!("  {lock}, {}, ", reason.label()), theme::PLAIN),
                (&whose(histogram, of, latest), theme::DIM),
            ],
        );
    }
}

/// The two histograms of the selected lock, bucket by bucket.
fn histograms(pane: &mut Pane<'_>, app: &App, selected: Option<&str>) {
    let width = pane.width();
    let Some(latest) = app.timeline().latest() else { return };
    let locks = app.scope.locks(latest, None);
    let chosen = locks.iter().find(|((lock, reason), _)| selected == Some(&format!("{}/{}", lock.0, reason.label())));
    let Some(((lock, reason), sum)) = chosen else {
        pane.heading(1, 0, width.saturating_sub(2), "DETAIL", "");
        pane.put(1, 1, "choose a row with ↑ ↓", theme::DIM);
        return;
    };
    let title = format!("{}, {} ", lock.to_string().to_uppercase(), reason.label().to_uppercase());
    pane.heading(1, 0, width.saturating_sub(2), &title, "since the process started");
    let half = width.saturating_sub(2) / 2;
    side(&mut pane.part(1, 1, half.saturating_sub(1), DETAIL - 1), "waited", &sum.total.wait, sum.wait_of, latest);
    side(&mut pane.part(1 + half, 1, half, DETAIL - 1), "held", &sum.total.hold, sum.hold_of, latest);
}

fn side(pane: &mut Pane<'_>, name: &str, histogram: &Histogram, of: Option<ArenaId>, latest: &Snapshot) {
    let width = pane.width();
    pane.put(0, 0, &format!("{name} {} ×, longest {}", count(histogram.count), ns(histogram.max_ns)), theme::PLAIN);
    pane.put(0, 1, &whose(histogram, of, latest), theme::DIM);
    let rows = usize::from(pane.height()).saturating_sub(2);
    let used: Vec<usize> = (0..histogram.buckets.len()).filter(|i| histogram.buckets[*i] > 0).collect();
    let (Some(first), Some(last)) = (used.first(), used.last()) else { return };
    // The long end is what matters: with too many buckets the first row takes all the short ones.
    let from = (*first).max((last + 1).saturating_sub(rows));
    let most = histogram.buckets.iter().copied().max().unwrap_or(0).max(1);
    for (y, bucket) in (2..).zip(from..=*last) {
        let count_here = if bucket == from {
            histogram.buckets[..=bucket].iter().fold(0_u64, |sum, n| sum.saturating_add(*n))
        } else {
            histogram.buckets[bucket]
        };
        let end = hg_probes::page::bucket_end(bucket);
        let label = if end == u64::MAX { "longer".into() } else { format!("< {}", ns(end)) };
        pane.right(9, y, &label, theme::DIM);
        pane.right(16, y, &count(count_here), theme::PLAIN);
        pane.bar(17, y, width.saturating_sub(19), count_here as f64 / most as f64, theme::LIVE);
    }
}
