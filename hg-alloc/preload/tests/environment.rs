//! The `HG_*` variables: every setting serves the same promises, and one that does not parse costs a line and nothing else.

mod common;

use std::process::Command;

use common::{Ended, compile, library, run};

fn with(source: &str, variables: &[(&str, &str)]) -> Option<Ended> {
    let program = compile(source)?;
    Some(run(Command::new(program).env("LD_PRELOAD", library()).envs(variables.iter().copied())))
}

fn kept(ended: &Ended) -> bool {
    ended.success && ended.stdout.ends_with(b"kept\n")
}

#[test]
fn every_backing_and_cap_serves() {
    let settings: [&[(&str, &str)]; 5] = [
        &[("HG_TIER", "thp")],
        &[("HG_TIER", "base"), ("HG_CAP", "2g")],
        &[("HG_PIN", "1")],
        &[("HG_LOCK_STALL_US", "1")],
        &[("HG_TIER", "thp"), ("HG_PIN", "1"), ("HG_RSEQ", "0"), ("HG_CAP", "4t")],
    ];
    for variables in settings {
        for source in ["calloc_is_zero.c", "realloc_keeps_content.c", "fork_from_worker.c"] {
            let Some(ended) = with(source, variables) else { return };
            assert!(kept(&ended), "{source} {variables:?}: {}", ended.stderr);
        }
    }
}

#[test]
fn a_malformed_value_costs_one_line_and_the_default_is_used() {
    let malformed = [
        ("HG_CAP", "lots"),
        ("HG_CAP", ""),
        ("HG_CAP", "12q"),
        ("HG_CAP", "99999999999999999999g"),
        ("HG_TIER", "gold"),
        ("HG_PIN", "yes"),
        ("HG_RSEQ", "2"),
        ("HG_LOCK_STALL_US", "-1"),
        ("HG_LOCK_STALL_US", "soon"),
    ];
    for (name, value) in malformed {
        let Some(ended) = with("realloc_keeps_content.c", &[(name, value)]) else { return };
        let complaints = ended.stderr.lines().filter(|line| line.starts_with("hg: ")).collect::<Vec<_>>();
        assert!(kept(&ended), "{name}={value}: {}", ended.stderr);
        assert!(complaints.len() == 1 && complaints[0].contains(name), "{name}={value}: {}", ended.stderr);
    }
}

#[test]
fn a_valid_or_absent_value_says_nothing() {
    let valid = [("HG_CAP", "1G"), ("HG_TIER", "base"), ("HG_PIN", "0"), ("HG_RSEQ", "1"), ("HG_LOCK_STALL_US", "500")];
    for variables in [&valid[..], &[]] {
        let Some(ended) = with("calloc_is_zero.c", variables) else { return };
        assert!(kept(&ended) && !ended.stderr.contains("hg:"), "{}", ended.stderr);
    }
}

#[test]
fn a_cap_is_kept() {
    let Some(ended) = with("introspection.c", &[("HG_CAP", "16m")]) else { return };
    assert!(!kept(&ended), "a program that needs 40 MB cannot run in 16");
    let Some(ended) = with("early_constructor.c", &[("HG_CAP", "64m")]) else { return };
    assert!(kept(&ended), "{}", ended.stderr);
}
