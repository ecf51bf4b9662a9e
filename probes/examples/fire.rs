//! Fires the probes with arguments that are known, for tests and for trying out a tracer.
//!
//! ```text
//! fire once          every probe once
//! fire hits N        N times each probe of a batch: in two threads on different CPUs, and in two forked children
//! fire keys N        one refill in each of N classes
//! fire flood N       N times grow
//! ```
//!
//! It says `ready`, waits for a line, fires, says `fired`, and waits for the end of its input. So a tracer can attach before
//! and look afterwards.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, CorruptionKind, Destination, LockId, Reason, Source, StallKind, Tier};

/// Arguments of a hit by a thread or child; `who` keeps them apart.
fn hits(who: u32, count: u64) {
    for i in 0..count {
        let class = 64 << (i % 2);
        emit::refill(|| args::refill { arena: 1 + who, class, reused: 3, carved: 2, source: Source::Central, ns: 700 });
        emit::flush(|| args::flush { arena: 1 + who, class, cells: 7, destination: Destination::Transfer, ns: 300 });
        let (lock, reason) = (LockId::class(64), Reason::Refill);
        emit::lock_acquire(|| args::lock_acquire { arena: 1 + who, lock, reason, wait_ns: i });
        emit::lock_release(|| args::lock_release { arena: 1 + who, lock, reason, hold_ns: 1000 + i });
    }
}

fn once() {
    emit::grow(|| args::grow {
        arena: 1,
        old_bytes: 16 << 20,
        new_bytes: 5 << 30,
        tier: Tier::Thp,
        cause: Cause::Exhausted,
        ns: 123_456,
    });
    emit::grow_refused(|| args::grow_refused { arena: 2, wanted_bytes: 1 << 21, cause: Cause::Kernel, errno: 12 });
    emit::grow_blocked(|| args::grow_blocked { arena: 3, on: 1, cause: Cause::Cap });
    emit::shrink(|| args::shrink {
        arena: 4,
        old_bytes: 64 << 20,
        new_bytes: 32 << 20,
        cause: Cause::Slack,
        ns: 9_876,
    });
    emit::refill(|| args::refill { arena: 5, class: 96, reused: 20, carved: 12, source: Source::Fresh, ns: 450 });
    emit::flush(|| args::flush { arena: 6, class: 112, cells: 31, destination: Destination::Central, ns: 440 });
    emit::lock_acquire(|| args::lock_acquire { arena: 7, lock: LockId::GRID, reason: Reason::Grow, wait_ns: 77 });
    emit::lock_release(|| args::lock_release {
        arena: 8,
        lock: LockId::class(128),
        reason: Reason::Flush,
        hold_ns: 88,
    });
    emit::lock_stall(|| args::lock_stall {
        arena: 9,
        lock: LockId::class(256),
        reason: Reason::Refill,
        ns: 4_200_000,
        hold_or_wait: StallKind::Wait,
        holder_tid: 4250,
    });
    emit::corruption(|| args::corruption {
        arena: 10,
        kind: CorruptionKind::ForeignFree,
        address: 0x7fff_dead_b000,
        class: 48,
        detail: 2,
    });
    emit::alloc_failed(|| args::alloc_failed { arena: 11, bytes: 1 << 40, cause: Cause::TooLarge });
    emit::tier_change(|| args::tier_change { arena: 12, page: 17, from: Tier::Base, to: Tier::Collapsed });
    emit::pin(|| args::pin { arena: 13, bytes: 4096, pinned: 8192, errno: -1 });
    emit::large_alloc(|| args::large_alloc { arena: 14, address: 0x7f00_0000_1000, bytes: 1 << 20, ns: 15_000 });
    emit::large_free(|| args::large_free { arena: 15, address: 0x7f00_0000_2000, bytes: 2 << 20, ns: 16_000 });
    emit::owner_dead(|| args::owner_dead { arena: 16, lock: LockId::class(512), dead_tid: 99, cells_recovered: 5 });
    emit::sample_alloc(|| args::sample_alloc { arena: 17, address: 0x7f00_0000_3000, bytes: 100, weight: 524_288 });
    emit::sample_free(|| args::sample_free {
        arena: 18,
        address: 0x7f00_0000_4000,
        bytes: 200,
        age_ns: 60_000_000_000,
    });
}

/// The calling thread to one CPU, if there is that CPU.
fn pin_to(cpu: usize) {
    // SAFETY: the set is a plain array of bits, written and read within its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Two threads and two children, at the same time; the children are forked while the threads run.
fn hits_of_all(count: u64) {
    std::thread::scope(|scope| {
        for who in 0..2 {
            scope.spawn(move || {
                pin_to(who as usize);
                hits(who, count);
            });
        }
        let children: Vec<i32> = (2..4)
            .map(|who| {
                // SAFETY: the child only fires probes, which allocate nothing, and leaves by `_exit`.
                unsafe {
                    match libc::fork() {
                        0 => {
                            hits(who, count);
                            libc::_exit(0)
                        }
                        child => child,
                    }
                }
            })
            .collect();
        for child in children {
            println!("child {child}");
            // SAFETY: no status is asked for.
            unsafe { libc::waitid(libc::P_PID, child as u32, std::ptr::null_mut(), libc::WEXITED | libc::WNOWAIT) };
        }
    });
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(1);
    let Some(what) = words.first().map(String::as_str) else {
        eprintln!("usage: fire once | hits N | keys N | flood N");
        return ExitCode::from(2);
    };
    println!("ready");
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    let _ = input.read_line(&mut line);
    match what {
        "once" => once(),
        "hits" => hits_of_all(number),
        "keys" => (0..number as u32).for_each(|i| {
            emit::refill(|| args::refill {
                arena: 1,
                class: 16 + i,
                reused: 1,
                carved: 1,
                source: Source::Central,
                ns: 1,
            });
        }),
        "flood" => (0..number).for_each(|i| {
            emit::grow(|| args::grow {
                arena: 1,
                old_bytes: i,
                new_bytes: i + 1,
                tier: Tier::Base,
                cause: Cause::Ahead,
                ns: 1,
            });
        }),
        other => {
            eprintln!("fire: unknown word {other}");
            return ExitCode::from(2);
        }
    }
    println!("fired");
    let _ = std::io::stdout().flush();
    // Children stay unreaped until here, so that a tracer can still tell them from the dead.
    while input.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {}
    ExitCode::SUCCESS
}
