//! The hg memory allocator: per-CPU front caches, all metadata out of line, and an inside that can be watched.
//!
//! A Rust program uses it by one line, see [`HgAlloc`]; a C program by `LD_PRELOAD=libhg_preload.so`, whose functions are
//! thin wrappers of [`raw`]. Both are the same process-wide arena. Its configuration are `HG_*` environment variables
//! (`config.rs`).
//!
//! # Reading order
//! `small.rs` (malloc and free), `front/rseq.rs` (pop and push), `refill.rs`, `flush.rs`, `central.rs` (spans), `grid/` (memory), `lock.rs`,
//! `arena.rs` (how they hang together). The invariants that the unsafe blocks cite as S1 to S10 stand in `SAFETY.md`.
//!
//! # Inside this crate
//! No panic, no allocation, no formatting, no lock of std, no thread-local destructor: it runs below all of them.
#![no_std]

mod arena;
mod backing;
mod cell;
mod central;
mod config;
mod density;
mod elastic;
#[doc(hidden)]
pub mod fast;
mod flush;
mod fork;
mod front;
mod global;
mod grid;
mod large;
mod lock;
mod maintain;
mod others;
pub mod raw;
mod refill;
mod resize;
mod safety;
mod sample;
pub mod shared;
mod size_class;
mod small;
mod stall;
mod stats;
mod sys;
mod transfer;

pub use elastic::{policy, profile};
pub use global::HgAlloc;
use hg_probes::page::StatsPage;
use hg_probes::words::Cause;
pub use stall::{LockStall, StallHook, set_stall_hook};

/// The process's arena. Public for the bodies of `fast.rs` alone; the type is not.
#[doc(hidden)]
#[allow(private_interfaces)]
pub static PROCESS: arena::Arena = arena::Arena::new(1, "malloc");

/// The stats page of the process's arena, once something was allocated.
pub fn stats_page() -> Option<&'static StatsPage> {
    PROCESS.page()
}

/// Empties all caches and gives all free memory back to the system. Returns whether any was given back.
///
/// Stops every other thread's front caches for some microseconds: for quiet moments, not for latency paths.
pub fn trim() -> bool {
    PROCESS.trim(Cause::Trim) > 0
}

/// One step of maintenance, for a program that would rather call it from a thread of its own: growth ahead of demand, and
/// what a profile (`HG_PROFILE`) wants. A call while another is at it does nothing.
pub fn tick() {
    PROCESS.tick();
}
