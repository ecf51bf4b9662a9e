//! Kills: who, when, and where it turned out to be.
//!
//! Most victims are stopped first and looked at: a process dies where it was stopped, so what its record and the locks say then is
//! what it leaves. The rest are killed as they run, and only what is left in the record tells.
//!
//! Left alone, most kills would land in a worker's own code. So for most of them the hunter watches all workers for a moment, and
//! stops the first that seems to be at a wanted place. A signal takes longer than most of those places: who had left it when it
//! stopped goes on, and the next is watched. Of two places drawn, the one with fewer kills so far is wanted.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use hg_alloc::shared::{Arena, Hands};

use super::board::{Board, at, tide};
use super::report::Report;
use crate::rng::Rng;

/// Where a kill landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In no call of the allocator.
    Own,
    /// In a malloc or a free with nothing but a cell in its hands: the front cache's part.
    Front,
    /// In a malloc with a batch, or with a class's lock.
    Refill,
    /// In a free with a batch, or with a class's lock.
    Flush,
    /// While it had the arena's growth in its hands.
    Grow,
    /// While it gave pages back.
    Shrink,
    /// In a call for a large object.
    Large,
    /// In a bad call.
    Fault,
    /// In a call, but somebody had recovered its record already.
    Unknown,
}

impl Place {
    /// In the order of their numbers.
    pub(crate) const ALL: [Place; 9] = [
        Place::Own,
        Place::Front,
        Place::Refill,
        Place::Flush,
        Place::Grow,
        Place::Shrink,
        Place::Large,
        Place::Fault,
        Place::Unknown,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Place::Own => "own code",
            Place::Front => "front",
            Place::Refill => "refill",
            Place::Flush => "flush",
            Place::Grow => "grow",
            Place::Shrink => "shrink",
            Place::Large => "large",
            Place::Fault => "bad call",
            Place::Unknown => "unknown",
        }
    }

    fn of(at: u32, hands: Option<Hands>) -> Place {
        let Some(hands) = hands else { return if at == at::OWN { Place::Own } else { Place::Unknown } };
        match at {
            _ if hands.growing => Place::Grow,
            _ if hands.pages > 0 => Place::Shrink,
            at::OWN => Place::Own,
            at::LARGE => Place::Large,
            at::FAULT => Place::Fault,
            at::MALLOC if hands.batch > 0 || hands.locks > 0 => Place::Refill,
            at::FREE if hands.batch > 0 || hands.locks > 0 => Place::Flush,
            _ => Place::Front,
        }
    }
}

/// What is hunted for.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Anybody,
    At(Place),
    Locked,
}

impl Wanted {
    /// What a check asks for.
    const HUNTED: [Wanted; 5] = [
        Wanted::At(Place::Front),
        Wanted::At(Place::Refill),
        Wanted::At(Place::Flush),
        Wanted::At(Place::Grow),
        Wanted::Locked,
    ];

    /// One in three times anybody, else of two that are drawn the one with fewer kills.
    fn draw(rng: &mut Rng, report: &Report) -> Wanted {
        let mut hunted = || Self::HUNTED[rng.below(Self::HUNTED.len())];
        let pair = [hunted(), hunted()];
        let kills = |wanted: &Wanted| match wanted {
            Wanted::Anybody => 0,
            Wanted::At(place) => report.looked_at(*place),
            Wanted::Locked => report.with_a_lock,
        };
        let fewer = pair.into_iter().min_by_key(kills);
        fewer.filter(|_| !rng.one_in(3)).unwrap_or(Wanted::Anybody)
    }

    fn is(self, place: Place, hands: Option<Hands>) -> bool {
        match self {
            Wanted::Anybody => true,
            Wanted::At(wanted) => place == wanted,
            Wanted::Locked => hands.is_some_and(|hands| hands.locks > 0),
        }
    }
}

/// The most that is watched before anybody is shot.
const WATCH: Duration = Duration::from_millis(3);

/// The longest that a worker is left to work before.
const WORK_US: usize = 2500;

/// How long a stopped holder of a lock is kept: over the stall threshold, so that somebody notices.
const KEEP: Duration = Duration::from_millis(3);

/// What a kill found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    pub(crate) victim: usize,
    pub(crate) place: Place,
    /// Whether it had a lock.
    pub(crate) locked: bool,
    /// Whether it was stopped and looked at before.
    pub(crate) looked: bool,
}

/// Waits for a moment, chooses a worker, and kills it. `pids` are theirs.
pub(crate) fn kill_one(arena: &Arena, board: &Board, pids: &[i32], rng: &mut Rng, report: &Report) -> Kill {
    std::thread::sleep(Duration::from_micros(rng.below(WORK_US) as u64));
    let look = |worker: usize| {
        let hands = u32::try_from(pids[worker]).ok().and_then(|tid| arena.hands(tid));
        (Place::of(board.stations[worker].at.load(Acquire), hands), hands)
    };
    let wanted = Wanted::draw(rng, report);
    if wanted == Wanted::At(Place::Grow) {
        // What is free goes, so that the next who wants memory has to fetch it.
        board.tide.store(tide::PARK, Relaxed);
        arena.trim();
    }
    let looked = !rng.one_in(4);
    let is_there = |worker: usize| {
        let (place, hands) = look(worker);
        wanted.is(place, hands)
    };
    let mut victim = rng.below(pids.len());
    let start = Instant::now();
    loop {
        let is_late = wanted == Wanted::Anybody || start.elapsed() >= WATCH;
        if !is_late && !is_there(victim) {
            victim = (victim + 1) % pids.len();
            continue;
        }
        if !looked {
            break;
        }
        stop(pids[victim]);
        if is_late || is_there(victim) {
            break;
        }
        go_on(pids[victim]);
    }
    if !looked {
        end(pids[victim]);
        return Kill { victim, place: look(victim).0, locked: false, looked };
    }
    let (place, hands) = look(victim);
    let locked = hands.is_some_and(|hands| hands.locks > 0);
    if locked && rng.one_in(8) {
        std::thread::sleep(KEEP);
    }
    end(pids[victim]);
    Kill { victim, place, locked, looked }
}

fn stop(pid: i32) {
    let mut status = 0;
    // SAFETY: a child of this process that is not waited for yet.
    unsafe {
        libc::kill(pid, libc::SIGSTOP);
        libc::waitpid(pid, &raw mut status, libc::WUNTRACED);
    }
}

/// Lets a stopped worker go on.
fn go_on(pid: i32) {
    // SAFETY: a child of this process that is not waited for yet.
    unsafe { libc::kill(pid, libc::SIGCONT) };
}

/// Kills a worker, and waits until the system has put it away.
pub(crate) fn end(pid: i32) {
    let mut status = 0;
    // SAFETY: as above.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        while libc::waitpid(pid, &raw mut status, 0) == pid && !libc::WIFSIGNALED(status) && !libc::WIFEXITED(status) {}
    }
}

/// Waits until every worker made a call; gives up after a while. A worker that makes none is stuck.
pub(crate) fn all_go_on(board: &Board, workers: usize) -> Result<(), String> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let calls = |worker: usize| board.stations[worker].calls.load(Relaxed);
    let before: Vec<u64> = (0..workers).map(calls).collect();
    let start = Instant::now();
    loop {
        match (0..workers).find(|worker| calls(*worker) == before[*worker]) {
            None => return Ok(()),
            Some(worker) if start.elapsed() > PATIENCE => {
                return Err(format!("worker {worker} made no call for {} s", PATIENCE.as_secs()));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
