//! The operator's tool of hg: watches the allocator of running processes, live.
//!
//! | module | what it owns |
//! |---|---|
//! | [`attach`] | finding the probe sites of a process and attaching the BPF program to them |
//! | [`source`] | the two sources of figures: the stats page and eBPF |

pub mod attach;
pub mod source;
