//! Short runs of the program itself: sound in every pattern, with faults refused, stalls provoked and memory returned; each
//! scenario measures what it says.

use std::process::{Command, Output};

fn hg_stress(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hg-stress"));
    // What is free goes back soon, so that a run need not wait for it.
    command.args(words.split(' ')).env("HG_DECAY_MS", "500").output().expect("hg-stress")
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
    assert!(report["threads_replaced"].as_u64() > Some(20), "{report}");
    assert_eq!(report["faults"]["injected"], report["faults"]["refused"]);
    for kind in ["double free", "interior pointer", "foreign pointer", "wild pointer"] {
        assert!(report["faults"]["refused"][kind].as_u64() > Some(0), "{kind}: {report}");
    }
    let rss = |name: &str| report["rss"][name].as_u64().expect("a number");
    assert!(rss("peak") > rss("start") + (20 << 20) && rss("settled") <= rss("start") / 10 * 11 + 10, "{report}");
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
fn processes_are_killed_and_nothing_is_lost() {
    let report = json(&hg_stress("processes --workers 5 --kills 300 --faults -O json"));
    assert_eq!(report["failures"].as_array().map(Vec::len), Some(0), "{report}");
    assert_eq!(report["kills"].as_u64(), Some(300));
    for count in ["owner_deaths", "with_a_lock", "recovered", "crossed", "faults", "scribbled"] {
        assert!(report[count].as_u64() > Some(0), "{count}: {report}");
    }
}

#[test]
fn of_two_frees_at_once_one_is_accepted() {
    let report = json(&hg_stress("double-free --tries 5000 --check -O json"));
    assert_eq!(report["one_accepted"].as_u64(), Some(5000), "{report}");
    assert!(report["overlapped"].as_u64() > Some(0), "{report}");
}

fn json(ended: &Output) -> serde_json::Value {
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{stderr}");
    serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

#[test]
fn a_spike_is_run_in_both_modes_and_memory_comes_back() {
    let report = json(&hg_stress("spike --gib 0.125 --rounds 3 -O json"));
    for (mode, maintained) in [("thread", true), ("no_thread", false)] {
        let report = &report[mode];
        assert_eq!(report["maintained"].as_bool(), Some(maintained), "{report}");
        let rounds = report["rounds"].as_array().expect("rounds");
        assert_eq!(rounds.len(), 3, "{report}");
        for round in rounds {
            let bytes = |name: &str| round[name].as_u64().expect("a number");
            assert!(bytes("live") >= 128 << 20 && bytes("peak_committed") >= bytes("live"), "{round}");
            assert!(bytes("settled_rss") < 64 << 20 && round["settled"]["limbo"].as_u64() == Some(0), "{round}");
        }
    }
}

#[test]
fn one_mode_alone_is_one_report() {
    let report = json(&hg_stress("spike --gib 0.0625 --rounds 1 --threads 2 --no-thread -O json"));
    assert_eq!(report["maintained"].as_bool(), Some(false), "{report}");
}

#[test]
fn a_spike_too_large_for_the_machine_or_the_arena_is_refused() {
    let ended = hg_stress("spike --gib 4096 --no-thread");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(2) && stderr.contains("needs about 4718592 MiB, but"), "{stderr}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hg-stress"));
    let ended = command.args(["spike", "--gib", "0.125", "--no-thread"]).env("HG_CAP", "64m").output().expect("runs");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(2) && stderr.contains("ceiling is 64 MiB"), "{stderr}");
}

#[test]
fn generations_turn_over() {
    let report = json(&hg_stress("turnover --generations 3 -O json"));
    let before = report["spans_before"].as_u64();
    let generations = report["generations"].as_array().expect("generations");
    assert_eq!(generations.len(), 3);
    assert!(
        generations.iter().all(|g| g["spans_left"].as_u64() <= before && g["spans"].as_u64() > Some(64)),
        "{report}"
    );
}

#[test]
fn growth_tells_of_holds() {
    let report = json(&hg_stress("growth --mib 128 -O json"));
    assert!(report["grows"].as_u64() > Some(4) && report["ops"].as_u64() > Some(10_000), "{report}");
    // Each hold beyond the limit was told by the thread that held.
    assert_eq!(report["unknown"], 0, "{report}");
    let holds = report["holds"].as_array().expect("holds");
    for (lock, reason) in [("grid", "grow"), ("grid", "span"), ("class 1024", "refill")] {
        assert!(
            holds.iter().any(|h| h["lock"] == lock && h["reason"] == reason && h["count"].as_u64() > Some(0)),
            "{lock}"
        );
    }
}

#[test]
fn a_script_is_followed_and_a_bad_one_is_pointed_at() {
    let ended = hg_stress("load grow 32m, hold 10ms, release 50% over 100ms, release all -O json");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let stdout = String::from_utf8_lossy(&ended.stdout);
    let steps: Vec<serde_json::Value> = stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let live: Vec<u64> = steps.iter().filter_map(|step| step["live"].as_u64()).collect();
    assert!(live.len() == 4 && live[0] == live[1] && live[2] <= live[0] / 2 && live[3] == 0, "{stdout}");
    let ended = hg_stress("load grow 32m, hold 10x");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(2) && stderr.contains("column 16: expected a duration"), "{stderr}");
}

#[test]
fn the_demo_ends_when_told() {
    assert!(hg_stress("demo --seconds 3").status.success());
}

#[test]
fn usage_errors_are_told_with_status_2() {
    for words in [
        "threads --sizes huge",
        "threads --threads 0",
        "spike --gib 0",
        "spike --thread --no-thread",
        "load",
        "sideways",
    ] {
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
