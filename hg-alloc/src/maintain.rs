//! Maintenance: what an arena does about itself while nobody calls it.
//!
//! A *tick* looks whether growth is still blocked, tends huge pages, lets the profile decide, and, once an epoch, takes away
//! what was idle: front and transfer caches that nobody used, then memory that was free throughout. An epoch is a fifth of the
//! decay time, and idle memory is back with the system after four at most. Any host may call the tick, at any pace and from
//! any thread; one at a time does it, the others leave. With `HG_THREAD=1` a thread of ours does, in every process that is
//! forked too; it ticks the arenas made by handle as well (`shared/tick.rs`).
//!
//! The thread is made by the C library, because front caches need what that sets up in each thread: so not in the middle of
//! somebody's malloc, which may hold the library's own locks, but when this object is loaded, and after a fork. It blocks all
//! signals.

use crate::arena::Arena;
use crate::elastic;
use crate::elastic::policy::Decision;
use crate::others;
use crate::size_class::SLICE;
use crate::sys::{KeepErrno, clock, futex, thread};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use hg_probes::words::{Cause, Verdict, Why};

/// Epochs of a decay time.
const EPOCHS: u64 = 5;

/// Huge pages that one tick may make of base pages.
const COLLAPSES: u32 = 4;

/// Shortest and longest sleep of the thread, ns.
const SLEEP_NS: core::ops::RangeInclusive<u64> = 1_000_000..=500_000_000;

/// What maintenance remembers. No lock: it belongs to who has the turn.
pub(crate) struct Maintenance {
    /// Whose turn it is, 0 for nobody's.
    turn: AtomicU32,
    epoch_ns: AtomicU64,
    epoch_began_ns: AtomicU64,
    /// Whether a thread was asked for.
    wants_thread: AtomicBool,
    /// Nobody changes it: the thread sleeps on it.
    bell: AtomicU32,
}

impl Maintenance {
    pub(crate) const fn new() -> Self {
        Maintenance {
            turn: AtomicU32::new(0),
            epoch_ns: AtomicU64::new(u64::MAX),
            epoch_began_ns: AtomicU64::new(0),
            wants_thread: AtomicBool::new(false),
            bell: AtomicU32::new(0),
        }
    }

    /// Begins with a decay time. Called once, at the arena's start.
    pub(crate) fn start(&self, decay_ms: u32, thread: bool) {
        self.epoch_ns.store(u64::from(decay_ms) * 1_000_000 / EPOCHS, Relaxed);
        self.wants_thread.store(thread, Relaxed);
    }

    /// Forgets, in a forked child, whose turn it was in the parent.
    pub(crate) fn reset(&self) {
        self.turn.store(0, Relaxed);
    }
}

impl Arena {
    /// One step of maintenance, if nobody else is at it.
    pub(crate) fn tick(&self) {
        let _errno = KeepErrno::new();
        let maintenance = &self.maintenance;
        let Some(page) = self.page() else { return };
        if maintenance.turn.compare_exchange(0, thread::tid(), Acquire, Relaxed).is_err() {
            return;
        }
        let now_ns = clock::now_ns();
        page.policy.ticks.store(page.policy.ticks.load(Relaxed) + 1, Relaxed);
        page.policy.last_tick_ns.store(now_ns, Relaxed);
        self.grid.recheck_blocked();
        self.grid.tend_pages(COLLAPSES);
        self.elastic.step(self, now_ns);
        if now_ns.saturating_sub(maintenance.epoch_began_ns.load(Relaxed)) >= maintenance.epoch_ns.load(Relaxed) {
            maintenance.epoch_began_ns.store(now_ns, Relaxed);
            self.end_epoch(now_ns);
        }
        maintenance.turn.store(0, Release);
    }

    /// Takes away what was idle for an epoch.
    fn end_epoch(&self, now_ns: u64) {
        let Some(page) = self.page() else { return };
        let (idle, before) = self.grid.begin_epoch();
        let cached = self.density.outstanding();
        self.grid.slack.forget();
        self.empty_idle_caches();
        let drained = cached.saturating_sub(self.density.outstanding());
        if drained > 0 {
            elastic::record(page, &Decision::new(Verdict::Drain, Why::Idle, drained), now_ns);
        }
        if self.elastic.governs() {
            return;
        }
        // What the idle caches held in spans was idle as long as they were.
        let freed = self.grid.free_slices().saturating_sub(before);
        let given = self.grid.shrink_by(idle + freed, 0, Cause::Idle);
        if given > 0 {
            elastic::record(page, &Decision::new(Verdict::Shrink, Why::Idle, given), now_ns);
            return;
        }
        let header = &page.header;
        let above_floor = header.committed_bytes.load(Relaxed).saturating_sub(header.floor_bytes.load(Relaxed));
        let keep = |why, bytes| Decision::new(Verdict::Keep, why, bytes);
        match () {
            () if above_floor == 0 => elastic::record(page, &keep(Why::AtFloor, 0), now_ns),
            () if before > 0 && idle + freed == 0 => {
                elastic::record(page, &keep(Why::Young, u64::from(before) * SLICE as u64), now_ns);
            }
            () => self.elastic.explain(self, keep(Why::NothingFree, above_floor), now_ns),
        }
    }

    /// Makes the thread that maintains the arena, if one was asked for. Not in the middle of an allocation.
    pub(crate) fn start_thread(&'static self) {
        if !self.maintenance.wants_thread.load(Relaxed) {
            return;
        }
        // SAFETY: S9, sets and attributes are local and initialised before their use; the thread runs a function that lives as
        // long as the process, and gets no argument. Signals are blocked around the call, so that the thread inherits that.
        unsafe {
            let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
            let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
            let mut id = core::mem::zeroed();
            if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
                return;
            }
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            // A refusal leaves the arena to its frees, and the page without a thread's id.
            libc::pthread_create(&mut id, attributes.as_ptr(), maintain, null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
    }
}

/// The thread: ticks, four to an epoch, and one to a profile's cycle at least.
extern "C" fn maintain(_: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
    let arena = &crate::PROCESS;
    // SAFETY: S9, names the calling thread.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"hg-maintain".as_ptr()) };
    if let Some(page) = arena.page() {
        page.header.maintenance_tid.store(thread::tid(), Relaxed);
    }
    let pace = (arena.maintenance.epoch_ns.load(Relaxed) / 4).min(arena.elastic.pace_ns());
    let sleep = pace.clamp(*SLEEP_NS.start(), *SLEEP_NS.end());
    loop {
        futex::wait(&arena.maintenance.bell, 0, sleep);
        arena.tick();
        others::tick();
    }
}

/// Run by the loader when this object is loaded, before the program's own code.
extern "C" fn at_load() {
    if crate::config::wants_thread() && crate::PROCESS.ensure_started() {
        crate::PROCESS.start_thread();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
