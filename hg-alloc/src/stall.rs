//! Telling the program of lock stalls of the process's arena, by a function of its own.
//!
//! The thread that saw the stall calls it, from inside malloc or free and after it let the lock go; another lock of the arena
//! may still be held. Arenas made by handle have a hook that may call back into them: `shared/hook.rs`.
//!
//! Lock: none. Callers: `lock.rs`, where it tells the probes.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use hg_probes::words::{LockId, Reason, StallKind};

/// A lock that was held, or waited for, at least as long as the threshold (`HG_LOCK_STALL_US`, 1000 µs by default).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockStall {
    /// Which lock.
    pub lock: LockId,
    /// Why the thread that tells took it.
    pub reason: Reason,
    /// How long, or how long so far if it still waits; ns.
    pub ns: u64,
    /// Whether that thread held it or waited for it.
    pub kind: StallKind,
    /// Thread that held it, in its own pid namespace; 0 if it let go.
    pub holder_tid: u32,
}

/// What is called. It must neither allocate nor free, nor wait for anybody: it runs in the middle of an allocation.
pub type StallHook = fn(&LockStall);

static HOOK: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Sets the function that is told of lock stalls of the process's arena, or none.
pub fn set_stall_hook(hook: Option<StallHook>) {
    HOOK.store(hook.map_or(null_mut(), |hook| hook as *mut ()), Release);
}

/// Tells a stall to whoever asked for it.
#[cold]
pub(crate) fn tell(stall: &LockStall) {
    let hook = HOOK.load(Acquire);
    if !hook.is_null() {
        // SAFETY: S15, not null, so it is what `set_stall_hook` stored.
        let hook = unsafe { core::mem::transmute::<*mut (), StallHook>(hook) };
        hook(stall);
    }
}
