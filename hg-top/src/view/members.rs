//! Processes that share an arena: what each does, by its own word, and what it did; also those that died and those that are
//! not watched, as long as the arena's directory lists them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::table::{Cell, Column, Row};
use super::theme;
use crate::app::App;
use crate::model::member::{Counts, Stall};
use crate::model::timeline::Basis;
use crate::model::{FileId, Member, Process, Snapshot};
use crate::unit::{age, bytes, count, ns, rate};

pub(super) const COLUMNS: &[Column] = &[
    Column::right("PID", "pid", 7, 0),
    Column::right("PSS", "pss", 8, 3),
    Column::right("REFILLS", "refills", 7, 1),
    Column::right("FLUSHES", "flushes", 7, 5),
    Column::right("LARGE", "large", 6, 7),
    Column::right("STALLS", "stalls", 6, 2),
    Column::left("LAST STALL, AGO", "last_stall", 24, 2),
    Column::right("FAILED", "failed", 6, 8),
    Column::right("REPAIRS", "repairs", 7, 6),
    Column::right("RECOVERED", "recovered", 9, 6),
    Column::right("CPUS", "cpus", 4, 9),
    Column::right("UP", "up", 6, 4),
    Column::left("ROLE", "role", 22, 0),
];

/// What is known of a process in all the arenas that it shares.
#[derive(Default)]
struct Known<'a> {
    members: Vec<(FileId, &'a Member)>,
}

/// The rows: processes that are watched, then others of the directories.
pub(super) fn rows(app: &App) -> Vec<Row> {
    let Some(latest) = app.timeline().latest() else { return Vec::new() };
    let all = || latest.shared.iter().flat_map(|(file, shared)| shared.members.iter().flatten().map(|m| (*file, m)));
    let mut listed = BTreeSet::new();
    let mut rows = Vec::new();
    for process in latest.processes.values() {
        let identity = &process.identity;
        let is_it = |(file, member): &(FileId, &Member)| {
            let started = [identity.start_ticks, 0].contains(&member.start_ticks);
            process.shared.contains(file) && member.inner_pid == identity.inner_pid && started
        };
        let known = Known { members: all().filter(is_it).collect() };
        listed.extend(known.members.iter().map(|(_, member)| key(member)));
        rows.push(row(app, latest, Some(process), &known));
    }
    for (file, member) in all() {
        if listed.insert(key(member)) {
            rows.push(row(app, latest, None, &Known { members: vec![(file, member)] }));
        }
    }
    rows
}

fn key(member: &Member) -> (u32, u64) {
    (member.inner_pid, member.start_ticks)
}

impl Known<'_> {
    fn counts(&self) -> Option<Counts> {
        self.members.iter().map(|(_, member)| member.counts).reduce(|sum, more| sum.plus(&more))
    }

    /// What came since `base`, where all of that is known.
    fn change(&self, base: &Snapshot) -> Option<Counts> {
        let change = |(file, member): &(FileId, &Member)| {
            Some(member.counts.since(&base.shared.get(file)?.same(member)?.counts))
        };
        let changes: Option<Vec<Counts>> = self.members.iter().map(change).collect();
        changes?.into_iter().reduce(|sum, more| sum.plus(&more))
    }

    fn stall(&self) -> Option<Stall> {
        self.members.iter().filter_map(|(_, member)| member.stall).max_by_key(|stall| stall.at)
    }

    fn role(&self) -> Option<&str> {
        self.members.iter().map(|(_, member)| member.role.as_str()).find(|role| !role.is_empty())
    }
}

fn row(app: &App, latest: &Snapshot, process: Option<&Process>, known: &Known<'_>) -> Row {
    let timeline = app.timeline();
    let base = timeline.base(app.basis);
    let seconds = base.map_or(1.0, |base| timeline.seconds_since(base));
    let total = known.counts();
    let counted = if app.basis == Basis::Total { total } else { base.and_then(|base| known.change(base)) };
    let flow = |of: fn(&Counts) -> u64| {
        let value = counted.map(|counts| of(&counts) as f64);
        let text = match app.basis {
            Basis::PerSecond => rate(value.map(|value| value / seconds)),
            _ => counted.map_or("-".into(), |counts| count(of(&counts))),
        };
        Cell::maybe(text, value)
    };
    // Rare things are counted in all: a rate of them says nothing.
    let ever = |of: fn(&Counts) -> u64| {
        let value = total.map(|counts| of(&counts));
        Cell::maybe(value.map_or("-".into(), count), value.map(|value| value as f64))
    };
    let watch = |cell: Cell| match cell.key {
        super::table::Key::Number(number) if number > 0.0 => cell.styled(theme::WATCH),
        _ => cell,
    };
    let member = known.members.first().map(|(_, member)| *member);
    let memory = process.and_then(|process| process.memory);
    let pss = memory.map(|memory| memory.part.map_or(memory.rss, |part| part.resident));
    let up = process.map(|process| process.uptime(process.exited.unwrap_or(latest.time)));
    let cpus = known.members.iter().map(|(_, member)| member.cpus).max().filter(|cpus| *cpus > 0);
    let pid = process.map(|process| process.identity.pid).or(member.map(Member::shown_pid)).unwrap_or(0);
    let gone = process.map_or(member.is_some_and(|member| member.gone), |process| process.exited.is_some());
    let id = match (process, known.members.first()) {
        (None, Some((file, member))) => format!("{file}/{}/{}", member.inner_pid, member.start_ticks),
        _ => pid.to_string(),
    };
    let mut cells = vec![
        Cell::number(pid.to_string(), pid.into()).styled(theme::STRONG),
        Cell::maybe(pss.map_or("-".into(), bytes), pss.map(|pss| pss as f64)),
        flow(|c| c.refills),
        flow(|c| c.flushes),
        flow(|c| c.large_allocs),
        watch(ever(|c| c.stalls)),
        last_stall(known.stall(), latest),
        watch(ever(|c| c.failed)),
        ever(|c| c.repairs),
        ever(|c| c.recovered),
        Cell::maybe(cpus.map_or("-".into(), |cpus| cpus.to_string()), cpus.map(f64::from)),
        Cell::maybe(up.map_or("-".into(), age), up.map(|up| up.as_secs_f64())),
        Cell::text(role(process, known, gone)),
    ];
    if gone || process.is_none() {
        cells.iter_mut().for_each(|cell| cell.style = theme::DIM);
    } else if process.is_some_and(|process| process.page_error.is_some()) {
        cells[12].style = theme::WATCH;
    }
    Row { id, cells }
}

/// `4.20ms grid 2.0 s`.
fn last_stall(stall: Option<Stall>, latest: &Snapshot) -> Cell {
    let Some(stall) = stall else { return Cell::maybe("-", None) };
    let ago = age(Duration::from_nanos(latest.at.saturating_sub(stall.at)));
    Cell::number(format!("{} {} {ago}", ns(stall.ns), stall.lock), stall.at as f64)
}

fn role(process: Option<&Process>, known: &Known<'_>, gone: bool) -> String {
    let error = process.and_then(|process| process.page_error.as_ref()).filter(|_| !gone);
    let line = || process.map_or("", |process| process.identity.role.as_str());
    let role = known.role().unwrap_or_else(line);
    match (error, gone, process) {
        (Some(error), ..) => error.clone(),
        (None, true, _) => format!("dead: {role}"),
        (None, false, None) => format!("not watched: {role}"),
        (None, false, Some(_)) => role.to_owned(),
    }
}
