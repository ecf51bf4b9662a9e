//! Everything of hg that crosses the process border, declared once.
//!
//! | module | what | who uses it |
//! |---|---|---|
//! | [`words`] | the enums that probes, stats page and screens share (tier, reason, cause, ...) | everyone |
//! | [`catalogue`] | every USDT probe: name, arguments with units, rate class; and its `emit` function | allocator fires, hg-top reads |
//! | [`page`] | the stats page: a `repr(C)`, versioned set of counters any reader copies without a lock | allocator writes, hg-top reads |
//! | [`grid`] | the grid's records in the target's memory: who has each slice, how full spans are | allocator writes, hg-top reads |
//! | [`directory`] | who uses a shared arena, and what each has in its hands | allocator writes, hg-top reads |
//! | [`maps`] | keys and values of the kernel maps | hg-ebpf writes, hg-top reads |
//!
//! The crate is `no_std` and has no dependencies, so that the BPF program, the allocator and hg-top can all use it.
//! Changing anything in [`page`] or [`maps`] changes a contract: the golden test of the layout must be changed with it.
#![no_std]

pub mod catalogue;
// BPF has no atomics of 32 bits, and its program has no use for the records.
#[cfg(not(target_arch = "bpf"))]
pub mod directory;
pub mod grid;
pub mod maps;
pub mod page;
mod usdt;
pub mod words;

pub use catalogue::{PROBES, Probe, ProbeId};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use catalogue::{emit, listening};
