//! One arena in full: what backs it, how much it has, how it grows and gives back, what maintenance decided, what to do.

use std::time::Duration;

use hg_probes::words::{Cause, Tier, TierReason};
use ratatui::style::Style;

use super::paint::{Pane, Part, bar};
use super::theme;
use crate::advise::{self, Advice, Sure};
use crate::app::App;
use crate::model::scope::same_arena;
use crate::model::{ArenaRef, Figures, MonotonicNs, Policy};
use crate::unit::{age, bytes, count, os_error};

/// Where the figures of a line begin.
const LABEL: u16 = 11;

/// Where the bars begin.
const BARS: u16 = LABEL + 10;

/// What is said of an arena that came over a fork.
const INHERITED: &str = "it came over a fork: it takes frees and gives memory back, and does not grow";

/// A line of figures: its label, then pieces.
struct Fact(&'static str, Vec<(String, Style)>);

/// What is known of an arena.
pub(super) struct Known<'a> {
    pub(super) of: ArenaRef<'a>,
    pub(super) figures: &'a Figures,
    /// When it was looked at.
    pub(super) at: MonotonicNs,
    pub(super) advice: Option<Advice>,
}

impl<'a> Known<'a> {
    /// Of an arena whose page can be read.
    pub(super) fn of(app: &'a App, of: ArenaRef<'a>) -> Option<Known<'a>> {
        let timeline = app.timeline();
        let figures = of.arena.figures.as_ref()?;
        let at = timeline.latest()?.at;
        let before = timeline.previous().and_then(|before| same_arena(before, &of)?.figures.as_ref());
        let advice = advise::advise(figures, before, at, &app.host);
        Some(Known { of, figures, at, advice })
    }
}

/// `private`, `inherited` over a fork, or `shared`.
pub fn kind(figures: &Figures) -> &'static str {
    match figures.shared {
        Some(true) => "shared",
        Some(false) if figures.inherited => "inherited",
        Some(false) => "private",
        None => "?",
    }
}

/// Who shares an arena, who died and what was put right: `12 live, 1 dead   owner deaths 3, recovered 5`; empty for a private one.
pub fn sharing(of: &ArenaRef<'_>) -> String {
    let (Some(shared), Some(f)) = (of.shared, &of.arena.figures) else { return String::new() };
    let (live, dead) = shared.count();
    let unwatched = match shared.unwatched() {
        0 => String::new(),
        unwatched => format!(" ({unwatched} not watched)"),
    };
    let dead = if dead > 0 { format!(", {dead} dead") } else { String::new() };
    let stranded = if f.stranded > 0 { format!(", stranded {}", bytes(f.stranded)) } else { String::new() };
    let (deaths, recovered) = (count(f.owner_deaths), count(f.recovered));
    format!("{live} live{unwatched}{dead}   owner deaths {deaths}, recovered {recovered}{stranded}")
}

/// Draws the figures; returns the line after them. The advice is one of them unless it has a place of its own.
pub(super) fn figures(pane: &mut Pane<'_>, known: &Known<'_>, with_advice: bool) -> u16 {
    let (width, height) = (pane.width(), pane.height());
    let f = known.figures;
    let title = format!("ARENA {} OF {} ", known.of.arena.name, known.of.whose());
    let since = Duration::from_nanos(known.at.saturating_sub(f.created_at));
    pane.heading(1, 0, width.saturating_sub(2), &title, &format!("{} old", age(since)));
    let mut y = 1;
    let mut first = backing(f);
    let sharing = sharing(&known.of);
    if !sharing.is_empty() {
        let style = if f.owner_deaths > 0 || f.stranded > 0 { theme::WATCH } else { theme::PLAIN };
        first.insert(0, Fact("shared by", vec![(sharing, style)]));
    } else if f.inherited {
        first.insert(0, Fact("inherited", vec![(INHERITED.into(), theme::PLAIN)]));
    }
    for Fact(label, pieces) in first {
        fact(pane, y, label, &pieces);
        y += 1;
    }
    y = amounts(pane, y, f);
    let mut last = vec![growth(f, known.at), give_back(f, known.of.arena.policy.as_ref(), known.at)];
    if with_advice && let Some(advice) = &known.advice {
        last.push(Fact("advice", summary(advice)));
    }
    if height > y + 12 {
        last.push(objects(f));
        last.push(fronts(f));
    }
    for Fact(label, pieces) in last {
        fact(pane, y, label, &pieces);
        y += 1;
    }
    y
}

/// Writes a line; what does not fit is cut with an ellipsis.
fn fact(pane: &mut Pane<'_>, y: u16, label: &str, pieces: &[(String, Style)]) {
    pane.put(1, y, label, theme::DIM);
    let end = pane.width().saturating_sub(1);
    pieces.iter().fold(1 + LABEL, |x, (text, style)| {
        let room = usize::from(end.saturating_sub(x));
        pane.put(x, y, &crate::escape::cut(text, room), *style)
    });
}

/// `4K instead of THP: …`, and whether that is fine.
pub fn tier(figures: &Figures) -> (String, Style) {
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
pub fn pin(figures: &Figures) -> (String, Style) {
    match (figures.pin_wanted, figures.pin_errno) {
        (false, _) => ("not asked".into(), theme::PLAIN),
        (true, 0) => (format!("{} of {}", bytes(figures.pinned), bytes(figures.committed)), theme::GOOD),
        (true, errno) => {
            let (pinned, committed) = (bytes(figures.pinned), bytes(figures.committed));
            (format!("{pinned} of {committed} only: {}", os_error(errno)), theme::WATCH)
        }
    }
}

/// What each tier backs: `THP 312 MiB, 4K 12.0 MiB`; empty if no page tells.
pub fn tiers(figures: &Figures) -> String {
    named(&figures.tier_bytes, |number, size| {
        let tier = Tier::from_u64(number).map_or("unknown tier", Tier::label);
        format!("{tier} {}", bytes(size))
    })
}

/// Why it was stepped down from the tier wanted: `3 × hugetlb pool empty`.
pub fn steps_down(figures: &Figures) -> String {
    named(&figures.tier_reasons, |number, times| {
        let reason = TierReason::from_u64(number);
        if matches!(reason, Some(TierReason::Obtained | TierReason::NotAsked)) {
            return String::new();
        }
        format!("{} × {}", count(times), reason.map_or("unknown reason", TierReason::label))
    })
}

/// Refusals or failures by cause: `2 × cap reached`.
pub fn causes(counts: &[u64]) -> String {
    named(counts, |number, times| {
        format!("{} × {}", count(times), Cause::from_u64(number).map_or("unknown cause", Cause::label))
    })
}

/// The words of all counts but 0, the greatest first: there may not be room for all.
fn named(counts: &[u64], name: impl Fn(u64, u64) -> String) -> String {
    let mut known: Vec<(usize, u64)> = counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
    known.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let words = known.into_iter().map(|(number, count)| name(number as u64, count));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Tier and pin; lines that have nothing to say are left out.
fn backing(f: &Figures) -> Vec<Fact> {
    let (tier, pin) = (tier(f), pin(f));
    let mut facts = vec![Fact("tier", vec![tier])];
    if !f.pin_wanted {
        // Not worth a line of its own.
        facts[0].1.extend([("   pin ".into(), theme::DIM), pin.clone()]);
    }
    let (tiers, steps) = (tiers(f), steps_down(f));
    if !tiers.is_empty() {
        facts.push(Fact("backed by", vec![(tiers, theme::PLAIN)]));
    }
    if !steps.is_empty() {
        facts.push(Fact("steps down", vec![(steps, theme::WATCH)]));
    }
    if f.pin_wanted {
        facts.push(Fact("pinned", vec![pin]));
    }
    facts
}

/// Used, committed, floor and ceiling as bars to the same scale, with the peaks; returns the line after them.
fn amounts(pane: &mut Pane<'_>, mut y: u16, f: &Figures) -> u16 {
    let width = pane.width().saturating_sub(BARS + 18).min(60);
    let most = [f.used(), f.used_peak, f.committed, f.committed_peak].into_iter().fold(1, u64::max);
    let column = |size: u64| (size as f64 / most as f64 * f64::from(width)).round() as u16;
    let parts = [
        ("spans", f.spans, '█', theme::LIVE),
        ("large", f.large, '▓', theme::LIVE),
        ("dirty", f.free_dirty, '▒', theme::SPARE),
        ("empty", f.free_clean, '░', theme::GOOD),
    ];
    let stacked: Vec<Part> =
        parts.iter().map(|(_, size, glyph, style)| Part { size: *size, glyph: *glyph, style: *style }).collect();
    for (label, size, peak) in [("used", f.used(), f.used_peak), ("committed", f.committed, f.committed_peak)] {
        pane.put(1, y, label, theme::DIM);
        pane.right(BARS - 1, y, &bytes(size), theme::STRONG);
        match label {
            "used" => drop(pane.put(BARS, y, &bar(width, size as f64 / most as f64), theme::LIVE)),
            _ => pane.stack(BARS, y, column(size).max(1), &stacked),
        }
        if peak > size {
            pane.put(BARS + column(peak).min(width), y, "│", theme::DIM);
        }
        pane.put(BARS + width + 2, y, &format!("peak {}", bytes(peak.max(size))), theme::DIM);
        y += 1;
    }
    let mut x = 1 + LABEL;
    for (name, size, glyph, style) in parts {
        let glyph = format!("{glyph} ");
        x = pane.line(x, y, &[(&glyph, style), (name, theme::PLAIN), (&format!(" {} ", bytes(size)), theme::DIM)]);
    }
    y += 1;
    pane.put(1, y, "floor", theme::DIM);
    pane.right(BARS - 1, y, &bytes(f.floor), theme::PLAIN);
    let x = pane.line(BARS, y, &[("ceiling ", theme::DIM), (&bytes(f.ceiling), theme::PLAIN)]);
    pane.line(x, y, &[("   reserved ", theme::DIM), (&bytes(f.reserved), theme::PLAIN)]);
    y + 1
}

/// Whether it can grow, and if not, why and since when.
fn growth(f: &Figures, now: MonotonicNs) -> Fact {
    let mut pieces = match f.grow_blocked {
        true => {
            let cause = f.blocked_cause.map_or("unknown cause", Cause::label);
            let since = Duration::from_nanos(now.saturating_sub(f.blocked_since));
            let since = if f.blocked_since > 0 { format!(", for {}", age(since)) } else { String::new() };
            vec![(format!("BLOCKED: {cause}{since}"), theme::ALERT)]
        }
        false => vec![("possible".to_owned(), theme::GOOD)],
    };
    pieces.push((format!("   grown {} ×, shrunk {} ×", count(f.grows), count(f.shrinks)), theme::PLAIN));
    for (title, counts, style) in
        [("refused", &f.grows_refused, theme::WATCH), ("failed", &f.allocs_failed, theme::ALERT)]
    {
        let causes = causes(counts);
        if !causes.is_empty() {
            pieces.push((format!("   {title} {causes}"), style));
        }
    }
    Fact("growth", pieces)
}

/// Who gives memory back, and whether any is on its way.
fn give_back(f: &Figures, policy: Option<&Policy>, now: MonotonicNs) -> Fact {
    let mut pieces = match f.limbo {
        0 => vec![("limbo 0".to_owned(), theme::GOOD)],
        bytes => vec![(format!("limbo {}", self::bytes(bytes)), theme::WATCH)],
    };
    let decay = age(Duration::from_millis(f.decay_ms));
    let who = match f.maintenance_tid {
        0 => "its host".into(),
        tid => format!("thread {tid}"),
    };
    let text = match policy.and_then(|policy| Some((policy.ticks, policy.idle(now)?))) {
        Some((ticks, idle)) => format!("   {who}: {} ticks, last {} ago, decay {decay}", count(ticks), age(idle)),
        None if f.maintenance_tid != 0 => format!("   {who} maintains it, no tick yet, decay {decay}"),
        None => "   nobody maintains it: pages go as frees empty them".into(),
    };
    pieces.push((text, theme::PLAIN));
    Fact("give-back", pieces)
}

/// `352m:608m, sure: low (up for 44 s only: …)`.
fn summary(advice: &Advice) -> Vec<(String, Style)> {
    let short = |doubt: &String| doubt.split(':').next().unwrap_or_default().to_owned();
    let why = advice.doubts.first().map_or_else(String::new, |doubt| format!(" ({})", short(doubt)));
    vec![(advice.setting(), theme::STRONG), (format!("   sure: {}{why}", advice.sure.label()), sure(advice.sure))]
}

fn sure(sure: Sure) -> Style {
    match sure {
        Sure::High => theme::GOOD,
        Sure::Medium => theme::PLAIN,
        Sure::Low => theme::DIM,
    }
}

fn objects(f: &Figures) -> Fact {
    let text = format!("{} live, {} ever, {}", count(f.large_count), count(f.large_allocs), bytes(f.large));
    Fact("large", vec![(text, theme::PLAIN)])
}

fn fronts(f: &Figures) -> Fact {
    let index = if f.by_mm_cid { "concurrency id" } else { "CPU" };
    let (rseq, all) = f.fronts;
    let pages =
        format!("   page {}   slice {}   stall over {} µs", bytes(f.page_bytes), bytes(f.slice_bytes), f.stall_us);
    Fact(
        "fronts",
        vec![
            (format!("{rseq} by {index} and {} slot locks", all.saturating_sub(rseq)), theme::PLAIN),
            (pages, theme::DIM),
        ],
    )
}

/// What maintenance decided, newest first; returns the line after it.
pub(super) fn decisions(pane: &mut Pane<'_>, policy: Option<&Policy>, now: MonotonicNs) -> u16 {
    let width = pane.width();
    let written = policy.map_or(0, |policy| policy.written);
    let note = if written > 0 { format!("{} in all, newest first", count(written)) } else { String::new() };
    pane.heading(1, 0, width.saturating_sub(2), "DECISIONS", &note);
    let Some(policy) = policy.filter(|policy| !policy.decisions.is_empty()) else {
        pane.put(1, 1, "none yet", theme::DIM);
        return 2;
    };
    let mut y = 1;
    for decision in &policy.decisions {
        if y >= pane.height() {
            break;
        }
        let ago = age(Duration::from_nanos(now.saturating_sub(decision.at)));
        pane.right(9, y, &ago, theme::DIM);
        let times = if decision.times > 1 { format!("{} ×", count(decision.times)) } else { String::new() };
        pane.right(17, y, &times, theme::DIM);
        pane.put(19, y, &crate::escape::cut(&decision.meaning(), usize::from(width.saturating_sub(20))), theme::PLAIN);
        y += 1;
    }
    y
}

/// The advice in full; returns the line after it.
pub(super) fn advice(pane: &mut Pane<'_>, advice: Option<&Advice>) -> u16 {
    let width = pane.width();
    let Some(advice) = advice else { return 0 };
    let note = format!("sure: {}", advice.sure.label());
    pane.heading(1, 0, width.saturating_sub(2), "ADVICE", &note);
    pane.put(1, 1, &advice.setting(), theme::STRONG);
    let mut y = pane.wrap(1, 2, &advice.evidence, theme::PLAIN);
    for doubt in &advice.doubts {
        y = pane.wrap(1, y, &format!("but: {doubt}"), theme::DIM);
    }
    for finding in &advice.findings {
        y = pane.wrap(1, y, &format!("{}: {}", finding.topic, finding.text), theme::PLAIN);
        if let Some(command) = &finding.command {
            y = pane.wrap(3, y, command, theme::STRONG);
        }
    }
    y
}
