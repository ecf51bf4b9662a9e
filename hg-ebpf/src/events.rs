//! Rare events: each hit goes to the ring buffer as it is, with the id of its stack if the probe is one of those whose
//! cause lies in the caller.

use aya_ebpf::{
    bindings::BPF_F_USER_STACK,
    helpers::bpf_ktime_get_ns,
    macros::map,
    maps::{RingBuf, StackTrace},
    programs::{ProbeContext, tracing::StackIdContext as _},
};
use hg_probes::{
    PROBES,
    maps::{Event, Lost, has_stack, is_event},
};

use crate::{arg, lost::lost};

/// Room for some 6000 events between two looks of hg-top.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(512 * 1024, 0);

/// Stacks that hg-top has not read yet; it empties the map as it reads.
#[map]
static STACKS: StackTrace = StackTrace::with_max_entries(1024, 0);

/// Probes whose hits become events, by number.
const EVENT_SET: u64 = {
    let (mut set, mut i) = (0, 0);
    while i < PROBES.len() {
        if is_event(PROBES[i].id) {
            set |= 1 << i;
        }
        i += 1;
    }
    set
};

/// Probes whose events carry a stack, by number.
const STACK_SET: u64 = {
    let (mut set, mut i) = (0, 0);
    while i < PROBES.len() {
        if has_stack(PROBES[i].id) {
            set |= 1 << i;
        }
        i += 1;
    }
    set
};

const _: () = assert!(PROBES.len() <= 64);

/// Sends an event to hg-top.
#[inline(always)]
pub(crate) fn record(ctx: &ProbeContext, probe: u64, pid_tgid: u64) {
    let bit = 1u64 << (probe & 63);
    if probe > 63 || EVENT_SET & bit == 0 {
        return;
    }
    let Some(mut event) = EVENTS.reserve::<Event>(0) else { return lost(Lost::RingFull) };
    // After the reservation: a stack whose event is lost would stay in the map for ever.
    let stack = if STACK_SET & bit == 0 {
        -1
    } else {
        match ctx.get_stackid(&STACKS, u64::from(BPF_F_USER_STACK)) {
            Ok(id) => id as i32,
            Err(error) => error,
        }
    };
    event.write(Event {
        // SAFETY: the helper has no precondition.
        ns: unsafe { bpf_ktime_get_ns() },
        probe: probe as u32,
        tgid: (pid_tgid >> 32) as u32,
        tid: pid_tgid as u32,
        stack,
        args: [arg(ctx, 0), arg(ctx, 1), arg(ctx, 2), arg(ctx, 3), arg(ctx, 4), arg(ctx, 5)],
    });
    event.submit(0);
}
