//! The set of watched processes. hg-top puts in the processes the user named and takes out the dead; children are added
//! here, by their parent, before they run.

use aya_ebpf::{EbpfContext, bindings::BPF_NOEXIST, macros::map, maps::HashMap, programs::TracePointContext};
use hg_probes::maps::{Lost, MAX_PROCESSES, Watched};

use crate::lost::lost;

#[map]
static WATCHED: HashMap<u32, Watched> = HashMap::with_max_entries(MAX_PROCESSES, 0);

/// Offsets in the record of `task:task_newtask`; hg-top compares them with the kernel's own description before it
/// attaches.
const NEWTASK_PID: usize = 8;
const NEWTASK_CLONE_FLAGS: usize = 32;
const CLONE_THREAD: u64 = 0x10000;

const EEXIST: i32 = -17;

/// The entry of a process, if it is watched.
#[inline(always)]
pub(crate) fn find(tgid: u32) -> Option<*mut Watched> {
    WATCHED.get_ptr_mut(tgid)
}

/// Watches the new task if it is a process, not a thread, and its parent is watched.
#[inline(always)]
pub(crate) fn follow(ctx: &TracePointContext) {
    let parent = ctx.tgid();
    if find(parent).is_none() {
        return;
    }
    // SAFETY: both lie inside the record.
    let read = unsafe { (ctx.read_at::<u32>(NEWTASK_PID), ctx.read_at::<u64>(NEWTASK_CLONE_FLAGS)) };
    let (Ok(child), Ok(flags)) = read else { return lost(Lost::FilterFull) };
    if flags & CLONE_THREAD != 0 {
        return;
    }
    let entry = Watched { keys: 0, parent, reserved: 0 };
    match WATCHED.insert(child, entry, u64::from(BPF_NOEXIST)) {
        Ok(()) | Err(EEXIST) => {}
        Err(_) => lost(Lost::FilterFull),
    }
}
