//! Under a debugger: `next` steps over malloc and free, single steps get through their restartable sequences (each of which
//! they interrupt), and a backtrace inside them finds the caller.

mod common;

use std::process::Command;

use common::{compile, installed, library, run};

/// The answers of gdb to these commands, given once `main` was reached.
fn gdb(commands: &[&str]) -> Option<String> {
    if !installed("gdb") {
        return None;
    }
    let program = compile("stepped.c")?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "set startup-with-shell off", "-ex"]);
    gdb.arg(format!("set environment LD_PRELOAD {}", library().display())).args(["-ex", "break main", "-ex", "run"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let ended = run(gdb.arg(program));
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    if text.is_empty() || ended.stderr.contains("ptrace") {
        common::skip("gdb may not trace here");
        return None;
    }
    Some(text)
}

#[test]
fn next_steps_over_each_call() {
    let Some(text) = gdb(&["next", "next", "next", "next", "next", "print sum", "continue"]) else { return };
    // Compilers may join other lines.
    for line in ["8\t", "11\t", "12\t"] {
        assert!(text.lines().any(|said| said.starts_with(line)), "no stop at line {line}\n{text}");
    }
    assert!(!text.contains("malloc_slow") && !text.contains("hg-alloc/src"), "a stop inside\n{text}");
    assert!(text.contains("$1 = 11") && text.contains("exited normally"), "{text}");
}

#[test]
fn single_steps_get_through_a_malloc_and_a_free() {
    // A pair takes some 70 instructions on the fast path, and 1500 on the slow one that an interrupted sequence takes.
    let Some(text) = gdb(&["break 9", "continue", "next", "next", "stepi 20000", "info registers rip", "continue"])
    else {
        return;
    };
    assert!(text.contains("exited normally"), "{text}");
}

#[test]
fn a_backtrace_in_the_middle_of_malloc_finds_its_caller() {
    let steps = ["stepi", "bt"].repeat(40);
    let mut commands = vec!["next", "break malloc", "continue"];
    commands.extend(steps);
    let Some(text) = gdb(&commands) else { return };
    let frames = text.lines().filter(|line| line.starts_with("#0")).count();
    let mains = text.lines().filter(|line| line.starts_with("#1") && line.contains("main")).count();
    assert!(frames == 40 && mains >= 20, "{frames} backtraces, {mains} of them through main at once\n{text}");
    assert!(!text.contains("??"), "{text}");
}
