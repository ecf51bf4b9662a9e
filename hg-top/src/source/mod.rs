//! The two sources of figures: the stats page that any reader copies, and the maps that the BPF program fills.

pub mod ebpf;
pub mod stats;
