//! Telling the program what happened: calls into it, by the thread that saw it, with no lock of the library held.

use crate::handle::Arena;
use crate::sites;
use crate::status::Status;
use core::cell::Cell;
use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use hg_alloc::shared::{self, Event};
use hg_probes::words::StallKind;

crate::versioned!("hg_set_callbacks");

/// A lock of an arena was held, or waited for, longer than the threshold (HG_LOCK_STALL_US, 1000 by default).
#[repr(C)]
pub struct LockStall {
    /// How long so far, ns.
    pub ns: u64,
    /// Bytes of the blocks that the lock is for; 0 for that of the grid, which has memory for all of them.
    pub lock: u32,
    /// Why the thread that tells took it: hg_reason_label has the word.
    pub reason: u32,
    /// 1: the thread that tells waited; 0: it held the lock itself.
    pub waited: u32,
    /// The thread that held it, in its own pid namespace; 0 if it let go meanwhile.
    pub holder_tid: u32,
}

/// A limit of the system began or ceased to keep an arena from growing.
#[repr(C)]
pub struct GrowBlocked {
    /// 1: growth is blocked from now on; 0: it is not any more.
    pub on: u32,
    /// By what: hg_cause_label has the word.
    pub cause: u32,
    /// Bytes that are committed.
    pub committed_bytes: u64,
}

/// A call was refused: a double free, say.
#[repr(C)]
pub struct Corruption {
    /// What was wrong: hg_corruption_label has the word.
    pub kind: u32,
    /// Bytes of the blocks at the address, 0 where that is not known.
    pub block_bytes: u32,
    /// The address of the call.
    pub address: *mut c_void,
    /// Where the call was made, as hg_free_at was told; else null and 0.
    pub file: *const c_char,
    /// As file.
    pub function: *const c_char,
    /// As file.
    pub line: u32,
}

/// What the program wants to be told. Each function may be null. They are called by the thread that saw what happened, or by one
/// that comes after it, with no lock of this library held: they may allocate. While one runs in a thread, others of that
/// thread are left out. The structures last as long as the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Callbacks {
    /// Size of this structure as the program knows it, bytes: sizeof(hg_callbacks).
    pub struct_size: usize,
    /// Handed to each call.
    pub context: *mut c_void,
    /// See hg_lock_stall.
    pub lock_stall: Option<unsafe extern "C" fn(context: *mut c_void, arena: *mut Arena, event: *const LockStall)>,
    /// See hg_grow_blocked.
    pub grow_blocked: Option<unsafe extern "C" fn(context: *mut c_void, arena: *mut Arena, event: *const GrowBlocked)>,
    /// See hg_corruption.
    pub corruption: Option<unsafe extern "C" fn(context: *mut c_void, arena: *mut Arena, event: *const Corruption)>,
}

/// The callbacks in use: a leaked copy, as another thread may be in one while they are changed.
static CALLBACKS: AtomicPtr<Callbacks> = AtomicPtr::new(null_mut());

/// Sets what this process wants to be told of all its arenas, in place of what was set before; null: nothing. Forked children
/// inherit it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_set_callbacks(callbacks: *const Callbacks) -> Status {
    // SAFETY: C1.
    let Some(given) = (unsafe { callbacks.as_ref() }) else {
        shared::set_hook(None);
        CALLBACKS.store(null_mut(), Release);
        return Status::Ok;
    };
    if given.struct_size != size_of::<Callbacks>() {
        return Status::Options;
    }
    CALLBACKS.store(Box::leak(Box::new(*given)), Release);
    shared::set_hook(Some(tell));
    Status::Ok
}

thread_local! {
    /// Whether this thread is in a callback.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

fn tell(arena: &'static shared::Arena, event: &Event) {
    // SAFETY: leaked, hence there for ever.
    let Some(callbacks) = (unsafe { CALLBACKS.load(Acquire).as_ref() }) else { return };
    if TELLING.replace(true) {
        return;
    }
    call(callbacks, arena, event);
    TELLING.set(false);
}

fn call(callbacks: &Callbacks, arena: &'static shared::Arena, event: &Event) {
    let handle = Arena::of(arena);
    let context = callbacks.context;
    match *event {
        Event::LockStall { lock, reason, ns, kind, holder_tid } => {
            let waited = u32::from(kind == StallKind::Wait);
            let event = LockStall { ns, lock: lock.0, reason: reason as u32, waited, holder_tid };
            // SAFETY: C2.
            callbacks.lock_stall.inspect(|call| unsafe { call(context, handle, &event) });
        }
        Event::GrowBlocked { on, cause } => {
            let committed_bytes = arena.committed_bytes();
            let event = GrowBlocked { on: u32::from(on), cause: cause as u32, committed_bytes };
            // SAFETY: C2.
            callbacks.grow_blocked.inspect(|call| unsafe { call(context, handle, &event) });
        }
        Event::Corruption { kind, address, class } => {
            let site = sites::current();
            let event = Corruption {
                kind: kind as u32,
                block_bytes: class,
                address: address as *mut c_void,
                file: site.file.cast(),
                function: site.function.cast(),
                line: site.line,
            };
            // SAFETY: C2.
            callbacks.corruption.inspect(|call| unsafe { call(context, handle, &event) });
        }
    }
}
