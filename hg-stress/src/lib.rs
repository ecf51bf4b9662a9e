//! Load on the allocator that notices when something is wrong.
//!
//! Every block is stamped over its whole length with a pattern of its own and verified before it is freed or moved, so a
//! byte that was given to two owners at once shows as a *torn stamp*. Faults (double, interior, foreign and wild frees)
//! are injected under that load and compared with the allocator's own counters; lock stalls are provoked for real.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | what a run does; the words of the command line |
//! | [`run`] | one run: threads, phases, sampling, verdict |
//! | [`worker`] | what one thread does: the patterns local, pipeline and swap |
//! | [`block`], [`stamp`] | a stamped block and its pattern |
//! | [`faults`], [`stall`] | bad frees and lock stalls, on purpose |
//! | [`maintain`] | steps of maintenance from the host's own loop |
//! | [`counters`], [`rss`] | what the allocator and the kernel count |
//! | [`hoard`], [`mix`] | very many blocks with a table of their own; the sizes of a spike |
//! | [`spike`] | growth to gibibytes and back, again and again: does memory return? |
//! | [`growth`] | how long locks are held while the arena grows |
//! | [`load`] | growth, rest and release by script, to be watched |
//! | [`turnover`] | owners come and go: is every span reclaimed, how fast? |
//! | [`processes`] | processes on one shared arena, killed at random instants |
//! | [`demo`](mod@demo) | a good-looking workload for hg-top |
//! | [`report`] | the outcome, as text and JSON |
//!
//! Blocks are taken from [`HEAP`] directly, so what is measured is hg also in a program whose global allocator is another.

pub mod block;
pub mod config;
pub mod counters;
pub mod demo;
pub mod faults;
pub mod growth;
pub mod hoard;
pub mod load;
pub mod maintain;
pub mod mix;
pub mod processes;
pub mod report;
pub mod rng;
pub mod rss;
pub mod run;
pub mod spike;
pub mod stall;
pub mod stamp;
pub mod turnover;
pub mod worker;

pub use demo::demo;

/// The allocator under load.
pub static HEAP: hg_alloc::HgAlloc = hg_alloc::HgAlloc::new();
