//! Events: the alerts with their evidence and what to do, then the log, each line saying what it means.

use std::time::{SystemTime, UNIX_EPOCH};

use super::paint::Pane;
use super::table::{self, Cell, Column, Row};
use super::theme;
use crate::alert::Alert;
use crate::app::{App, View};
use crate::event::Event;
use crate::log::Line;
use crate::model::EbpfState;
use crate::unit::{age, clock, count};
use hg_probes::ProbeId;

const COLUMNS: &[Column] = &[
    Column::left("UTC", "time", 8, 0),
    Column::left("PROBE", "probe", 12, 1),
    Column::right("PID", "pid", 7, 3),
    Column::right("TID", "tid", 7, 2),
    Column::left("WHAT IT MEANS", "meaning", 42, 0),
];

/// Rows of the detail of an event.
const DETAIL: u16 = 10;

/// Draws the view.
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App) {
    let (width, height) = (pane.width(), pane.height());
    // The detail of an event takes the room of the alerts.
    let for_alerts = if app.tables[View::Events as usize].detail { 0 } else { height.saturating_sub(5) };
    let alerts = alerts(&mut pane.part(0, 0, width, for_alerts), app);
    let filter = app.filter(View::Events);
    let mut state = app.tables[View::Events as usize].clone();
    let rows = table::prepare(COLUMNS, rows(app), &state, &filter);
    let left = height.saturating_sub(alerts);
    let detail = if state.detail && left > DETAIL + 3 { DETAIL } else { 0 };
    let empty = match app.timeline().latest().map(|latest| &latest.ebpf) {
        Some(EbpfState::Off(_)) => "events come from eBPF, which is off: see the line below",
        _ if filter.is_empty() => "no event yet",
        _ => "no event passes the filter",
    };
    table::draw(&mut pane.part(0, alerts, width, left - detail), COLUMNS, &rows, &mut state, empty);
    if detail > 0 {
        let event = state.selected.as_deref().and_then(|id| app.log.find(id)).map(|line| &line.last);
        draw_detail(&mut pane.part(0, height - detail, width, detail), event);
    }
    app.tables[View::Events as usize] = state;
}

/// Draws as many alerts as fit into half the pane; returns the rows taken.
fn alerts(pane: &mut Pane<'_>, app: &App) -> u16 {
    const ROWS: u16 = 3;
    let (width, height) = (pane.width(), pane.height());
    let all = app.alerts.all();
    if all.is_empty() || height < 6 {
        return 0;
    }
    let fit = usize::from((height / 2 / ROWS).max(1));
    let left_out = all.len().saturating_sub(fit);
    let note = if left_out > 0 { format!("{left_out} older ones not shown") } else { String::new() };
    pane.heading(1, 0, width.saturating_sub(2), "ALERTS", &note);
    let mut y = 1;
    for alert in all.into_iter().take(fit) {
        draw_alert(pane, y, app.now, alert);
        y += ROWS;
    }
    pane.heading(1, y, width.saturating_sub(2), "LOG", "newest first");
    y + 1
}

fn draw_alert(pane: &mut Pane<'_>, y: u16, now: SystemTime, alert: &Alert) {
    let width = pane.width();
    let style = match (alert.fresh(now), alert.kind.severe()) {
        (false, _) => theme::DIM,
        (true, true) => theme::ALERT,
        (true, false) => theme::WATCH,
    };
    let last = age(now.duration_since(alert.last).unwrap_or_default());
    let since = age(now.duration_since(alert.since).unwrap_or_default());
    let when = format!("{} ×, last {last} ago, since {since}", count(alert.count));
    let label = format!("▲ {} ", alert.kind.label());
    let x = pane.put(1, y, &label, style);
    let room = width.saturating_sub(x + 2 + when.chars().count() as u16 + 1);
    let who = if alert.pid == 0 { alert.subject.clone() } else { format!("{} in {}", alert.subject, alert.pid) };
    pane.put(x, y, &crate::escape::cut(who.trim_start_matches(" in "), room.into()), theme::STRONG);
    pane.right(width.saturating_sub(1), y, &when, theme::DIM);
    pane.put(3, y + 1, &alert.evidence, theme::PLAIN);
    let stack = match alert.stack_id {
        Some(id) => format!("   stack {id}: {}", alert.stack.join(" ← ")),
        None => String::new(),
    };
    let x = pane.line(3, y + 2, &[("next: ", theme::DIM), (alert.next_step, theme::PLAIN)]);
    pane.put(x, y + 2, &crate::escape::cut(&stack, width.saturating_sub(x + 1).into()), theme::DIM);
}

fn rows(app: &App) -> Vec<Row> {
    app.log.newest_first().filter(|line| app.scope.holds(line.first.pid)).map(row).collect()
}

fn row(line: &Line) -> Row {
    let event = &line.first;
    let style = match event.probe.id {
        ProbeId::LockStall | ProbeId::Corruption | ProbeId::AllocFailed => theme::ALERT,
        ProbeId::GrowRefused | ProbeId::GrowBlocked | ProbeId::OwnerDead => theme::WATCH,
        ProbeId::Shrink if line.grows == 0 => theme::GOOD,
        _ => theme::PLAIN,
    };
    let seconds = line.time().duration_since(UNIX_EPOCH).unwrap_or_default();
    Row {
        id: line.id(),
        cells: vec![
            Cell::number(clock(seconds.as_secs()), seconds.as_secs_f64()).styled(theme::DIM),
            Cell::text(line.name()).styled(style),
            Cell::number(event.pid.to_string(), event.pid.into()),
            Cell::number(event.tid.to_string(), event.tid.into()),
            Cell::text(line.meaning()),
        ],
    }
}

fn draw_detail(pane: &mut Pane<'_>, event: Option<&Event>) {
    let width = pane.width();
    let Some(event) = event else {
        pane.heading(1, 0, width.saturating_sub(2), "DETAIL", "");
        pane.put(1, 1, "choose a row with ↑ ↓", theme::DIM);
        return;
    };
    pane.heading(1, 0, width.saturating_sub(2), &format!("{} ", event.probe.name.to_uppercase()), "");
    let y = pane.wrap(1, 1, event.probe.doc, theme::DIM);
    let y = pane.wrap(1, y, &event.details(), theme::PLAIN);
    let title = match event.stack_id {
        Some(id) => format!("stack {id}, innermost first"),
        None => "no stack was taken".into(),
    };
    pane.put(1, y, &title, theme::DIM);
    for (y, frame) in (y + 1..pane.height()).zip(&event.stack) {
        pane.put(3, y, frame, theme::PLAIN);
    }
}
