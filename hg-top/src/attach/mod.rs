//! From a process to the probe sites it carries, and from there to attached programs.
//!
//! | module | what it owns |
//! |---|---|
//! | [`objects`] | the files a process executes from, opened safely |
//! | [`notes`] | the probe sites of a file |
//! | `program` | the BPF object: maps and programs |
//! | [`links`] | programs attached to sites, and how to be rid of them at once |
//! | `tracefs` | the tracepoint that tells of children |
//! | [`rights`], [`error`] | why something was refused, and what now |
//! | `sys` | the system calls |
//!
//! Watched processes are hostile: hg-top runs as root over files and numbers that they chose.

pub mod error;
pub mod links;
pub mod notes;
pub mod objects;
pub(crate) mod program;
pub mod rights;
pub(crate) mod sys;
mod tracefs;

pub use error::{AttachError, SourceError};
