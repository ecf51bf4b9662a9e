//! The eBPF program of hg: what a probe hit of a watched process becomes in the kernel.
//!
//! | module | what it owns |
//! |---|---|
//! | [`watch`] | the set of watched processes; children join it before they run |
//! | [`sums`] | sums per class and lock, with a bound on the keys one process may create |
//! | [`events`] | the ring buffer of rare events, and the stacks of those that carry one |
//! | [`lost`] | what could not be counted, by reason |
//! | [`word`] | the atomic operations they all use |
//!
//! One program, [`probe`], serves all sites: the attach cookie is the probe's number and the calling convention of a site
//! pins its arguments to the argument registers, so nothing has to be decoded. Several tasks may run the program on one
//! CPU in turns, so every update is an atomic add although all maps that are added to are per CPU.
//!
//! No code here may panic: the verifier refuses a program that contains a call that does not return.
#![no_std]
#![no_main]
#![allow(internal_features, reason = "the target's atomics have no other name, see `word`")]
#![feature(core_intrinsics)]

mod events;
mod lost;
mod sums;
mod watch;
mod word;

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid},
    macros::{tracepoint, uprobe},
    programs::{ProbeContext, TracePointContext},
};
use hg_probes::{
    ProbeId,
    maps::{ClassKey, LockKey},
};

const REFILL: u64 = ProbeId::Refill as u64;
const FLUSH: u64 = ProbeId::Flush as u64;
const LOCK_ACQUIRE: u64 = ProbeId::LockAcquire as u64;
const LOCK_RELEASE: u64 = ProbeId::LockRelease as u64;

/// Runs at each hit of a probe of any process; hits of processes that are not watched end at the first lookup.
#[uprobe]
pub fn probe(ctx: ProbeContext) -> u32 {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    let Some(watched) = watch::find(tgid) else { return 0 };
    // SAFETY: the context is the one this program was called with.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    #[cfg(feature = "bpf-log")]
    aya_log_ebpf::debug!(&ctx, "probe {} of process {}: {} {}", cookie, tgid, arg(&ctx, 0), arg(&ctx, 1));
    match cookie {
        REFILL => sums::refill(watched, &class(&ctx, tgid), arg(&ctx, 2), arg(&ctx, 3)),
        FLUSH => sums::flush(watched, &class(&ctx, tgid), arg(&ctx, 2)),
        LOCK_ACQUIRE => sums::waited(watched, &lock(&ctx, tgid), arg(&ctx, 3)),
        LOCK_RELEASE => sums::held(watched, &lock(&ctx, tgid), arg(&ctx, 3)),
        _ => events::record(&ctx, cookie, pid_tgid),
    }
    0
}

/// Runs when a task is created, in its parent and before it runs: a child of a watched process is watched from its first
/// instruction.
#[tracepoint(category = "task", name = "task_newtask")]
pub fn newtask(ctx: TracePointContext) -> u32 {
    watch::follow(&ctx);
    0
}

/// The argument in the `n`-th argument register.
#[inline(always)]
fn arg(ctx: &ProbeContext, n: usize) -> u64 {
    ctx.arg(n).unwrap_or(0)
}

#[inline(always)]
fn class(ctx: &ProbeContext, tgid: u32) -> ClassKey {
    ClassKey { tgid, arena: arg(ctx, 0) as u32, class: arg(ctx, 1) as u32 }
}

#[inline(always)]
fn lock(ctx: &ProbeContext, tgid: u32) -> LockKey {
    LockKey { tgid, arena: arg(ctx, 0) as u32, lock: arg(ctx, 1) as u32, reason: arg(ctx, 2) as u32 }
}

/// Never called; the language wants it.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// Some helpers are open to GPL programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
