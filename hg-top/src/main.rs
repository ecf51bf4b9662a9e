//! hg-top: the operator's tool of hg. Everything is in the library, so that tests can reach it.
//!
//! Its own allocator is hg: the demo watches a second hg-top that runs a workload.

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: hg_alloc::HgAlloc = hg_alloc::HgAlloc::new();

fn main() -> ExitCode {
    hg_top::run::main(&hg_top::cli::Cli::parse())
}
