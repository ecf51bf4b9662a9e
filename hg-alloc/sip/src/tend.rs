//! A thread of the server's main process that tends the arenas of all of its processes: a step of maintenance, and the role of
//! each process where the server has written it down.
//!
//! It starts when the main process forks its first worker, with all signals blocked, as these are for the server's own thread. It
//! has to be gone before the server unmaps shared memory. A worker that forks on has none: the main process is claimed to be the
//! one that forks first, and its children inherit that word.

use crate::domain::SHM;
use crate::{cpus, server};
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use hg_probes::directory::state;

/// Time between two rounds, nanoseconds.
const ROUND_NS: i64 = 250_000_000;

/// The main process, 0 as long as there is none.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Its thread, 0 for none.
static THREAD: AtomicU64 = AtomicU64::new(0);
/// 1 once the thread is to end; a futex.
static STOP: AtomicU32 = AtomicU32::new(0);

fn process() -> u32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() as u32 }
}

/// Takes the process that is about to fork a worker for the main one, if none was yet.
pub(crate) fn claim() {
    if PROCESS.load(Relaxed) == 0 {
        PROCESS.store(process(), Relaxed);
    }
}

/// Starts the thread, if this is the main process and has none.
pub(crate) fn start() {
    if SHM.arena().is_none() || PROCESS.load(Relaxed) != process() || THREAD.load(Relaxed) != 0 {
        return;
    }
    STOP.store(0, Relaxed);
    // SAFETY: the sets and the thread's place are this function's own; the mask is restored.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let mut thread = 0;
        if libc::pthread_create(&mut thread, null(), run, null_mut()) == 0 {
            THREAD.store(thread, Relaxed);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
    }
}

/// Ends the thread, if this process has it. Waits for it.
pub(crate) fn stop() {
    if PROCESS.load(Relaxed) != process() || THREAD.load(Relaxed) == 0 {
        return;
    }
    STOP.store(1, Release);
    // SAFETY: the futex is a static; the thread was made by `start`, and is joined once.
    unsafe {
        libc::syscall(libc::SYS_futex, STOP.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        libc::pthread_join(THREAD.load(Relaxed), null_mut());
    }
    THREAD.store(0, Relaxed);
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: a name of less than 16 bytes, for the thread itself.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), c"hg-tend".as_ptr()) };
    let Some(arena) = SHM.arena() else { return null_mut() };
    loop {
        let time = libc::timespec { tv_sec: 0, tv_nsec: ROUND_NS };
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the futex is a static, the time this function's own.
        unsafe { libc::syscall(libc::SYS_futex, STOP.as_ptr(), operation, 0, &raw const time) };
        if STOP.load(Acquire) != 0 {
            return null_mut();
        }
        arena.tick();
        server::ticked();
        name_processes();
    }
}

/// Gives each process of the directory its role, as the server has it, and the CPUs that go with it.
fn name_processes() {
    let records = SHM.processes().unwrap_or_default();
    for record in records.iter().filter(|record| record.state.load(Relaxed) == state::LIVE) {
        // Again each round: servers rename processes, and reuse their entries.
        if let Some(role) = server::role(record.pid.load(Relaxed)) {
            record.set_role(role);
            cpus::apply(record, role);
        }
    }
}
