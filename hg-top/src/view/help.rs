//! The help: the keys, from their table, and how to read the figures.

use super::paint::Pane;
use super::theme;
use crate::app::{App, View};
use crate::keys::BINDINGS;
use crate::model::EbpfState;

/// What the view under the help shows, column by column.
fn about(view: View) -> &'static [&'static str] {
    match view {
        View::Summary => &[
            "One addition from live cells to the kernel's RSS + hugetlb.",
            "live cells: handed out and not freed, in sizes of their classes;",
            "cached: free cells in front and transfer caches, ready to go;",
            "free cells: the rest of the spans, never-used ones included;",
            "free pages, dirty: free runs that still hold memory.",
            "The difference is stacks and other maps, less what hg set",
            "aside and nobody touched yet; hence it can be negative.",
        ],
        View::Classes => &[
            "LIVE: cells handed out and not freed. CACHED: free, in caches.",
            "REUSED, CARVED: recycled and never-used cells that refills",
            "brought into front caches; a malloc served by a front cache",
            "counts nowhere. OCCUPANCY: live cells of all cells in spans.",
            "~ before a size: torn, the block changed while it was read.",
        ],
        View::Locks => &[
            "COUNT: acquisitions. Percentiles are interpolated within a",
            "power of two, max is exact and since the process started.",
            "The small bars: to 127ns, 511ns, 2µs, 8µs, 32µs, 131µs, 524µs,",
            "longer; heights by square root, so that rare ones are seen.",
            "STALLS: over the arena's threshold (HG_LOCK_STALL_US).",
        ],
        View::Arenas => &[
            "WANTED→GOT: what was to back the arena, and what does, by the",
            "kernel's own counters. COMMITTED: what user memory may occupy",
            "now, of RESERVED, the cap. TABLES: hg's own, outside both.",
        ],
        View::Processes => &[
            "SOURCES: page is the stats page (totals since the start, no",
            "rights but to read the memory), eBPF the probes (events and",
            "per-process figures since hg-top came).",
        ],
        View::Events => &[
            "Alerts first, then the log of rare probes. ⏎ shows the",
            "arguments and the stack of an event, innermost first.",
        ],
    }
}

/// Draws the help from its `first` line on.
pub(super) fn draw(pane: &mut Pane<'_>, app: &App, first: usize) {
    let (width, height) = (pane.width(), pane.height());
    let two = width >= 76;
    let key_width = if two { 15 } else { 8 };
    let left = if two { 12 + 28 } else { width };
    pane.heading(1, 0, left.saturating_sub(2), "KEYS ", "");
    let rows = usize::from(height.saturating_sub(1));
    // Where all keys do not fit, the scrolled part of them.
    let first = first.min(BINDINGS.len().saturating_sub(rows));
    for (y, binding) in (1..height).zip(BINDINGS.iter().skip(first)) {
        pane.put(1, y, binding.shown, theme::STRONG);
        let room = usize::from(left.saturating_sub(8));
        pane.put(8, y, &crate::escape::cut(binding.help, room), theme::PLAIN);
    }
    let _ = key_width;
    if !two {
        return;
    }
    let mut side = pane.part(left, 0, width - left, height);
    let side_width = side.width().saturating_sub(1);
    side.heading(0, 0, side_width, &format!("{} ", app.view.name().to_uppercase()), "");
    let mut y = 1;
    for line in about(app.view) {
        y = wrap(&mut side, y, line);
    }
    y += 1;
    side.heading(0, y, side_width, "SOURCES ", "");
    y += 1;
    let Some(latest) = app.timeline().latest() else { return };
    match &latest.ebpf {
        EbpfState::On { attached, found } => {
            wrap(&mut side, y, &format!("eBPF is on: {attached} of {found} probe sites are attached."));
        }
        EbpfState::Off(why) => {
            wrap(&mut side, y, &format!("eBPF is off: {why}."));
        }
    }
}

/// Writes text over as many lines as it needs; returns the line after it.
fn wrap(pane: &mut Pane<'_>, mut y: u16, text: &str) -> u16 {
    let width = usize::from(pane.width().saturating_sub(1)).max(1);
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            pane.put(0, y, &line, theme::PLAIN);
            y += 1;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    pane.put(0, y, &line, theme::PLAIN);
    y + 1
}
