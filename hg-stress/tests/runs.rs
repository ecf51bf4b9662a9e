//! Short runs of the program itself: sound in every pattern, with faults refused, stalls provoked and memory returned.

use std::process::{Command, Output};

fn hg_stress(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hg-stress"));
    command.args(words.split(' ')).output().expect("hg-stress")
}

/// Runs in threads mode; the run must be sound. Returns its report.
fn sound(words: &str) -> serde_json::Value {
    let ended = hg_stress(&format!("threads {words} -O json"));
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{words}: {stderr}{stdout}");
    serde_json::from_str(&stdout).expect("one JSON object")
}

#[test]
fn local_threads_that_come_and_go_with_faults() {
    let report = sound("--threads 8 --seconds 3 --churn 50 --faults");
    assert!(report["threads_replaced"].as_u64() > Some(50), "{report}");
    assert_eq!(report["faults"]["injected"], report["faults"]["refused"]);
    for kind in ["double free", "interior pointer", "foreign pointer", "wild pointer"] {
        assert!(report["faults"]["refused"][kind].as_u64() > Some(0), "{kind}: {report}");
    }
    let rss = |name: &str| report["rss"][name].as_u64().expect("a number");
    assert!(rss("peak") > rss("start") + (20 << 20) && rss("after_trim") < rss("peak") / 2, "{report}");
}

#[test]
fn pipelines_of_small_blocks() {
    assert!(sound("--threads 5 --seconds 2 --pattern pipeline --sizes small")["ops"].as_u64() > Some(100_000));
}

#[test]
fn blocks_swapped_between_threads() {
    assert!(sound("--threads 4 --seconds 2 --pattern swap --hold long")["ops"].as_u64() > Some(10_000));
}

#[test]
fn large_objects_and_one_size() {
    sound("--threads 2 --seconds 1 --sizes large --faults");
    sound("--threads 2 --seconds 1 --sizes fixed:3000 --hold short --faults");
}

#[test]
fn a_stall_comes_about_and_is_counted() {
    assert!(sound("--threads 2 --seconds 6 --sizes small --stall 20")["stalls"].as_u64() > Some(0));
}

#[test]
fn the_demo_ends_when_told() {
    assert!(hg_stress("demo --seconds 3").status.success());
}

#[test]
fn usage_errors_are_told_with_status_2() {
    for words in ["threads --sizes huge", "threads --threads 0", "threads --pattern up", "sideways"] {
        let ended = hg_stress(words);
        assert_eq!(ended.status.code(), Some(2), "{words}");
        assert!(!ended.stderr.is_empty(), "{words}");
    }
}

#[test]
fn a_cap_too_small_for_the_load_is_a_failed_run_and_no_crash() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hg-stress"));
    let ended =
        command.args(["threads", "--seconds", "1", "--live", "64"]).env("HG_CAP", "32m").output().expect("runs");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && stderr.contains("allocations failed"), "{:?} {stderr}", ended.status);
}
