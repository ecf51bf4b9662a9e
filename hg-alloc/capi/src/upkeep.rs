//! Roles, maintenance, and what is done after a process died.

use crate::handle::{Arena, get};
use crate::status::Status;
use crate::text::given;
use core::ffi::c_char;

crate::versioned!("hg_set_role" "hg_tick" "hg_trim" "hg_recover");

/// What a recovery found.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Recovered {
    /// Threads that died with the arena in their hands.
    pub threads: u64,
    /// Blocks that only they had, between a cache and the program, and that are free again.
    pub blocks: u64,
}

/// Says what the calling process does, such as "SIP receiver udp:5060": hg-top shows it. At most 64 bytes of UTF-8, the rest
/// is cut. Each process says it for itself, after the fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_set_role(arena: *mut Arena, role: *const c_char) -> Status {
    // SAFETY: C1.
    match unsafe { (get(arena), given(role)) } {
        (Some(arena), Some(role)) => {
            arena.set_role(role);
            Status::Ok
        }
        _ => Status::Argument,
    }
}

/// One step of maintenance: growth ahead of demand, what the profile wants, idle memory given back. To be called about once a
/// second by one process at least; a call while another is at it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_tick(arena: *mut Arena) {
    // SAFETY: C1.
    if let Some(arena) = unsafe { get(arena) } {
        arena.tick();
    }
}

/// Empties all caches and gives all free memory back to the system. Answers how many bytes that were. Milliseconds: for quiet
/// moments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_trim(arena: *mut Arena) -> u64 {
    // SAFETY: C1.
    unsafe { get(arena) }.map_or(0, |arena| arena.trim())
}

/// Looks for threads of any process that died, and gives back what only they had in their hands. To be called by a parent that
/// saw a child die; the others work on meanwhile. Blocks that the dead process held as its own are not looked for: the
/// arena cannot know whether others use them. Counts go to recovered, unless that is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_recover(arena: *mut Arena, recovered: *mut Recovered) -> Status {
    // SAFETY: C1.
    let Some(arena) = (unsafe { get(arena) }) else { return Status::Argument };
    let found = arena.recover();
    if !recovered.is_null() {
        // SAFETY: C1.
        unsafe { *recovered = Recovered { threads: found.threads.into(), blocks: found.cells.into() } };
    }
    Status::Ok
}
