//! The GROW-BLOCKED latch: an episode in which a limit of the system refuses growth.
//!
//! It begins with a refusal by a resource limit after which nothing is left to try (a first refusal lets the caller empty
//! its caches and come again) and ends with the next growth that succeeds, or when [`recheck_blocked`](SharedGrid::recheck_blocked)
//! finds room. Its beginning and its end fire `grow_blocked`; while it lasts the event is fired again every five minutes.
//! The beginning is told on stderr, in one line. Refusals by policy (the cap, a ceiling) are counted and begin no episode:
//! they are what somebody asked for.
//!
//! During an episode a request that is not smaller than the one refused is answered from here for 100 ms, without a
//! look at the limits, unless memory was given back meanwhile.
//!
//! Lock: the grid's. Callers: `grow.rs`, and whoever maintains the arena.

use super::{Grid, Need, SharedGrid};
use crate::stats;
use crate::sys::{clock, env, text, thread};
use core::sync::atomic::Ordering::Relaxed;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, Reason};

/// How long a refusal is answered without another look.
const BACK_OFF_NS: u64 = 100_000_000;

/// How often the event is fired while an episode lasts.
const REMIND_NS: u64 = 300_000_000_000;

/// Episodes that follow so soon after a line on stderr have none of their own.
const LINE_NS: u64 = 1_000_000_000;

/// An episode.
#[derive(Clone, Copy)]
pub(super) struct Episode {
    pub(super) cause: Cause,
    /// The smallest need that was refused, slices.
    need: u32,
    /// Bytes that were committed at the last refusal.
    committed: u64,
    /// When the limits were last looked at, and the event last fired.
    looked_ns: u64,
    told_ns: u64,
}

/// What a refusal did to the latch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Latched {
    /// No episode, or nothing new.
    No,
    /// An episode begins; whether it has a line on stderr.
    Begins { line: bool },
    /// It goes on: time to say so again.
    Lasts,
}

/// Whether a refusal says that the system has no more memory for this process.
const fn is_resource(cause: Cause) -> bool {
    !matches!(cause, Cause::Cap | Cause::Ceiling | Cause::TooLarge | Cause::Reentered)
}

impl SharedGrid {
    /// Looks whether an episode of blocked growth is over, and reminds of one that lasts. Cheap where there is none; for every
    /// tick of maintenance.
    pub(crate) fn recheck_blocked(&self) {
        let Some(mut grid) = self.lock.lock(Reason::Policy) else { return };
        let Some(episode) = grid.blocked.filter(|_| grid.growing == 0) else { return };
        let reminds = grid.remind(clock::now_ns());
        let need = Need::More(episode.need);
        let served = grid.serves(Need::Slices(episode.need));
        let possible = served || grid.can_recommit(need) || grid.plan(need, u32::MAX).is_ok();
        let ask = grid.ask(need, grid.pages.backing);
        grid.growing = thread::tid();
        drop(grid);

        // What only the kernel can answer, it answers at the next growth.
        let asked = episode.cause != Cause::Kernel;
        let over = served || (possible && asked && self.room.allows(ask));

        let mut grid = self.lock.lock_again(Reason::Policy);
        grid.growing = 0;
        let ended = if over { grid.unblock() } else { None };
        grid.publish();
        drop(grid);
        self.wake_waiting();
        if reminds && ended.is_none() {
            emit::grow_blocked(|| args::grow_blocked { arena: self.lock.arena(), on: 1, cause: episode.cause });
        }
        self.tell_unblocked(ended);
    }

    /// Tells that an episode is over, if one is.
    pub(super) fn tell_unblocked(&self, ended: Option<Cause>) {
        if let Some(cause) = ended {
            emit::grow_blocked(|| args::grow_blocked { arena: self.lock.arena(), on: 0, cause });
        }
    }

    /// Tells what a refusal did to the latch. No lock is held.
    pub(super) fn tell_latched(&self, latched: Latched, cause: Cause, wanted_bytes: u64) {
        if latched == Latched::No {
            return;
        }
        emit::grow_blocked(|| args::grow_blocked { arena: self.lock.arena(), on: 1, cause });
        if latched == (Latched::Begins { line: true }) {
            let mut digits = [0; 20];
            let wanted = text::decimal(wanted_bytes / 1024, &mut digits);
            let then = "; allocations fail until there is room for ";
            env::report(&["hg: growth blocked: ", cause.label(), then, wanted, " KiB"]);
        }
    }
}

impl Grid {
    /// The cause of a refusal that needs no look, if an episode has one for this need.
    pub(super) fn blocked_for(&self, need: u32, now: u64) -> Option<Cause> {
        let episode = self.blocked?;
        let fresh = now.saturating_sub(episode.looked_ns) < BACK_OFF_NS;
        (fresh && need >= episode.need && self.committed_bytes() >= episode.committed).then_some(episode.cause)
    }

    /// Counts a refusal. `last` says that nothing is left to try, `looked` that the limits were looked at for it.
    pub(super) fn count_refusal(&mut self, cause: Cause, need: u32, last: bool, looked: bool) -> Latched {
        if let Some(counter) = self.page.and_then(|page| page.header.grows_refused.get(cause as usize)) {
            stats::add(counter, 1);
        }
        let now = clock::now_ns();
        let committed = self.committed_bytes();
        let latched = match &mut self.blocked {
            Some(episode) => {
                if looked && is_resource(cause) {
                    episode.looked_ns = now;
                    episode.committed = committed;
                    episode.need = episode.need.min(need);
                }
                if self.remind(now) { Latched::Lasts } else { Latched::No }
            }
            None if last && is_resource(cause) => self.begin(cause, need, now),
            None => Latched::No,
        };
        self.publish();
        latched
    }

    fn begin(&mut self, cause: Cause, need: u32, now: u64) -> Latched {
        let committed = self.committed_bytes();
        self.blocked = Some(Episode { cause, need, committed, looked_ns: now, told_ns: now });
        if let Some(page) = self.page {
            page.header.blocked_cause.store(cause as u32, Relaxed);
            page.header.blocked_since_ns.store(now, Relaxed);
        }
        let line = self.line_ns == 0 || now.saturating_sub(self.line_ns) >= LINE_NS;
        if line {
            self.line_ns = now;
        }
        Latched::Begins { line }
    }

    /// Whether it is time to tell of an episode again; then it counts as told.
    fn remind(&mut self, now: u64) -> bool {
        let Some(episode) = &mut self.blocked else { return false };
        let due = now.saturating_sub(episode.told_ns) >= REMIND_NS;
        if due {
            episode.told_ns = now;
        }
        due
    }

    /// Ends an episode. Returns its cause. The caller publishes.
    pub(super) fn unblock(&mut self) -> Option<Cause> {
        let ended = self.blocked.take()?;
        if let Some(page) = self.page {
            page.header.blocked_since_ns.store(0, Relaxed);
        }
        Some(ended.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: u32 = 100;

    /// The grid of no arena: nobody else sees it.
    fn with_grid(test: impl FnOnce(&mut Grid)) {
        let shared = SharedGrid::new();
        assert!(shared.lock.lock_for_fork());
        // SAFETY: S2, the lock was taken, and stays so.
        test(unsafe { shared.lock.value_in_fork() });
    }

    #[test]
    fn the_first_refusal_that_counts_begins_an_episode() {
        with_grid(|grid| {
            assert!(grid.count_refusal(Cause::Cap, NEED, true, true) == Latched::No, "policy is no episode");
            assert!(grid.count_refusal(Cause::Ceiling, NEED, true, true) == Latched::No);
            assert!(grid.count_refusal(Cause::Cgroup, NEED, false, true) == Latched::No, "the caller tries again");
            assert!(grid.count_refusal(Cause::Cgroup, NEED, true, true) == Latched::Begins { line: true });
            assert!(grid.count_refusal(Cause::HostFloor, NEED, true, true) == Latched::No, "one episode at a time");
            assert_eq!(grid.unblock(), Some(Cause::Cgroup));
            assert_eq!(grid.unblock(), None);
            assert!(grid.count_refusal(Cause::Cgroup, NEED, true, true) == Latched::Begins { line: false }, "one line");
        });
    }

    #[test]
    fn a_refusal_answers_for_a_while_and_for_no_less() {
        with_grid(|grid| {
            grid.begin(Cause::HostFloor, NEED, 1000);
            assert_eq!(grid.blocked_for(NEED, 1000), Some(Cause::HostFloor));
            assert_eq!(grid.blocked_for(NEED - 1, 1000), None);
            assert_eq!(grid.blocked_for(NEED, 1000 + BACK_OFF_NS), None);
        });
    }

    #[test]
    fn an_episode_is_told_every_five_minutes() {
        with_grid(|grid| {
            assert!(!grid.remind(u64::MAX), "no episode");
            grid.begin(Cause::Cgroup, NEED, 0);
            let told = (1..=1200).filter(|second| grid.remind(second * 1_000_000_000)).count();
            assert_eq!(told, 4, "in twenty minutes");
        });
    }
}
