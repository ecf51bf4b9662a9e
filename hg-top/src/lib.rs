//! The operator's tool of hg: watches the allocator of running processes, live.
//!
//! Data flows one way: sources are read into a snapshot ([`collect`]), the snapshot goes to the timeline and the alerts,
//! and views and exports only read those. Drawing never fetches.
//!
//! | module | what it owns |
//! |---|---|
//! | [`cli`], [`run`], [`exit`] | the command line, the mode it asks for, the exit codes |
//! | [`attach`] | finding the probe sites of a process and attaching the BPF program to them |
//! | [`source`] | the two sources of figures: the stats page and eBPF |
//! | [`process`], [`symbol`] | what /proc tells about processes, threads and addresses |
//! | [`aside`] | work on a process that may never return, in threads that can be left behind |
//! | [`collect`] | both sources over the watched processes, read into snapshots |
//! | [`model`] | one moment of all watched processes, and the recent past |
//! | [`event`], [`alert`], [`remedy`] | rare events by name, what deserves an operator's attention, what to do about it |
//! | [`advise`] | how large an arena should be, and what should back it |
//! | [`export`], [`batch`] | JSON and text, printed |
//! | [`app`], [`map`], [`log`], [`keys`], [`filter`], [`view`] | the screens: state, input, rows, drawing |
//! | [`live`], [`picker`], [`term`], [`wake`] | the interactive loops and the terminal |
//! | [`demo`] | a workload to look at |
//! | [`unit`], [`escape`], [`say`] | how figures, foreign strings and messages are written |

pub mod advise;
pub mod alert;
pub mod app;
pub mod aside;
pub mod attach;
pub mod batch;
pub mod cli;
pub mod collect;
pub mod demo;
pub mod escape;
pub mod event;
pub mod exit;
pub mod export;
pub mod filter;
pub mod keys;
pub mod live;
pub mod log;
pub mod map;
pub mod model;
pub mod picker;
pub mod process;
pub mod remedy;
pub mod run;
pub mod say;
pub mod source;
pub mod symbol;
pub mod term;
pub mod unit;
pub mod view;
pub mod wake;
