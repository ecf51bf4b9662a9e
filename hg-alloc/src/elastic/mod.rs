//! When an arena grows and shrinks by itself, and why.

pub mod policy;
pub mod profile;
mod scanner;
mod size;
mod what_if;
mod window;
