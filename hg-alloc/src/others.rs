//! What the maintenance thread ticks beside the process's own arena: the arenas made by handle, by a pointer that the first of
//! them sets. So a program without such arenas has none of their code, and a library that has only them none of the process's
//! arena: the two know this file and not each other.
//!
//! Lock: none. Callers: `maintain.rs` and `shared/create.rs`.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};

static TICK: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Lets the thread call this too.
pub(crate) fn set_tick(tick: fn()) {
    TICK.store(tick as *mut (), Release);
}

/// Calls what was set, if something was.
pub(crate) fn tick() {
    let tick = TICK.load(Acquire);
    if !tick.is_null() {
        // SAFETY: S15, not null, so it is what `set_tick` stored.
        let tick = unsafe { core::mem::transmute::<*mut (), fn()>(tick) };
        tick();
    }
}
