//! Snapshots for machines and for pipes.

pub mod arena;
pub mod json;
pub mod text;
