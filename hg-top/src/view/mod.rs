//! The screens. Each view is a function from the state to cells; drawing fetches nothing and fits any terminal.
//!
//! Every screen has the same frame: who is watched and how far to trust it, the tabs, the view, one line for the gravest
//! alert (or the filter being typed), and the keys.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::{App, View};
use crate::keys;
use crate::model::timeline::Basis;
use crate::model::{EbpfState, Snapshot};
use crate::process;
use crate::unit;

pub mod arena;
mod arenas;
mod classes;
mod events;
mod help;
pub mod locks;
pub mod map;
mod members;
mod page;
pub mod paint;
mod processes;
mod summary;
pub mod table;
pub mod theme;

use paint::Pane;

/// What one probe hit costs its thread: a breakpoint and the BPF program.
const HIT_SECONDS: f64 = 0.5e-6;

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    draw_into(frame.buffer_mut(), area, app, process::monotonic_ns());
}

/// The same into a buffer, at a given moment of the targets' clock.
pub fn draw_into(buffer: &mut Buffer, area: Rect, app: &mut App, now: u64) {
    let mut pane = Pane::new(buffer, area);
    let (width, height) = (pane.width(), pane.height());
    // Of a low terminal the frame takes its share only: the view comes first.
    let (top, bottom) = match height {
        0..6 => (1, 0),
        6..12 => (2, 1),
        _ => (3, 3),
    };
    header(&mut pane, app, now);
    if top > 1 {
        tabs(&mut pane, app);
    }
    if top > 2 {
        pane.rule(2);
    }
    if bottom > 1 {
        notice(&mut pane.part(0, height - 2, width, 1), app);
    }
    if bottom > 0 {
        footer(&mut pane.part(0, height - 1, width, 1), app);
    }
    let mut body = pane.part(0, top, width, height.saturating_sub(top + bottom));
    view(&mut body, app, now);
    if bottom > 1 {
        pane.rule(height - 3);
        let part = match app.view {
            _ if app.help.is_some() => None,
            View::Summary => None,
            View::Map => app.map.part(),
            view => app.tables[view as usize].part(),
        };
        if let Some(part) = part {
            pane.right(width.saturating_sub(2), height - 3, &format!(" {part} "), theme::DIM);
        }
    }
    if app.options.ascii {
        theme::to_ascii(buffer);
    }
    if app.options.colourless() {
        theme::remove_colours(buffer);
    }
}

fn view(body: &mut Pane<'_>, app: &mut App, now: u64) {
    if let Some(line) = app.help {
        return help::draw(body, app, line);
    }
    if app.timeline().latest().is_none() {
        body.put(1, 1, "reading the first sample …", theme::DIM);
        return;
    }
    match app.view {
        View::Summary => summary::draw(body, app),
        View::Classes => classes::draw(body, app),
        View::Locks => locks::draw(body, app),
        View::Arenas => arenas::draw(body, app),
        View::Processes => processes::draw(body, app),
        View::Map => map::draw(body, app, now),
        View::Events => events::draw(body, app),
    }
}

/// ` hg-top  redis-server 4242  up 3h12m          stats 0.2 s · eBPF 19/19 · lost 0 · every 1 s `
fn header(pane: &mut Pane<'_>, app: &App, now: u64) {
    const SUBJECT: u16 = 24;
    let width = pane.width();
    let x = pane.put(0, 0, " hg-top ", theme::SELECTED.patch(theme::STRONG));
    let Some(latest) = app.timeline().latest() else { return };
    let chips = chips(app, latest, now);
    let columns = |chips: &[Chip]| chips.iter().map(|(text, _)| text.chars().count() as u16 + 3).sum::<u16>();
    // The last chips are the most important ones.
    let fits = |from: &usize| x + SUBJECT + columns(&chips[*from..]) <= width;
    let shown = &chips[(0..chips.len()).find(fits).unwrap_or(chips.len())..];
    let start = width.saturating_sub(columns(shown));
    let room = start.saturating_sub(x + 1);
    pane.put(x + 1, 0, &crate::escape::cut(&subject(app, latest, room), room.into()), theme::STRONG);
    let mut x = start;
    for (index, (text, style)) in shown.iter().enumerate() {
        let between = if index == 0 { "  " } else { " · " };
        x = pane.line(x, 0, &[(between, theme::DIM), (text, *style)]);
    }
}

/// Who is watched, in at most `room` columns; how long it is up, if that fits.
fn subject(app: &App, latest: &Snapshot, room: u16) -> String {
    let one = |process: &crate::model::Process| {
        let name = format!("{} {}", process.identity.comm, process.identity.pid);
        // Said here too, as a low terminal has no line for it.
        if process.exited.is_some() {
            return format!("{name} exited");
        }
        let up = format!("{name}  up {}", unit::age(process.uptime(latest.time)));
        if up.chars().count() <= room.into() { up } else { name }
    };
    let mut watched = app.scope.processes(latest);
    match (watched.next(), watched.count()) {
        (Some(process), 0) => one(process),
        (Some(process), others) => format!("{} × {}", others + 1, process.identity.comm),
        (None, _) => String::new(),
    }
}

/// A short statement in the header.
type Chip = (String, ratatui::style::Style);

/// How far to trust what is shown; the most important statement last.
fn chips(app: &App, latest: &Snapshot, now: u64) -> Vec<Chip> {
    let mut chips = Vec::new();
    if let Some(share) = cost(app) {
        chips.push((format!("cost {:.1}%", share * 100.0), if share > 0.02 { theme::WATCH } else { theme::DIM }));
    }
    if !app.is_frozen() {
        let read_at = app.scope.processes(latest).map(|process| process.read_at).max().unwrap_or(0);
        let age = Duration::from_nanos(now.saturating_sub(read_at));
        let stale = age > app.options.interval * 3;
        chips.push((format!("stats {} ago", unit::age(age)), if stale { theme::WATCH } else { theme::DIM }));
    }
    chips.push(match &latest.ebpf {
        EbpfState::On { attached, found } if attached == found => (format!("eBPF {attached}/{found}"), theme::DIM),
        EbpfState::On { attached, found } => (format!("eBPF {attached}/{found}"), theme::WATCH),
        EbpfState::Off(_) => ("eBPF off".into(), theme::WATCH),
    });
    chips.push(match latest.lost_events() {
        0 => ("lost 0".into(), theme::DIM),
        lost => (format!("lost {}", unit::count(lost)), theme::ALERT),
    });
    if app.is_frozen() {
        chips.push((" FROZEN ".into(), theme::SELECTED));
    }
    chips
}

/// What tracing costs the targets: probe hits by their price, as a share of one CPU.
fn cost(app: &App) -> Option<f64> {
    let timeline = app.timeline();
    let (latest, previous) = (timeline.latest()?, timeline.previous()?);
    let hits = latest.hits().checked_sub(previous.hits())?;
    matches!(latest.ebpf, EbpfState::On { .. }).then(|| hits as f64 * HIT_SECONDS / timeline.seconds_since(previous))
}

fn tabs(pane: &mut Pane<'_>, app: &App) {
    let width = pane.width();
    let letters = match width {
        76.. => usize::MAX,
        56.. => 3,
        _ => 0,
    };
    let mut x = 0;
    for (index, view) in View::ALL.into_iter().enumerate() {
        let current = app.view == view && app.help.is_none();
        let name = if width < 100 { view.short_name() } else { view.name() };
        let name: String = name.chars().take(if current { usize::MAX } else { letters }).collect();
        let style = if current { theme::SELECTED } else { theme::PLAIN };
        x = pane.put(x, 1, &format!(" {} ", format!("{} {name}", index + 1).trim_end()), style);
        if view == View::Events {
            let fresh = app.alerts.fresh(app.now);
            if fresh > 0 {
                x = pane.put(x, 1, &format!("▲{fresh}"), theme::ALERT);
            }
        }
    }
    let mark = app.timeline().mark_age().filter(|_| app.basis == Basis::SinceMark);
    let long = mark.map_or_else(|| app.basis.label().into(), |age| format!("since mark, {}", unit::age(age)));
    let room = usize::from(width.saturating_sub(x + 1));
    let fits = |basis: &&str| basis.chars().count() < room;
    if let Some(basis) = [long.as_str(), app.basis.label(), app.basis.short_label()].iter().find(|basis| fits(basis)) {
        pane.right(width, 1, &format!("{basis} "), theme::DIM);
    }
}

/// The filter being typed, else what needs attention most, else a message, else why something is missing.
fn notice(pane: &mut Pane<'_>, app: &App) {
    let width = pane.width();
    let filter = &app.filters[app.view as usize];
    if app.typing {
        let x = pane.line(1, 0, &[("filter: ", theme::STRONG), (filter, theme::PLAIN), ("▏", theme::STRONG)]);
        if filter.is_empty() {
            pane.put(x + 1, 0, "a word, or a comparison such as size>=4096 live>1k   ⏎ keep  Esc drop", theme::DIM);
        }
        return;
    }
    let Some(latest) = app.timeline().latest() else { return };
    let watched = || app.scope.processes(latest);
    let exited = watched().find(|process| process.exited.is_some());
    if let Some(alert) = app.alerts.top(app.now).filter(|_| exited.is_none() || watched().count() > 1) {
        let age = format!("{} ago ", unit::age(app.now.duration_since(alert.last).unwrap_or_default()));
        let room = usize::from(width).saturating_sub(age.chars().count() + 2);
        let style = if alert.kind.severe() { theme::ALERT } else { theme::WATCH };
        let label = format!("▲ {} ", alert.kind.label());
        let text = crate::escape::cut(&alert.evidence, room.saturating_sub(label.chars().count()));
        pane.line(1, 0, &[(&label, style), (&text, theme::PLAIN)]);
        pane.right(width, 0, &age, theme::DIM);
        return;
    }
    let error = watched().find_map(|process| process.page_error.as_deref());
    let (text, style) = match (exited, error, app.message(), &latest.ebpf) {
        (Some(process), ..) => {
            let pid = process.identity.pid;
            let ago = process.exited.and_then(|at| app.now.duration_since(at).ok()).unwrap_or_default();
            (format!("process {pid} exited {} ago; its last figures are shown", unit::age(ago)), theme::WATCH)
        }
        (_, Some(error), ..) => (error.to_owned(), theme::WATCH),
        (_, _, Some(message), _) => (message.to_owned(), theme::PLAIN),
        _ if !filter.is_empty() => (format!("filter: {filter}   Esc drops it"), theme::PLAIN),
        (.., EbpfState::Off(why)) => (format!("eBPF off: {why}"), theme::WATCH),
        _ => ("● no alert in the last minute".to_owned(), theme::GOOD),
    };
    pane.put(1, 0, &crate::escape::cut(&text, usize::from(width).saturating_sub(2)), style);
}

fn footer(pane: &mut Pane<'_>, app: &App) {
    let mut x = 1;
    let always = "? help  q quit  ";
    let width = pane.width();
    let here = |binding: &&keys::Binding| !binding.word.is_empty() && binding.command.belongs(app.view);
    for binding in keys::BINDINGS.iter().filter(here) {
        let key = binding.shown.split(' ').next().unwrap_or(binding.shown);
        let word = match binding.command {
            keys::Command::Freeze if app.is_frozen() => "go on",
            keys::Command::Detail if app.view == View::Arenas => "map",
            _ => binding.word,
        };
        let needed = key.chars().count() + word.chars().count() + 3;
        let last = matches!(binding.command, keys::Command::Quit | keys::Command::Help);
        // The ways to help and out are always there.
        let reserve = if last { 0 } else { always.len() };
        if usize::from(x) + needed + reserve > usize::from(width) + 2 {
            continue;
        }
        x = pane.line(x, 0, &[(key, theme::STRONG), (" ", theme::PLAIN), (word, theme::DIM), ("  ", theme::PLAIN)]);
    }
}
