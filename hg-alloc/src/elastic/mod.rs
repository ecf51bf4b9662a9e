//! When an arena grows and shrinks by itself, and why.
//!
//! `profile.rs` reads what the user wants, `policy.rs` decides by it, `pinned.rs` finds what is in the way, `decisions.rs`
//! tells. This file puts them together for an arena: it gathers what the policy looks at, does what it says, and enters it
//! in the ring of the stats page.
//!
//! No lock is held between two figures of the input: they are read one by one from the stats page, and may not fit
//! together by what moved meanwhile. State belongs to the thread whose turn to maintain the arena it is (S11): all callers
//! are in `maintain.rs`, and come at any pace; a profile counts its own cycles.

mod decisions;
mod pinned;
pub mod policy;
pub mod profile;
mod scanner;
mod size;
mod what_if;
mod window;

use crate::arena::{Arena, Settings};
use crate::grid::Need;
use crate::size_class::SLICE_SHIFT;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
pub(crate) use decisions::{close, record};
use hg_probes::page::StatsPage;
use hg_probes::words::{Cause, Verdict, Why};
use pinned::Search;
use policy::{Decision, Input, Policy, Rules};

/// Growths that one decision makes.
const PIECES: u32 = 8;

/// What an arena decides about its own size.
pub(crate) struct Elastic {
    /// Whether a profile decides when memory goes back.
    governs: AtomicBool,
    /// Length of a profile's cycle, ns; without one, the greatest number.
    pace_ns: AtomicU64,
    state: UnsafeCell<State>,
}

struct State {
    policy: Policy,
    search: Search,
}

// SAFETY: S11, the state is reached by the thread whose turn it is, or before the arena is started.
unsafe impl Sync for Elastic {}

impl Elastic {
    pub(crate) const fn new() -> Self {
        Elastic {
            governs: AtomicBool::new(false),
            pace_ns: AtomicU64::new(u64::MAX),
            state: UnsafeCell::new(State { policy: Policy::new(Rules::new(None)), search: Search::new() }),
        }
    }

    /// Begins with these rules. Called once, before anybody else can see the arena.
    pub(crate) fn start(&self, rules: Rules) {
        // SAFETY: S11, the arena is not started yet.
        unsafe { (*self.state.get()).policy = Policy::new(rules) };
        self.governs.store(rules.profile.is_some() && !rules.dry_run, Relaxed);
        self.pace_ns.store(rules.profile.map_or(u64::MAX, |_| rules.cycle_ns), Relaxed);
    }

    /// How long whoever maintains the arena may sleep at most, so that a profile does not miss a cycle, ns.
    pub(crate) fn pace_ns(&self) -> u64 {
        self.pace_ns.load(Relaxed)
    }

    /// Whether a profile decides when memory goes back, so that neither frees nor age do.
    pub(crate) fn governs(&self) -> bool {
        self.governs.load(Relaxed)
    }

    /// Decides, does it, and tells. Only by the thread whose turn it is.
    pub(crate) fn step(&self, arena: &Arena, now_ns: u64) {
        let (Some(page), Some(settings)) = (arena.page(), arena.settings()) else { return };
        // SAFETY: S11, it is this thread's turn.
        let policy = unsafe { &mut (*self.state.get()).policy };
        let Some(decision) = policy.step(&gather(page, now_ns)) else { return };
        match act(arena, settings, page, decision) {
            done if done.why == Why::NothingFree => self.explain(arena, done, now_ns),
            done => record(page, &done, now_ns),
        }
    }

    /// Tells a decision to give nothing back because nothing is free, with the page nearest to being free, and what keeps it.
    /// Only by the thread whose turn it is.
    pub(crate) fn explain(&self, arena: &Arena, mut decision: Decision, now_ns: u64) {
        let (Some(page), Some(settings)) = (arena.page(), arena.settings()) else { return };
        // SAFETY: S11, as above.
        let search = unsafe { &mut (*self.state.get()).search };
        if let Some(pin) = search.look(&arena.grid, &settings.tables) {
            decision.why = if pin.class == 0 { Why::PinnedByLarge } else { Why::PinnedByCells };
            (decision.page, decision.class, decision.cells) = (pin.page, pin.class, pin.cells.into());
        }
        record(page, &decision, now_ns);
    }
}

/// What the policy looks at, from the stats page.
pub(crate) fn gather(page: &StatsPage, now_ns: u64) -> Input {
    let header = &page.header;
    let cells = page.classes.iter().map(|class| {
        let free = class.central_cells.load(Relaxed).wrapping_add(class.transfer_cells.load(Relaxed));
        class.cells.load(Relaxed).saturating_sub(free).wrapping_mul(u64::from(class.size.load(Relaxed)))
    });
    Input {
        now_ns,
        live_bytes: cells.fold(header.large_bytes.load(Relaxed), u64::wrapping_add),
        committed_bytes: header.committed_bytes.load(Relaxed),
        free_bytes: header.free_dirty_bytes.load(Relaxed).wrapping_add(header.free_clean_bytes.load(Relaxed)),
        floor_bytes: header.floor_bytes.load(Relaxed),
        ceiling_bytes: header.ceiling_bytes.load(Relaxed),
        blocked: header.grow_blocked.load(Relaxed) != 0,
    }
}

/// Does what was decided, if it is not only said. Returns what came of it.
fn act(arena: &Arena, settings: &Settings, page: &StatsPage, decision: Decision) -> Decision {
    let slices = (decision.bytes >> SLICE_SHIFT).min(u64::from(u32::MAX)) as u32;
    match decision.verdict {
        _ if decision.why == Why::DryRun => decision,
        Verdict::Grow => match grow(arena, settings, page, decision.bytes) {
            (0, Some(Cause::Cap | Cause::Ceiling)) => {
                Decision { verdict: Verdict::Keep, why: Why::Ceiling, ..decision }
            }
            (0, Some(_)) => Decision { verdict: Verdict::Keep, why: Why::Blocked, ..decision },
            (bytes, _) => Decision { bytes, ..decision },
        },
        Verdict::Shrink => match arena.grid.shrink_by(slices, 0, Cause::Idle) {
            // What is free lies in parts of pages.
            0 => Decision { verdict: Verdict::Keep, why: Why::NothingFree, ..decision },
            given => Decision { bytes: given, ..decision },
        },
        Verdict::Keep | Verdict::Drain => decision,
    }
}

/// Commits more, piece by piece where it was given back before. Returns the bytes, and why it is not more.
fn grow(arena: &Arena, settings: &Settings, page: &StatsPage, bytes: u64) -> (u64, Option<Cause>) {
    let committed = || page.header.committed_bytes.load(Relaxed);
    let before = committed();
    let mut grown = 0;
    for _ in 0..PIECES {
        let missing = bytes.saturating_sub(grown) >> SLICE_SHIFT;
        if missing == 0 {
            break;
        }
        let need = Need::More(missing.min(u64::from(u32::MAX)) as u32);
        if let Err((cause, _)) = arena.grid.grow(need, Cause::Ahead, settings.backing, &arena.hot.limit) {
            return (grown, Some(cause));
        }
        let now = committed().saturating_sub(before);
        if now <= grown {
            // Somebody else is growing.
            break;
        }
        grown = now;
    }
    (grown, None)
}
