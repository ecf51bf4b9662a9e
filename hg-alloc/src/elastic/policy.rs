//! What an arena should do about its size, and why: a state machine without clock, lock or system call, so that a recorded
//! trace can be put through it as well as an arena (`what_if.rs`).
//!
//! # The floor
//! What stays committed was given up only to serve a request that would have failed: it is committed again at once.
//!
//! # Without a profile: growth ahead of demand
//! At every step: if as much more memory were taken until the next step as since the last one, and so much is not free,
//! commit some now. A thread that allocates then finds memory in place of a system call.
//!
//! # With a profile
//! Once a cycle: usage is live memory by committed memory. Enough cycles of high usage in the sliding window: grow by whole
//! granules to just below the threshold. So many cycles of low usage in a row: shrink, at most until usage is at the
//! threshold, a bounded part of it a cycle, as long as usage stays low. After any growth, by whomever, cycles of low usage do
//! not count for ten times the cycles of `scale down`: what was just got is not given back at once.
//!
//! Owned by whoever maintains the arena, one at a time.

use super::profile::{Profile, ScaleDown};
pub use super::what_if::{Event, Sample, Summary, what_if};
use super::window::Window;
use crate::grid::GRANULE;
use crate::size_class::SLICE;
use crate::sys::memory;
use hg_probes::words::{Verdict, Why};

/// Cycles of low usage do not count for so many times those of `scale down` after a growth.
const COOL_OFF: u32 = 10;

/// The least that a cycle may give back, bytes; of a large excess it is a quarter.
const STEP: u64 = 64 << 20;

/// By what a policy decides.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The profile, if there is one: without it memory is only committed ahead of demand.
    pub profile: Option<Profile>,
    /// Length of a cycle, ns.
    pub cycle_ns: u64,
    /// What one growth commits at least, bytes.
    pub granule_bytes: u64,
    /// What memory is given back in, bytes.
    pub page_bytes: u64,
    /// Whether decisions are only told.
    pub dry_run: bool,
}

impl Rules {
    /// The rules of an arena that says nothing else: cycles of a second.
    pub const fn new(profile: Option<Profile>) -> Self {
        Rules {
            profile,
            cycle_ns: 1_000_000_000,
            granule_bytes: GRANULE as u64 * SLICE as u64,
            page_bytes: memory::HUGE_PAGE as u64,
            dry_run: false,
        }
    }

    /// What always stays committed, and the most that is ever committed, of an arena with these INIT and CAP, bytes: a
    /// profile's floor replaces INIT, its ceiling cannot raise CAP, and a dry run changes neither.
    pub fn bounds(&self, init_bytes: u64, cap_bytes: u64) -> (u64, u64) {
        let page = self.page_bytes.max(1);
        let acting = self.profile.filter(|_| !self.dry_run);
        let floor = acting.and_then(|profile| profile.down).map_or(init_bytes, |down| down.to_bytes);
        let ceiling = acting.map_or(cap_bytes, |profile| (profile.up.to_bytes / page * page).min(cap_bytes));
        (floor.checked_next_multiple_of(page).unwrap_or(ceiling).min(ceiling), ceiling)
    }
}

/// How an arena is.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// `CLOCK_MONOTONIC`, or any other that does not go back, ns.
    pub now_ns: u64,
    /// Bytes of cells and large objects that the program or a front cache holds.
    pub live_bytes: u64,
    /// Bytes committed.
    pub committed_bytes: u64,
    /// Bytes committed in free runs.
    pub free_bytes: u64,
    /// Bytes that stay committed.
    pub floor_bytes: u64,
    /// The most that may be committed, bytes.
    pub ceiling_bytes: u64,
    /// Whether a limit of the system refused the last growth.
    pub blocked: bool,
}

/// What to do, and why: one entry of the ring in the stats page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub verdict: Verdict,
    /// Why.
    pub why: Why,
    /// Bytes that move, or that the decision is about.
    pub bytes: u64,
    /// The page in the way, where one is.
    pub page: u32,
    /// Size of the cells in the way, bytes; 0 for a large object.
    pub class: u32,
    /// Cells in the way there.
    pub cells: u64,
    /// Live memory in percent of the committed.
    pub usage: u32,
    /// The percentage that it was compared with; 0 for none.
    pub limit: u32,
}

impl Decision {
    /// A decision about `bytes` that compared no percentages and met no page.
    pub const fn new(verdict: Verdict, why: Why, bytes: u64) -> Self {
        Decision { verdict, why, bytes, page: 0, class: 0, cells: 0, usage: 0, limit: 0 }
    }
}

/// The state between two steps.
pub struct Policy {
    rules: Rules,
    window: Window,
    /// Cycles of low usage in a row.
    quiet: u32,
    /// Cycles left in which low usage does not count.
    cool_off: u32,
    /// When the last cycle began, ns.
    cycle_at_ns: Option<u64>,
    /// What was committed in the last cycle: more now means that somebody grew.
    committed_bytes: u64,
    /// What was in use at the last step.
    used_bytes: Option<u64>,
}

impl Policy {
    /// A policy that knows nothing of its arena yet.
    pub const fn new(rules: Rules) -> Self {
        let within = match rules.profile {
            Some(profile) => profile.up.within,
            None => 0,
        };
        Policy {
            rules,
            window: Window::new(within),
            quiet: 0,
            cool_off: 0,
            cycle_at_ns: None,
            committed_bytes: 0,
            used_bytes: None,
        }
    }

    /// By what it decides.
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Looks at the arena. `None` between two cycles, while nothing needs to be done.
    pub fn step(&mut self, input: &Input) -> Option<Decision> {
        if let Some(missing) = input.floor_bytes.checked_sub(input.committed_bytes).filter(|missing| *missing > 0)
            && !input.blocked
        {
            return Some(Decision::new(Verdict::Grow, Why::AtFloor, missing));
        }
        let Some(profile) = self.rules.profile else { return self.demand(input) };
        let over = self.cycle_at_ns.is_none_or(|at| input.now_ns.saturating_sub(at) >= self.rules.cycle_ns);
        over.then(|| {
            self.cycle_at_ns = Some(input.now_ns);
            self.cycle(&profile, input)
        })
    }

    /// Growth ahead of demand: what was taken since the last step may be taken again before the next one. One leap is no
    /// trend, so it is followed by an eighth only.
    fn demand(&mut self, input: &Input) -> Option<Decision> {
        let granule = self.rules.granule_bytes.max(1);
        let used = input.committed_bytes.saturating_sub(input.free_bytes);
        let taken = used.saturating_sub(self.used_bytes.replace(used)?);
        let room = input.ceiling_bytes.saturating_sub(input.committed_bytes);
        let missing = taken.saturating_sub(input.free_bytes).min((input.committed_bytes / 8).max(granule));
        if missing == 0 || room == 0 || input.blocked {
            return None;
        }
        let bytes = missing.checked_next_multiple_of(granule).unwrap_or(room).min(room);
        Some(Decision { usage: usage(input), ..Decision::new(Verdict::Grow, Why::Usage, bytes) })
    }

    fn cycle(&mut self, profile: &Profile, input: &Input) -> Decision {
        let (live, committed) = (u128::from(input.live_bytes) * 100, u128::from(input.committed_bytes));
        let is_high = live >= committed * u128::from(profile.up.percent) && live > 0;
        let is_low = profile.down.is_some_and(|down| live <= committed * u128::from(down.percent));
        if input.committed_bytes > self.committed_bytes {
            self.cool_off = COOL_OFF * profile.down.map_or(0, |down| u32::from(down.cycles));
            self.quiet = 0;
        } else {
            self.cool_off = self.cool_off.saturating_sub(1);
        }
        self.committed_bytes = input.committed_bytes;
        self.window.push(is_high);
        self.quiet = if is_low && self.cool_off == 0 { self.quiet.saturating_add(1) } else { 0 };

        let up = |verdict, why, bytes| Decision {
            usage: usage(input),
            limit: profile.up.percent.into(),
            ..Decision::new(verdict, why, bytes)
        };
        if is_high && self.window.hits() >= profile.up.cycles {
            return self.grow(profile, input, up);
        }
        match profile.down {
            _ if is_high => up(Verdict::Keep, Why::Cycles, 0),
            None => up(Verdict::Keep, Why::NoScaleDown, 0),
            Some(_) if !is_low => up(Verdict::Keep, Why::Usage, 0),
            Some(down) => self.shrink(down, input),
        }
    }

    fn grow(&mut self, profile: &Profile, input: &Input, say: impl Fn(Verdict, Why, u64) -> Decision) -> Decision {
        let room = input.ceiling_bytes.saturating_sub(input.committed_bytes);
        if room == 0 {
            return say(Verdict::Keep, Why::Ceiling, 0);
        }
        if input.blocked {
            return say(Verdict::Keep, Why::Blocked, 0);
        }
        self.window.clear();
        let wanted = committed_at(input.live_bytes, profile.up.percent).saturating_add(1);
        let missing = wanted.saturating_sub(input.committed_bytes).max(1);
        let bytes = missing.checked_next_multiple_of(self.rules.granule_bytes.max(1)).unwrap_or(room).min(room);
        say(Verdict::Grow, self.told(Why::Usage), bytes)
    }

    fn shrink(&mut self, down: ScaleDown, input: &Input) -> Decision {
        let say = |verdict, why, bytes| Decision {
            usage: usage(input),
            limit: down.percent.into(),
            ..Decision::new(verdict, why, bytes)
        };
        let page = self.rules.page_bytes.max(1);
        let above_floor = input.committed_bytes.saturating_sub(input.floor_bytes) / page * page;
        let needless = input.committed_bytes.saturating_sub(committed_at(input.live_bytes, down.percent)) / page * page;
        match () {
            () if above_floor == 0 => say(Verdict::Keep, Why::AtFloor, 0),
            () if self.cool_off > 0 => say(Verdict::Keep, Why::CoolOff, 0),
            () if self.quiet < u32::from(down.cycles) => say(Verdict::Keep, Why::Cycles, 0),
            () if input.blocked => say(Verdict::Keep, Why::Blocked, 0),
            // At the threshold, to the page.
            () if needless == 0 => say(Verdict::Keep, Why::Usage, 0),
            () if input.free_bytes < page => say(Verdict::Keep, Why::NothingFree, above_floor.min(needless)),
            () => {
                let excess = above_floor.min(needless);
                let step = (excess / 4).max(STEP).min(excess).min(input.free_bytes);
                say(Verdict::Shrink, self.told(Why::Usage), (step / page).max(1) * page)
            }
        }
    }

    fn told(&self, why: Why) -> Why {
        if self.rules.dry_run { Why::DryRun } else { why }
    }
}

/// Live memory in percent of the committed.
fn usage(input: &Input) -> u32 {
    let percent = (u128::from(input.live_bytes) * 100).checked_div(input.committed_bytes.into()).unwrap_or(0);
    percent.min(100) as u32
}

/// The committed memory of which `live` bytes are a percentage, rounded up.
fn committed_at(live: u64, percent: u8) -> u64 {
    (u128::from(live) * 100).div_ceil(u128::from(percent.max(1))).min(u64::MAX.into()) as u64
}
