//! Snapshots for machines and for pipes.

pub mod arena;
pub mod json;
mod shared;
pub mod text;
