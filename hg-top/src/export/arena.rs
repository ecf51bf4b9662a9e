//! One arena as text: what the arena view and the map show, for pipes.

use std::fmt::{self, Write};
use std::time::Duration;

use hg_probes::words::Cause;

use crate::advise::Advice;
use crate::collect::map::Pages;
use crate::model::{ArenaRef, MonotonicNs};
use crate::unit::{age, bytes, count};
use crate::view::{arena as words, map as glyphs};

/// Decisions that are printed.
const MAX_DECISIONS: usize = 8;

/// Pages that little keeps which are printed.
const MAX_SPARSE: usize = 20;

/// Pages of a row of the map.
const ROW: usize = 64;

/// Tiers, amounts, growth, maintenance and decisions of an arena at `now`.
pub(super) fn figures(out: &mut String, of: &ArenaRef<'_>, now: MonotonicNs) -> fmt::Result {
    let arena = of.arena;
    let Some(f) = &arena.figures else { return Ok(()) };
    writeln!(out, "\nARENA {} OF {}", arena.name, of.whose())?;
    let mut line = |label: &str, text: &str| match text.is_empty() {
        true => Ok(()),
        false => writeln!(out, "{label:<11}{text}"),
    };
    line("shared by", &words::sharing(of))?;
    line("tier", &words::tier(f).0)?;
    line("backed by", &words::tiers(f))?;
    line("steps down", &words::steps_down(f))?;
    line("pinned", &words::pin(f).0)?;
    line("used", &format!("{}, peak {}", bytes(f.used()), bytes(f.used_peak.max(f.used()))))?;
    line("committed", &format!("{}, peak {}", bytes(f.committed), bytes(f.committed_peak)))?;
    let (floor, ceiling, reserved) = (bytes(f.floor), bytes(f.ceiling), bytes(f.reserved));
    line("floor", &format!("{floor}, ceiling {ceiling}, reserved {reserved}"))?;
    let blocked = match f.grow_blocked {
        true => format!("BLOCKED: {}", f.blocked_cause.map_or("unknown cause", Cause::label)),
        false => "possible".into(),
    };
    line("growth", &format!("{blocked}, grown {} ×, shrunk {} ×", count(f.grows), count(f.shrinks)))?;
    line("refused", &words::causes(&f.grows_refused))?;
    line("failed", &words::causes(&f.allocs_failed))?;
    line("limbo", &bytes(f.limbo))?;
    if let Some((policy, idle)) = arena.policy.as_ref().and_then(|policy| Some((policy, policy.idle(now)?))) {
        let decay = age(Duration::from_millis(f.decay_ms));
        line("ticks", &format!("{}, last {} ago, decay {decay}", count(policy.ticks), age(idle)))?;
    }
    for decision in arena.policy.iter().flat_map(|policy| &policy.decisions).take(MAX_DECISIONS) {
        line("decision", &format!("{} ({})", decision.meaning(), decision.when(now)))?;
    }
    Ok(())
}

/// The advice for an arena.
pub fn advice(out: &mut String, advice: &Advice) -> fmt::Result {
    writeln!(out, "advice     {} (sure: {})", advice.setting(), advice.sure.label())?;
    writeln!(out, "           {}", advice.evidence)?;
    for doubt in &advice.doubts {
        writeln!(out, "           but: {doubt}")?;
    }
    for finding in &advice.findings {
        writeln!(out, "           {}: {}", finding.topic, finding.text)?;
        if let Some(command) = &finding.command {
            writeln!(out, "             {command}")?;
        }
    }
    Ok(())
}

/// The map of an arena.
pub(super) fn map(out: &mut String, read: &Result<Pages, String>) -> fmt::Result {
    let Pages { map, details } = match read {
        Ok(pages) => pages,
        Err(error) => return writeln!(out, "map        {error}"),
    };
    let total = map.total();
    let size = |slices: u64| bytes(slices.saturating_mul(map.slice_bytes));
    writeln!(
        out,
        "map        {} pages of {}: {} used of {} held, dirty {}, given back {}",
        map.pages.len(),
        bytes(map.page_bytes),
        bytes(total.used),
        bytes(total.held(map.slice_bytes)),
        size(total.slices.dirty),
        size(total.slices.released)
    )?;
    for (row, pages) in map.pages.chunks(ROW).enumerate() {
        let line: String = pages.iter().map(|page| glyphs::heat(page, map.slice_bytes).0).collect();
        writeln!(out, "{:>10} {}", row * ROW, line.trim_end())?;
    }
    let sparse = map.pages.iter().enumerate().filter(|(_, page)| page.is_sparse(map.slice_bytes));
    for (number, page) in sparse.take(MAX_SPARSE) {
        let why = details.get(&number).map_or_else(String::new, |detail| format!(": {}", detail.meaning()));
        writeln!(out, "page {number} holds {}{why}", bytes(page.held(map.slice_bytes)))?;
    }
    Ok(())
}
