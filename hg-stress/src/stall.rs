//! A lock stall, provoked for real: a thread is held up by a signal handler while it is inside the allocator with a lock.
//!
//! Two *hammers* allocate and free more blocks of one class than a front cache holds, so they spend much of their time in
//! refills and flushes of that class. The first is interrupted again and again by `SIGUSR2`; its handler watches the
//! second: one that goes on shows that the lock is free, and the handler returns at once; one that stands still is most
//! likely waiting for a lock that the interrupted thread holds, and the handler sleeps on. The allocator's own stall
//! counter, not this guess, decides whether it worked.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use hg_probes::page::StatsPage;

use crate::{HEAP, counters};

/// The hammered blocks: large enough that a front cache holds few of them. They are neither stamped nor touched, which
/// would only take time away from the slow paths.
const HAMMERED: Layout = Layout::new::<[u8; 8192]>();

/// Blocks that a hammer takes before it frees them: several times what a front cache may grow to on demand.
const HAMMER_BLOCKS: usize = 1024;

/// Time after which an attempt is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bursts done by the hammer that is not interrupted.
static BURSTS: AtomicU64 = AtomicU64::new(0);

/// Signals handled. The next is sent only then: one that is pending when the handler returns would interrupt the very same
/// instruction again.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// How long the handler holds its thread up, ns.
static HOLD_NS: AtomicU64 = AtomicU64::new(0);

/// Only one stall is provoked at a time: the handler's words above are global.
static BUSY: AtomicBool = AtomicBool::new(false);

/// What an attempt came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provoked {
    /// Signals sent.
    pub tries: u64,
    /// Stalls that the allocator counted meanwhile, holds and waits together.
    pub stalls: u64,
}

/// Provokes a stall of about `ms` milliseconds; gives up after 10 s, or as soon as `stop` says so.
pub fn provoke(page: &StatsPage, ms: u64, stop: impl Fn() -> bool) -> Provoked {
    let mut provoked = Provoked::default();
    if BUSY.swap(true, AcqRel) {
        return provoked;
    }
    install_handler();
    HOLD_NS.store(ms * 1_000_000, Relaxed);
    let before = counters::stalls(page);
    let handled = HANDLED.load(Acquire);
    let (running, tid) = (AtomicBool::new(true), AtomicI32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: gettid has no preconditions.
            tid.store(unsafe { libc::gettid() }, Release);
            hammer(&running, || ());
        });
        scope.spawn(|| {
            hammer(&running, || {
                BURSTS.fetch_add(1, Relaxed);
            });
        });
        let start = Instant::now();
        while provoked.stalls == 0 && start.elapsed() < PATIENCE && !stop() {
            // A pause of changing length, so that the signals do not keep step with the bursts.
            std::thread::sleep(Duration::from_micros(20 + provoked.tries % 7 * 15));
            if HANDLED.load(Acquire) == handled + provoked.tries && interrupt(tid.load(Acquire)) {
                provoked.tries += 1;
            }
            provoked.stalls = counters::stalls(page) - before;
        }
        running.store(false, Release);
    });
    provoked.stalls = counters::stalls(page) - before;
    BUSY.store(false, Release);
    provoked
}

fn hammer(running: &AtomicBool, done: impl Fn()) {
    let mut blocks = [std::ptr::null_mut(); HAMMER_BLOCKS];
    while running.load(Acquire) {
        for block in &mut blocks {
            // SAFETY: the layout has a size.
            *block = black_box(unsafe { HEAP.alloc(HAMMERED) });
        }
        for &block in blocks.iter().filter(|block| !block.is_null()) {
            // SAFETY: allocated above with the same layout, and freed once.
            unsafe { HEAP.dealloc(block, HAMMERED) };
        }
        done();
    }
}

/// Sends the signal; false if the thread is not there yet.
fn interrupt(tid: i32) -> bool {
    // SAFETY: a signal to a thread of this process by its id, 0 is none (EINVAL). The handler is installed.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR2) == 0 }
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: a zeroed sigaction is a valid one; the handler is async-signal-safe (atomics and nanosleep alone).
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = hold_up as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
    });
}

extern "C" fn hold_up(_signal: i32) {
    const LOOK_NS: u64 = 300_000;
    let bursts = BURSTS.load(Relaxed);
    let hold_ns = HOLD_NS.load(Relaxed);
    let mut waited = 0;
    while waited < hold_ns {
        let slice = LOOK_NS.min(hold_ns - waited) as i64;
        // SAFETY: nanosleep is async-signal-safe; errno, which it may change, is put back for the interrupted code.
        unsafe {
            let errno = *libc::__errno_location();
            libc::nanosleep(&libc::timespec { tv_sec: 0, tv_nsec: slice }, std::ptr::null_mut());
            *libc::__errno_location() = errno;
        }
        waited += slice as u64;
        if BURSTS.load(Relaxed) > bursts + 1 {
            break;
        }
    }
    HANDLED.fetch_add(1, Release);
}
