//! The catalogue: every USDT probe of provider `hg`, declared once.
//!
//! From one declaration come the assembly of the site (`usdt.rs`), the typed `emit` function, the argument struct, and the
//! row of [`PROBES`] that hg-top, the BPF program and the documentation read. A probe's [`ProbeId`] is its place in this
//! file, is used as the BPF attach cookie, and stands in recorded events: new probes go at the end.
//!
//! `emit::NAME(|| NAME { … })` costs a load and a predicted branch while no tracer is attached; the closure that computes
//! the arguments runs only if one is. A site is never placed inside a restartable sequence or a critical section.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::usdt::{Word, site};
use crate::words::{Cause, CorruptionKind, Destination, LockId, Reason, Source, StallKind, Tier};

/// How often a probe fires, which decides how a tracer should take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Seconds to hours apart: each hit is worth an event of its own.
    Rare,
    /// Once per batch of cells or per large object, up to some 100 k/s under load: aggregate in the kernel.
    Batch,
}

/// What an argument is, hence how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Number of an arena in its process, from 1.
    Arena,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Ns,
    /// An address in the traced process.
    Address,
    /// A size class, given as the size of its cells in bytes.
    Class,
    /// A number of cells.
    Cells,
    /// Number of a page in its arena's grid.
    Page,
    /// A thread id, in the traced process's pid namespace.
    Tid,
    /// An errno value, 0 for none.
    Errno,
    /// 0 or 1.
    Flag,
    /// A [`LockId`].
    Lock,
    /// A [`Tier`].
    Tier,
    /// A [`Cause`].
    Cause,
    /// A [`Reason`].
    Reason,
    /// A [`StallKind`].
    StallKind,
    /// A [`CorruptionKind`].
    CorruptionKind,
    /// A [`Source`].
    Source,
    /// A [`Destination`].
    Destination,
    /// A plain number whose meaning the probe's documentation gives.
    Number,
}

/// One argument of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name in JSON, on screen and in the documentation.
    pub name: &'static str,
    /// What it is.
    pub unit: Unit,
}

/// One probe of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its number, used as the BPF attach cookie.
    pub id: ProbeId,
    /// Its name behind the provider `hg`.
    pub name: &'static str,
    /// When it fires, in one line.
    pub doc: &'static str,
    /// How often it fires.
    pub rate: Rate,
    /// Its arguments, in the order of the registers.
    pub args: &'static [Arg],
}

macro_rules! catalogue {
    ($($(#[doc = $doc:literal])+ $rate:ident $id:ident $name:ident {
        $($arg:ident: $ty:ty => $unit:ident),* $(,)?
    })*) => {
        /// The number of a probe: its attach cookie and its key in events.
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ProbeId { $($(#[doc = $doc])+ $id),* }

        impl ProbeId {
            /// The probe of a number that came over the process border, if this version knows it.
            pub const fn from_u64(number: u64) -> Option<ProbeId> {
                if number < PROBES.len() as u64 { Some(PROBES[number as usize].id) } else { None }
            }

            /// The row of the catalogue.
            pub const fn probe(self) -> &'static Probe {
                &PROBES[self as usize]
            }
        }

        /// Every probe, in the order of their ids.
        pub const PROBES: &[Probe] = &[$(Probe {
            id: ProbeId::$id,
            name: stringify!($name),
            doc: concat!($($doc),+),
            rate: Rate::$rate,
            args: &[$(Arg { name: stringify!($arg), unit: Unit::$unit }),*],
        }),*];

        /// The arguments of each probe, under the probe's own name.
        #[allow(non_camel_case_types)]
        pub mod args {
            use super::*;
            $($(#[doc = $doc])+ #[derive(Clone, Copy, Debug)] pub struct $name { $(
                #[doc = concat!("Argument `", stringify!($arg), "`, in ", stringify!($unit), ".")]
                pub $arg: $ty
            ),* })*
        }

        $(#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))] site!($name $($arg)*);)*

        /// Whether a tracer listens, for work that a probe needs ahead of its firing.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        pub mod listening {
            use core::sync::atomic::{AtomicU16, Ordering};

            $(
            #[doc = concat!("Whether a tracer listens to `", stringify!($name), "`.")]
            #[inline(always)]
            pub fn $name() -> bool {
                unsafe extern "C" {
                    // One word of `.probes`; the kernel writes it through the file's mapping.
                    #[link_name = concat!("hg_semaphore_", stringify!($name))]
                    safe static SEMAPHORE: AtomicU16;
                }
                SEMAPHORE.load(Ordering::Relaxed) != 0
            }
            )*
        }

        /// The functions that fire the probes.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        pub mod emit {
            use super::{Word, args, listening};

            $(
            $(#[doc = $doc])+
            ///
            /// `arguments` is computed only while a tracer listens.
            #[inline(always)]
            pub fn $name(arguments: impl FnOnce() -> args::$name) {
                unsafe extern "C" {
                    #[link_name = concat!("hg_probe_", stringify!($name))]
                    safe fn site($($arg: u64),*);
                }
                if listening::$name() {
                    #[cold]
                    #[inline(never)]
                    fn fire(arguments: args::$name) {
                        site($(arguments.$arg.word()),*);
                    }
                    fire(arguments());
                }
            }
            )*
        }
    };
}

catalogue! {
    /// An arena committed more memory.
    Rare Grow grow {
        arena: u32 => Arena, old_bytes: u64 => Bytes, new_bytes: u64 => Bytes, tier: Tier => Tier, cause: Cause => Cause,
        ns: u64 => Ns,
    }
    /// An arena was not allowed, or not able, to commit more memory.
    Rare GrowRefused grow_refused {
        arena: u32 => Arena, wanted_bytes: u64 => Bytes, cause: Cause => Cause, errno: i32 => Errno,
    }
    /// Growth became blocked (on = 1) or possible again (on = 0).
    Rare GrowBlocked grow_blocked { arena: u32 => Arena, on: u32 => Flag, cause: Cause => Cause }
    /// An arena gave memory back to the system.
    Rare Shrink shrink {
        arena: u32 => Arena, old_bytes: u64 => Bytes, new_bytes: u64 => Bytes, cause: Cause => Cause, ns: u64 => Ns,
    }
    /// A front cache got a batch of cells; the cell that goes to the caller counts too.
    Batch Refill refill {
        arena: u32 => Arena, class: u32 => Class, reused: u32 => Cells, carved: u32 => Cells, source: Source => Source,
        ns: u64 => Ns,
    }
    /// A front cache gave a batch of cells back.
    Batch Flush flush {
        arena: u32 => Arena, class: u32 => Class, cells: u32 => Cells, destination: Destination => Destination,
        ns: u64 => Ns,
    }
    /// A lock was acquired. Fires after its release, so that tracing lengthens no critical section.
    Batch LockAcquire lock_acquire {
        arena: u32 => Arena, lock: LockId => Lock, reason: Reason => Reason, wait_ns: u64 => Ns,
    }
    /// A lock was released. Fires after the release.
    Batch LockRelease lock_release {
        arena: u32 => Arena, lock: LockId => Lock, reason: Reason => Reason, hold_ns: u64 => Ns,
    }
    /// A lock was waited for or held longer than HG_LOCK_STALL_US. A waiter fires while it still waits.
    Rare LockStall lock_stall {
        arena: u32 => Arena, lock: LockId => Lock, reason: Reason => Reason, ns: u64 => Ns,
        hold_or_wait: StallKind => StallKind, holder_tid: u32 => Tid,
    }
    /// A bad call was refused: a double free, an interior, foreign or wild pointer, a doubled entry. The class is 0 where
    /// none is known; the detail is the state byte found, or 0.
    Rare Corruption corruption {
        arena: u32 => Arena, kind: CorruptionKind => CorruptionKind, address: usize => Address, class: u32 => Class,
        detail: u64 => Number,
    }
    /// An allocation failed; the caller got NULL and ENOMEM.
    Rare AllocFailed alloc_failed { arena: u32 => Arena, bytes: usize => Bytes, cause: Cause => Cause }
    /// What backs a page changed.
    Rare TierChange tier_change { arena: u32 => Arena, page: u64 => Page, from: Tier => Tier, to: Tier => Tier }
    /// An attempt to lock committed memory into RAM; pinned is the sum after it.
    Rare Pin pin { arena: u32 => Arena, bytes: u64 => Bytes, pinned: u64 => Bytes, errno: i32 => Errno }
    /// A large object was allocated.
    Batch LargeAlloc large_alloc { arena: u32 => Arena, address: usize => Address, bytes: usize => Bytes, ns: u64 => Ns }
    /// A large object was freed.
    Batch LargeFree large_free { arena: u32 => Arena, address: usize => Address, bytes: usize => Bytes, ns: u64 => Ns }
    /// The dead owner of a lock of a shared arena was replaced, and what it held in flight was recovered.
    Rare OwnerDead owner_dead {
        arena: u32 => Arena, lock: LockId => Lock, dead_tid: u32 => Tid, cells_recovered: u32 => Cells,
    }
    /// A sampled allocation; weight is the number of bytes it stands for.
    Batch SampleAlloc sample_alloc {
        arena: u32 => Arena, address: usize => Address, bytes: usize => Bytes, weight: u64 => Bytes,
    }
    /// A sampled allocation was freed.
    Batch SampleFree sample_free {
        arena: u32 => Arena, address: usize => Address, bytes: usize => Bytes, age_ns: u64 => Ns,
    }
}
