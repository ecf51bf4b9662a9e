//! Processes: one line each, with the sources of its figures. Those that share an arena have a table of their own
//! (`members.rs`).

use super::members;
use super::paint::{Pane, spark};
use super::table::{self, Cell, Column, Row};
use super::theme;
use crate::app::{App, View};
use crate::model::Counters;
use crate::model::reconcile::Sum;
use crate::model::scope::Scope;
use crate::model::timeline::Basis;
use crate::unit::{age, bytes, count, rate};

const COLUMNS: &[Column] = &[
    Column::right("PID", "pid", 7, 0),
    Column::right("LIVE", "live", 8, 0),
    Column::right("HG", "hg", 8, 2),
    Column::right("RSS", "rss", 8, 1),
    Column::right("THREADS", "threads", 7, 5),
    Column::right("REUSED", "reused", 7, 1),
    Column::right("CARVED", "carved", 7, 2),
    Column::right("FLUSHED", "flushed", 7, 4),
    Column::right("UP", "up", 6, 3),
    Column::left("SOURCES", "sources", 10, 6),
    Column::left("LIVE, LAST 10 MIN", "trend", 24, 8),
    Column::left("ROLE", "role", 22, 0),
];

/// Draws the view.
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App) {
    let sharing = app.timeline().latest().is_some_and(|latest| !latest.shared.is_empty());
    let (columns, all) = if sharing { (members::COLUMNS, members::rows(app)) } else { (COLUMNS, rows(app)) };
    let filter = app.filter(View::Processes);
    let mut state = app.tables[View::Processes as usize].clone();
    let rows = table::prepare(columns, all, &state, &filter);
    let (width, height) = (pane.width(), pane.height());
    table::draw(&mut pane.part(0, 0, width, height), columns, &rows, &mut state, "no process passes the filter");
    if usize::from(height) > rows.len() + 3 {
        pane.put(1, height - 1, "⏎ shows the selected process alone, p the next one, Esc all together", theme::DIM);
    }
    app.tables[View::Processes as usize] = state;
}

fn rows(app: &App) -> Vec<Row> {
    let timeline = app.timeline();
    let Some(latest) = timeline.latest() else { return Vec::new() };
    let base = timeline.base(app.basis);
    let seconds = base.map_or(1.0, |base| timeline.seconds_since(base));
    latest
        .processes
        .values()
        .map(|process| {
            let identity = &process.identity;
            let scope = Scope::One(identity.pid);
            let sum = Sum::own(process);
            let classes = scope.classes(latest, base);
            let counted: Vec<Counters> = classes
                .values()
                .filter_map(|sum| if app.basis == Basis::Total { sum.class.total } else { sum.change })
                .collect();
            let counted =
                (!counted.is_empty()).then(|| counted.iter().fold(Counters::default(), |sum, more| sum.plus(more)));
            let flow = |of: fn(&Counters) -> u64| {
                let value = counted.map(|counters| of(&counters) as f64);
                let text = match app.basis {
                    Basis::PerSecond => rate(value.map(|value| value / seconds)),
                    _ => counted.map_or("-".into(), |counters| count(of(&counters))),
                };
                Cell::maybe(text, value)
            };
            let figure = |value: u64| Cell::maybe(bytes(value), Some(value as f64));
            let up = process.uptime(process.exited.unwrap_or(latest.time));
            let live: Vec<f64> = timeline.series(scope).map(|point| point.live as f64).collect();
            let threads = process.memory.map_or(0, |memory| memory.threads);
            let mut cells = vec![
                Cell::number(identity.pid.to_string(), identity.pid.into()).styled(theme::STRONG),
                figure(sum.live()),
                figure(sum.hg()),
                figure(sum.kernel),
                Cell::maybe(count(threads), Some(threads as f64)),
                flow(|c| c.reused),
                flow(|c| c.carved),
                flow(|c| c.flushed),
                Cell::number(age(up), up.as_secs_f64()),
                Cell::text(sources(process)),
                Cell::text(spark(&live, 24)).styled(theme::LIVE),
                Cell::text(role(process)),
            ];
            if process.exited.is_some() {
                cells.iter_mut().for_each(|cell| cell.style = theme::DIM);
            } else if process.page_error.is_some() {
                cells[11].style = theme::WATCH;
            }
            Row { id: identity.pid.to_string(), cells }
        })
        .collect()
}

fn sources(process: &crate::model::Process) -> &'static str {
    match process.sources().as_slice() {
        [] => "none",
        [_, _] => "page, eBPF",
        ["ebpf"] => "eBPF",
        _ => "page",
    }
}

fn role(process: &crate::model::Process) -> String {
    match (&process.exited, &process.page_error) {
        (Some(_), _) => format!("exited: {}", process.identity.role),
        (None, Some(error)) => error.clone(),
        (None, None) => process.identity.role.clone(),
    }
}
