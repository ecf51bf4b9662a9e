//! Snapshots for machines and for pipes.

pub mod json;
pub mod text;
