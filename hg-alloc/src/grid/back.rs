//! The second phase of a growth: memory made accessible and backed as asked (`backing/ladder.rs`), and its outcome published.
//!
//! Memory that was given back is usually just there when it is touched again. Where it has to be locked, or pages of the
//! hugetlb pool stand in its place, it takes system calls: then a growth takes such runs as it takes slices behind the top.
//!
//! Lock: the grid's, but for what is said to run without. Caller: `grow.rs`.

use super::plan::cut;
use super::runs::Pool;
use super::tables::{Kind, PAGE_SLICES, Tables};
use super::{GRANULE, Grid, Need, SharedGrid};
use crate::backing::ladder::{self, Backed};
use crate::backing::pages::{Backing, publish_backed};
use crate::backing::room;
use crate::size_class::SLICE;
use crate::stats;
use crate::sys::{Errno, env, limits, memory};
use core::sync::atomic::Ordering::Relaxed;
use hg_probes::words::{Cause, Tier, TierReason};

/// Room for cell states is made accessible in steps of so many bytes.
pub(super) const STATES_STEP: usize = 4 << 20;

/// Runs that one growth backs again.
const RUNS: usize = 8;

/// What the second phase has to do.
pub(super) enum Plan {
    /// Make the slices from..to accessible.
    Slices { from: u32, to: u32 },
    /// Make states accessible from one byte to another.
    States { from: usize, to: usize },
    /// Map address space for slices from..to, or up to `least` if there is no more.
    Reserve { from: u32, least: u32, to: u32 },
    /// Back runs again that were given back: a head and a length each.
    Again { runs: [(u32, u32); RUNS] },
}

/// What it brought: one outcome for slices, one for each run, none for states.
pub(super) type Outcome = [Option<Backed>; RUNS];

impl Plan {
    /// Makes the system calls. No lock is held. `before` is the tier of the last growth.
    pub(super) fn carry_out(&self, tables: &Tables, backing: Backing, before: Tier) -> Result<Outcome, Errno> {
        let back = |head, length| ladder::back(tables.address(head), length as usize * SLICE, backing, before);
        let mut outcome = Outcome::default();
        match *self {
            Plan::States { from, to } => tables.commit_states(from, to - from)?,
            // Not a growth yet: `reserve_more` in `grow.rs` does it.
            Plan::Reserve { .. } => {}
            Plan::Slices { from, to } => {
                tables.commit_slices(from, to)?;
                memory::commit(tables.address(from), (to - from) as usize * SLICE)?;
                outcome[0] = Some(back(from, to - from));
            }
            Plan::Again { runs } => {
                outcome = runs.map(|(head, length)| (length > 0).then(|| back(head, length)));
            }
        }
        Ok(outcome)
    }

    /// Bytes that were taken out of the released ones before the system calls.
    pub(super) fn taken_bytes(&self) -> u64 {
        match self {
            Plan::Again { runs } => runs.iter().map(|(_, length)| u64::from(*length) * SLICE as u64).sum(),
            _ => 0,
        }
    }

    fn first_page(&self) -> u64 {
        match self {
            Plan::Slices { from: first, .. } | Plan::Again { runs: [(first, _), ..] } => {
                u64::from(*first) / PAGE_SLICES as u64
            }
            Plan::States { .. } | Plan::Reserve { .. } => 0,
        }
    }
}

impl SharedGrid {
    /// Tells what a growth got, where that is another tier than before, and what became of locking it. No lock is held.
    pub(super) fn tell_backing(
        &self,
        plan: &Plan,
        outcome: &Outcome,
        backing: Backing,
        before: Tier,
        pinned_bytes: u64,
    ) {
        let arena = self.lock.arena();
        for backed in outcome.iter().flatten() {
            backed.tell(arena, backing, before, plan.first_page(), pinned_bytes);
            if let Some(errno) = backed.pin_error() {
                self.tell_lesser(backed.bytes, room::explain_pin(errno, backed.bytes), errno.0);
            }
            if backing.tier == Tier::Hugetlb && backed.reason == TierReason::PoolEmpty {
                self.tell_lesser(backed.bytes, Cause::HugetlbPool, libc::ENOMEM);
                self.tell_pool();
            }
        }
    }
}

impl SharedGrid {
    /// Says on stderr, once, that the hugetlb pool has not enough.
    #[cold]
    fn tell_pool(&self) {
        if !self.pool_told.swap(true, Relaxed) {
            let mut pools = limits::Pools::new();
            pools.read(limits::Root::SYSTEM);
            env::report(&["hg: not enough in the hugetlb pool", pools.text(), "; memory comes from other tiers"]);
        }
    }
}

impl Grid {
    /// Takes runs that were given back, to be backed again: the longest, which serves the need, and others up to a granule.
    pub(super) fn take_again(&mut self, need: Need, room: u32) -> Plan {
        let wanted = need.slices().max(GRANULE).min(self.below_ceiling());
        let mut left = cut(wanted, room, need.slices());
        let mut runs = [(0, 0); RUNS];
        for run in &mut runs {
            let longest = self.bins.longest(&self.tables, Pool::Released).filter(|_| left > 0);
            let Some((head, length)) = longest else { break };
            let taken = length.min(left);
            self.bins.remove(&self.tables, Pool::Released, head);
            self.put_back(Pool::Released, head + taken, length - taken);
            self.tables.set_run(head, Kind::Busy, taken);
            *run = (head, taken);
            left -= taken;
        }
        Plan::Again { runs }
    }

    /// Publishes what the second phase brought.
    pub(super) fn adopt(&mut self, plan: &Plan, outcome: &Outcome) {
        match *plan {
            Plan::States { to, .. } => self.chunks.committed = to,
            Plan::Reserve { .. } => {}
            Plan::Slices { from, to } => {
                self.top = to;
                self.adopt_run(from, to - from, &outcome[0]);
            }
            Plan::Again { runs } => {
                let taken = runs.iter().zip(outcome).filter(|((_, length), _)| *length > 0);
                taken.for_each(|((head, length), backed)| self.adopt_run(*head, *length, backed));
            }
        }
        if let (Some(page), Plan::Slices { .. } | Plan::Again { .. }) = (self.page, plan) {
            stats::add(&page.header.grows, 1);
        }
    }

    fn adopt_run(&mut self, head: u32, length: u32, backed: &Option<Backed>) {
        // What is filled holds memory, if only zeros.
        let filled = backed.as_ref().is_some_and(Backed::is_filled);
        self.bins.insert(&self.tables, if filled { Pool::Dirty } else { Pool::Fresh }, head, length);
        let Some(backed) = backed else { return };
        self.tier = backed.tier;
        self.pages.enter(&self.tables, head, length, backed);
        if let Some(page) = self.page {
            publish_backed(&page.header, backed);
        }
    }
}
