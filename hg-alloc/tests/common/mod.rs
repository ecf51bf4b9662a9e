//! Scenarios in processes of their own, and what the stats page and `/proc` say of one.
//!
//! A scenario is a test that runs its own program again and does its work there: the environment is read once, counters
//! start from zero, and limits set in the child hold only there. The test program's own allocations go to the system's malloc.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod capability;
pub(crate) mod seccomp;

use hg_alloc::raw;
use hg_probes::page::StatsPage;
use hg_probes::words::Cause;
use std::process::{Command, Output};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const SCENARIO: &str = "HG_TEST_SCENARIO";
pub(crate) const MIB: usize = 1 << 20;

/// Whether this process is the child that does the work of a test.
pub(crate) fn is_child(name: &str) -> bool {
    let is_child = std::env::var(SCENARIO).as_deref() == Ok(name);
    if is_child {
        // SAFETY: no memory is passed. A child that hangs is ended by the signal.
        unsafe { libc::alarm(60) };
    }
    is_child
}

/// The command that runs a test of this program again, in a child.
pub(crate) fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    // On one thread libtest runs the test on the main one, whose malloc makes the fewest system calls.
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(SCENARIO, name);
    command
}

/// What a child wrote; panics if it did not end well.
pub(crate) fn text_of(name: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name} in its child, {}:\n{text}", output.status);
    text
}

/// Runs a test again in a child with these variables, and returns what it wrote; `None` in the child itself.
pub(crate) fn in_child(name: &str, variables: &[(&str, &str)]) -> Option<String> {
    if is_child(name) {
        return None;
    }
    let output = child(name).envs(variables.iter().copied()).output().expect("the test program runs again");
    let text = text_of(name, &output);
    text.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| eprintln!("{line}"));
    Some(text)
}

pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Says why a test did nothing.
pub(crate) fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

pub(crate) fn page() -> &'static StatsPage {
    hg_alloc::stats_page().expect("something was allocated")
}

/// Refused growths of a cause.
pub(crate) fn refused(cause: Cause) -> u64 {
    page().header.grows_refused[cause as usize].load(Relaxed)
}

pub(crate) fn is_blocked() -> bool {
    page().header.grow_blocked.load(Relaxed) != 0
}

pub(crate) fn committed() -> usize {
    page().header.committed_bytes.load(Relaxed) as usize
}

/// Writes every page of a block.
pub(crate) fn touch(block: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(4096) {
        // SAFETY: the block is live and has that many bytes.
        unsafe { block.add(at).write_volatile(1) };
    }
}

/// Allocates blocks until none is to be had, at most `most`; returns them. The last errno must be ENOMEM.
pub(crate) fn fill(bytes: usize, most: usize, touched: bool) -> Vec<*mut u8> {
    let mut blocks = Vec::with_capacity(most);
    while blocks.len() < most {
        let block = raw::malloc(bytes);
        if block.is_null() {
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
            break;
        }
        if touched {
            touch(block, bytes);
        }
        blocks.push(block);
    }
    blocks
}

/// A field of `/proc/self/status` in bytes.
pub(crate) fn status(field: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:"))).expect("the field");
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") * 1024
}

/// Sets the soft limit of a resource.
pub(crate) fn limit(resource: libc::__rlimit_resource_t, bytes: usize) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is the caller's own.
    let status = unsafe {
        libc::getrlimit(resource, &raw mut limit);
        limit.rlim_cur = (bytes as u64).min(limit.rlim_max);
        libc::setrlimit(resource, &raw const limit)
    };
    assert_eq!(status, 0, "setrlimit: {}", std::io::Error::last_os_error());
}
