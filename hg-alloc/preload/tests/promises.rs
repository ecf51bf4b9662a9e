//! Runs the C and C++ programs of `tests/c` under the library, each named after what it promises, in up to four ways:
//!
//! | way | front caches are guarded by |
//! |---|---|
//! | `by_default` | restartable sequences, where the kernel and glibc offer them |
//! | `without_registration` | slot locks: glibc registers no thread |
//! | `with_slot_locks` | slot locks: `HG_RSEQ=0` |
//! | `emulated` | slot locks: valgrind knows no restartable sequences (without its own malloc) |

mod common;

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use common::{compile, installed, library, run};
use hg_probes::page::Header;

/// Runs one program and checks that it kept its promise.
fn kept(source: &str, way: &[(&str, &str)], emulated: bool) {
    if emulated && !installed("valgrind") {
        return;
    }
    let Some(program) = compile(source) else { return };
    let mut command = if emulated {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=none", "--quiet"]).arg(&program);
        valgrind
    } else {
        Command::new(&program)
    };
    // For a program that opens a library of its own, and one that reads the stats page.
    let plugin = if source == "late_dlopen.c" { compile("plugin.c") } else { None };
    command.env("PLUGIN", plugin.as_deref().unwrap_or(Path::new("")));
    command.env("CORRUPTIONS_AT", offset_of!(Header, corruptions).to_string());
    command.env("LD_PRELOAD", library()).envs(way.iter().copied());
    let ended = run(&mut command);
    let stdout = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.success && stdout.ends_with("kept\n"), "{source} {way:?}\n{stdout}{}", ended.stderr);
}

const NO_REGISTRATION: &[(&str, &str)] = &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")];
const SLOT_LOCKS: &[(&str, &str)] = &[("HG_RSEQ", "0")];

/// Declares the tests of programs; those too long for an emulated processor are declared without that way.
macro_rules! promises {
    ($($name:ident $source:literal $($emulated:ident)?;)*) => { $(
        mod $name {
            #[test]
            fn by_default() {
                super::kept($source, &[], false);
            }

            #[test]
            fn without_registration() {
                super::kept($source, super::NO_REGISTRATION, false);
            }

            #[test]
            fn with_slot_locks() {
                super::kept($source, super::SLOT_LOCKS, false);
            }

            $(#[test]
            fn $emulated() {
                super::kept($source, &[], true);
            })?
        }
    )* };
}

promises! {
    address_space_limit "address_space_limit.c";
    alignment_matrix "alignment_matrix.c" emulated;
    atfork_handlers_malloc "atfork_handlers_malloc.c" emulated;
    bad_frees_refused "bad_frees_refused.c" emulated;
    calloc_is_zero "calloc_is_zero.c";
    cross_thread_frees "cross_thread_frees.c";
    cxx_operators "cxx_operators.cpp" emulated;
    early_constructor "early_constructor.c" emulated;
    errno_matrix "errno_matrix.c" emulated;
    exit_under_load "exit_under_load.c";
    fork_from_worker "fork_from_worker.c";
    fork_under_load "fork_under_load.c";
    free_in_tls_destructor "free_in_tls_destructor.c" emulated;
    introspection "introspection.c" emulated;
    late_dlopen "late_dlopen.c" emulated;
    malloc_in_signal_handler "malloc_in_signal_handler.c";
    popen_under_load "popen_under_load.c";
    realloc_keeps_content "realloc_keeps_content.c";
    thread_churn "thread_churn.c";
    usable_size "usable_size.c" emulated;
    vfork_child "vfork_child.c";
}
