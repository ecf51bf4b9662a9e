//! Which server this is, if any, and the moments of its start at which its memory may have been set up.
//!
//! Moments are calls of the C library's functions that both servers make between setting up memory and forking workers
//! (`hooks.rs`); the process has one thread then.

use crate::domain::SHM;
use crate::settings::{self, Hook};
use crate::{cpus, kamailio, opensips, report, roles, tend};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

const NONE: u8 = 0;
const KAMAILIO: u8 = 1;
const OPENSIPS: u8 = 2;

static SERVER: AtomicU8 = AtomicU8::new(NONE);

/// Looks whether the executable is a server that can be taken over. Called when the library is loaded.
pub(crate) fn start() {
    report::remember_stderr();
    let server = match () {
        () if kamailio::is_here() => KAMAILIO,
        () if opensips::is_here() => OPENSIPS,
        () => return,
    };
    let hook = settings::hook();
    let is_ready = match server {
        _ if hook == Hook::Off => false,
        KAMAILIO => kamailio::prepare(hook),
        _ => opensips::prepare(hook),
    };
    if is_ready {
        settings::check();
        cpus::check();
        SERVER.store(server, Relaxed);
    }
}

/// Takes over what the server has set up since the last moment.
pub(crate) fn moment() {
    match SERVER.load(Relaxed) {
        KAMAILIO => kamailio::moment(),
        OPENSIPS => opensips::moment(),
        _ => {}
    }
}

/// Before a fork: what the child is to be given.
pub(crate) fn before_fork() -> Option<cpus::Set> {
    // Before the server has its table of processes, it forks to become a daemon.
    if SERVER.load(Relaxed) == NONE || table().is_null() {
        return None;
    }
    tend::claim();
    cpus::choose()
}

/// After a fork, in both processes; `pid` is what fork returned.
pub(crate) fn after_fork(pid: libc::pid_t, given: Option<cpus::Set>) {
    if pid < 0 || SERVER.load(Relaxed) == NONE || table().is_null() {
        return;
    }
    if pid == 0 {
        // So that a process that is idle for now is in the arena's directory as well.
        SHM.arena().into_iter().for_each(|arena| arena.set_role(""));
        given.iter().for_each(cpus::take);
    } else {
        given.iter().for_each(|set| cpus::count(pid as u32, set));
        tend::start();
    }
}

/// After a step of maintenance of shared memory.
pub(crate) fn ticked() {
    if SERVER.load(Relaxed) == OPENSIPS {
        opensips::ticked();
    }
}

/// The server's table of processes; null until it has one.
pub(crate) fn table() -> *mut c_void {
    match SERVER.load(Relaxed) {
        KAMAILIO => kamailio::table(),
        OPENSIPS => opensips::table(),
        _ => null_mut(),
    }
}

/// What a process of the server does, in the server's words: its entry in the table of processes, once it is there.
pub(crate) fn role(pid: u32) -> Option<&'static str> {
    let text_at = if SERVER.load(Relaxed) == KAMAILIO { kamailio::ROLE_AT } else { opensips::ROLE_AT };
    roles::find(&SHM, table(), pid, text_at)
}
