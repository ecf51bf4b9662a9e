//! The summary: one addition that ends in the kernel's number, and how busy the slow paths are.

use ratatui::style::Style;

use super::paint::{Pane, Part, bar};
use super::{classes, locks, theme};
use crate::app::App;
use crate::model::reconcile::Sum;
use crate::model::timeline::{Basis, Point};
use crate::model::{Counters, HoldWait, Snapshot};
use crate::unit::{age, bytes, count, ns, percent, rate};

/// Columns from which the addition is drawn beside charts and tables.
const WIDE: u16 = 120;

/// Columns of the addition.
const ADDITION: u16 = 45;

/// Draws it.
pub(super) fn draw(pane: &mut Pane<'_>, app: &mut App) {
    let (width, height) = (pane.width(), pane.height());
    let wide = width >= WIDE && height >= 30;
    let Some(latest) = app.timeline().latest() else { return };
    let sum = Sum::of(latest, app.scope);
    addition(&mut pane.part(0, 0, ADDITION.min(width), height), &sum);
    if width > ADDITION + 20 {
        let columns = if wide { 34 } else { width - ADDITION - 2 };
        slow_paths(&mut pane.part(ADDITION + 1, 0, columns, height), app, latest);
    }
    if wide {
        charts(&mut pane.part(ADDITION + 37, 0, width - ADDITION - 38, 11), app, &sum);
    }
    let facts_width = width.saturating_sub(2);
    composition(&mut pane.part(1, 12, facts_width, 2), &sum);
    facts(&mut pane.part(1, 15, facts_width, height.saturating_sub(15)), app, latest, &sum);
    if wide {
        let rest = height.saturating_sub(20);
        let left = width / 2 - 8;
        pane.heading(1, 19, left - 2, "CLASSES BY LIVE BYTES", "2");
        classes::top(&mut pane.part(0, 20, left, rest), app);
        pane.heading(left + 1, 19, width - left - 2, "LOCKS BY LONGEST HOLD", "3");
        locks::top(&mut pane.part(left, 20, width - left, rest), app);
    }
}

fn addition(pane: &mut Pane<'_>, sum: &Sum) {
    let width = pane.width();
    pane.heading(1, 0, width.saturating_sub(1), "WHERE THE MEMORY IS", "of RSS");
    let difference = sum.difference();
    let (sign, name) = if difference < 0 { ("-", sum.excess()) } else { ("+", "stacks, other maps") };
    let kernel = if sum.once { "RSS, shared once" } else { "RSS + hugetlb" };
    let rows: [(&str, &str, u64, Style); 10] = [
        (" ", "live cells", sum.live_cells, theme::LIVE),
        ("+", "live large objects", sum.large, theme::LIVE),
        ("+", "cached cells", sum.cached, theme::SPARE),
        ("+", "free cells in spans", sum.free_cells, theme::SPARE),
        ("+", "free pages, dirty", sum.free_dirty, theme::SPARE),
        ("+", "tables", sum.tables, theme::SPARE),
        ("=", "hg", sum.hg(), theme::STRONG),
        ("+", "files and shared", sum.files, theme::OTHER),
        (sign, name, difference.unsigned_abs(), theme::OTHER),
        ("=", kernel, sum.kernel, theme::STRONG),
    ];
    for (y, (sign, name, part, style)) in (1..).zip(rows) {
        let total = sign == "=";
        let text = if total { theme::STRONG } else { theme::PLAIN };
        pane.put(1, y, sign, theme::DIM);
        pane.put(3, y, name, text);
        pane.right(32, y, &bytes(part), if part == 0 { theme::DIM } else { text });
        if y == 10 {
            pane.put(34, y, "the kernel", theme::DIM);
            continue;
        }
        let share = part as f64 / sum.kernel.max(1) as f64;
        if sign != "-" {
            pane.put(33, y, &bar(6, share), style);
        }
        pane.right(45, y, &percent(part, sum.kernel), theme::DIM);
    }
}

fn slow_paths(pane: &mut Pane<'_>, app: &App, latest: &Snapshot) {
    let timeline = app.timeline();
    let width = pane.width();
    let base = timeline.base(app.basis);
    let change = match app.basis {
        Basis::Total => {
            let totals = app.scope.classes(latest, None);
            Some(
                totals
                    .values()
                    .filter_map(|sum| sum.class.total)
                    .fold(Counters::default(), |sum, more| sum.plus(&more)),
            )
        }
        _ => {
            let changes = app.scope.classes(latest, base);
            let known: Vec<Counters> = changes.values().filter_map(|sum| sum.change).collect();
            (!known.is_empty()).then(|| known.iter().fold(Counters::default(), |sum, more| sum.plus(more)))
        }
    };
    let seconds = base.map_or(1.0, |base| timeline.seconds_since(base));
    let figure = |of: fn(&Counters) -> u64| match app.basis {
        Basis::PerSecond => rate(change.map(|change| of(&change) as f64 / seconds)),
        _ => change.map_or("-".into(), |change| count(of(&change))),
    };
    pane.heading(0, 0, width, "SLOW PATHS", app.basis.label());
    let series = |of: fn(&Point) -> f64| timeline.series(app.scope).map(of).collect::<Vec<f64>>();
    let spark_at = 23;
    let spark_width = width.saturating_sub(spark_at);
    let rows: [(&str, String, Option<Vec<f64>>); 6] = [
        ("cells reused", figure(|c| c.reused), Some(series(|p| p.reused))),
        ("cells carved", figure(|c| c.carved), Some(series(|p| p.carved))),
        ("cells flushed", figure(|c| c.flushed), None),
        ("refills", figure(|c| c.refills), None),
        ("flushes", figure(|c| c.flushes), None),
        ("cells drained", figure(|c| c.drained), None),
    ];
    for (y, (name, figure, series)) in (1..).zip(rows) {
        pane.put(0, y, name, theme::PLAIN);
        pane.right(21, y, &figure, theme::PLAIN);
        if let Some(series) = series {
            pane.spark(spark_at, y, spark_width, &series, theme::LIVE);
        }
    }
    let mut all = HoldWait::default();
    let mut recent = HoldWait::default();
    for sum in app.scope.locks(latest, timeline.histogram_base(app.basis)).into_values() {
        all.add(&sum.total);
        match app.basis {
            Basis::Total => recent.add(&sum.total),
            _ => sum.change.iter().for_each(|change| recent.add(change)),
        }
    }
    let note = if app.basis == Basis::PerSecond { "last 10 s" } else { app.basis.label() };
    pane.heading(0, 7, width, "LOCKS", note);
    let time = |value: Option<u64>| value.map_or("-".into(), ns);
    for (y, name, value) in [
        (8, "wait p99", time(recent.wait.percentile(99.0))),
        (9, "hold p99", time(recent.hold.percentile(99.0))),
        (10, "longest hold", ns(all.hold.max_ns)),
    ] {
        pane.put(0, y, name, theme::PLAIN);
        pane.right(21, y, &value, theme::PLAIN);
    }
    if all.hold.max_at_ns > 0 {
        let ago = std::time::Duration::from_nanos(latest.at.saturating_sub(all.hold.max_at_ns));
        pane.put(spark_at, 10, &format!("{} ago", age(ago)), theme::DIM);
    }
    let stalls = all.hold.stalls.saturating_add(all.wait.stalls);
    if stalls > 0 {
        pane.put(spark_at, 9, &format!("stalls {}", count(stalls)), theme::WATCH);
    }
}

fn charts(pane: &mut Pane<'_>, app: &App, sum: &Sum) {
    let width = pane.width();
    let points: Vec<Point> = app.timeline().series(app.scope).copied().collect();
    let span = age(std::time::Duration::from_secs_f64(points.len() as f64 * app.options.interval.as_secs_f64()));
    pane.heading(0, 0, width, "LIVE BYTES", &format!("last {span}"));
    let live: Vec<f64> = points.iter().map(|point| point.live as f64).collect();
    pane.chart(0, 1, width.saturating_sub(11), 5, &live, theme::LIVE);
    let most = live.iter().copied().fold(0.0, f64::max);
    pane.right(width, 1, &bytes(most as u64), theme::DIM);
    pane.right(width, 5, &bytes(sum.live()), theme::STRONG);
    pane.heading(0, 6, width, "RSS + HUGETLB ", "");
    let kernel: Vec<f64> = points.iter().map(|point| point.kernel as f64).collect();
    pane.chart(0, 7, width.saturating_sub(11), 4, &kernel, theme::SPARE);
    let most = kernel.iter().copied().fold(0.0, f64::max);
    pane.right(width, 7, &bytes(most as u64), theme::DIM);
    pane.right(width, 10, &bytes(sum.kernel), theme::STRONG);
}

/// The addition as one bar.
fn composition(pane: &mut Pane<'_>, sum: &Sum) {
    let other = sum.files.saturating_add(u64::try_from(sum.difference()).unwrap_or(0));
    let parts = [
        ("live", sum.live(), '█', theme::LIVE),
        ("cached", sum.cached, '▓', theme::SPARE),
        ("free", sum.free_cells.saturating_add(sum.free_dirty), '▒', theme::SPARE),
        ("tables", sum.tables, '░', theme::SPARE),
        ("not hg", other, '·', theme::OTHER),
    ];
    let stacked: Vec<Part> =
        parts.iter().map(|(_, size, glyph, style)| Part { size: *size, glyph: *glyph, style: *style }).collect();
    let width = pane.width();
    pane.stack(0, 0, width, &stacked);
    let total = parts.iter().map(|part| part.1).fold(0, u64::saturating_add);
    let mut x = 0;
    for (name, size, glyph, style) in parts {
        x = pane.line(
            x,
            1,
            &[
                (&format!("{glyph} "), style),
                (name, theme::PLAIN),
                (&format!(" {}   ", percent(size, total)), theme::DIM),
            ],
        );
    }
}

/// One line each for tier, growth, health.
fn facts(pane: &mut Pane<'_>, app: &App, latest: &Snapshot, sum: &Sum) {
    let arenas = || app.scope.arenas(latest).map(|of| of.arena);
    let figures = || arenas().filter_map(|arena| arena.figures.as_ref());
    let total = |of: fn(&crate::model::Figures) -> u64| figures().map(of).fold(0, u64::saturating_add);
    if let Some(first) = figures().next() {
        let got = super::arena::tier(first);
        let pin = super::arena::pin(first);
        let others = figures().count() - 1;
        let more = if others > 0 { format!("   +{others} arenas") } else { String::new() };
        pane.line(
            0,
            0,
            &[("tier    ", theme::DIM), (&got.0, got.1), ("   pin ", theme::DIM), (&pin.0, pin.1), (&more, theme::DIM)],
        );
    }
    let (committed, reserved, empty) = (bytes(sum.committed), bytes(sum.reserved), bytes(sum.free_clean));
    let times = format!("grown {} ×, shrunk {} ×", count(total(|f| f.grows)), count(total(|f| f.shrinks)));
    pane.line(
        0,
        1,
        &[
            ("growth  ", theme::DIM),
            (&committed, theme::PLAIN),
            (" of ", theme::DIM),
            (&reserved, theme::PLAIN),
            (", ", theme::DIM),
            (&empty, theme::GOOD),
            (" of it empty   ", theme::DIM),
            (&times, theme::DIM),
        ],
    );
    let list = |of: fn(&crate::model::Figures) -> &Vec<u64>| {
        figures().flat_map(|f| of(f).iter().copied()).fold(0, u64::saturating_add)
    };
    let blocked = figures().filter(|f| f.grow_blocked).count() as u64;
    let torn: u64 = arenas().map(|arena| u64::from(arena.torn)).sum();
    let mut x = pane.put(0, 2, "health  ", theme::DIM);
    for (name, number, bad) in [
        ("corruption", list(|f| &f.corruptions), theme::ALERT),
        ("failed allocations", list(|f| &f.allocs_failed), theme::ALERT),
        ("growth blocked", blocked, theme::WATCH),
        ("torn", torn, theme::WATCH),
    ] {
        let style = if number == 0 { theme::GOOD } else { bad };
        x = pane.line(x, 2, &[(name, theme::DIM), (" ", theme::DIM), (&count(number), style), ("   ", theme::DIM)]);
    }
}
