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
            "One addition, from live cells to the kernel's RSS + hugetlb.",
            "live cells: handed out, not freed. cached: free, in front and transfer caches. free cells: the rest of the \
             spans. dirty: free, but still holding memory.",
            "What is missing stands as a row of its own: stacks and other maps, less what nobody touched yet.",
        ],
        View::Classes => &[
            "LIVE: cells handed out, not freed. CACHED: free, in front and transfer caches.",
            "REUSED, CARVED: recycled and never-used cells that refills brought; a malloc that a front cache serves \
             counts nowhere.",
            "OCCUPANCY: live of all cells in spans. ~ before a size: torn, it changed while it was read.",
        ],
        View::Locks => &[
            "Percentiles are interpolated within a power of two; max is exact, since the process started.",
            "Small bars: to 127ns, 511ns, 2µs, 8µs, 32µs, 131µs, 524µs, longer; high by square root, so that rare ones \
             are seen.",
            "STALLS: longer than HG_LOCK_STALL_US.",
        ],
        View::Arenas => &[
            "WANTED→GOT: what was to back the arena, and what does by the kernel's own counters.",
            "empty: committed, but never touched or given back, so it holds no memory.",
            "COMMITTED: what user memory may occupy now, of RESERVED, the cap. TABLES: hg's own, outside both.",
        ],
        View::Processes => {
            &["SOURCES: page is the stats page, with totals since the start; eBPF are the probes, with events and \
             figures since hg-top came."]
        }
        View::Map => &[
            "One cell a page of the grid. The glyph tells how full it is; blue is 4K, cyan a better tier, underlined is \
             pinned. t shows tiers as letters.",
            "Amber: less than a tenth is used, so little keeps much. n goes there.",
            "The detail counts cells by their state bytes, exact as of its age: live, cached (front and transfer caches), \
             free (with their span).",
            "! makes no sense: damaged, or it changed while it was read.",
        ],
        View::Events => &["Alerts first, then the log of rare probes. ⏎ shows arguments and stack, innermost first."],
    }
}

/// Draws the help from its `first` line on.
pub(super) fn draw(pane: &mut Pane<'_>, app: &App, first: usize) {
    let (width, height) = (pane.width(), pane.height());
    let two = width >= 76;
    let left = if two { 12 + 28 } else { width };
    let rows = usize::from(height.saturating_sub(1));
    let note = if rows < BINDINGS.len() { "↓ for more" } else { "" };
    pane.heading(1, 0, left.saturating_sub(2), "KEYS", note);
    // Where all keys do not fit, the scrolled part of them.
    let first = first.min(BINDINGS.len().saturating_sub(rows));
    for (y, binding) in (1..height).zip(BINDINGS.iter().skip(first)) {
        pane.put(1, y, binding.shown, theme::STRONG);
        let room = usize::from(left.saturating_sub(9));
        pane.put(8, y, &crate::escape::cut(binding.help, room), theme::PLAIN);
    }
    if !two {
        return;
    }
    let mut side = pane.part(left, 0, width - left, height);
    let side_width = side.width().saturating_sub(1);
    side.heading(0, 0, side_width, &app.view.name().to_uppercase(), "");
    let mut y = 1;
    for line in about(app.view) {
        y = side.wrap(0, y, line, theme::PLAIN);
    }
    y += 1;
    side.heading(0, y, side_width, "SOURCES", "");
    y += 1;
    let Some(latest) = app.timeline().latest() else { return };
    match &latest.ebpf {
        EbpfState::On { attached, found } => {
            side.wrap(0, y, &format!("eBPF is on: {attached} of {found} probe sites are attached."), theme::PLAIN);
        }
        EbpfState::Off(why) => {
            side.wrap(0, y, &format!("eBPF is off: {why}."), theme::PLAIN);
        }
    }
}
