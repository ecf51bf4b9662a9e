//! Targets that lie: hg-top runs as root over processes that it cannot trust.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use serde_json::Value;

mod common;
use common::{FakePage, hg_top, stderr};

fn look(target: &FakePage) -> Output {
    let output = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--once", "-O", "json"]);
    assert_eq!(output.status.signal(), None, "hg-top was killed: {}", stderr(&output));
    output
}

#[test]
fn damaged_and_foreign_versions_are_5_with_the_reason() {
    for (how, reason) in [
        ("newer", "has version 3, this hg-top reads version 2: use a newer hg-top"),
        ("older", "has version 0"),
        ("no-magic", "is damaged: its first word is not \"hg.stats\""),
        ("blank", "is damaged: its first word is not"),
        ("huge-size", "is damaged: it says it has 18446744073709551615 bytes"),
        ("small-size", "is damaged: it says it has 64 bytes"),
        ("many-classes", "is damaged: it says it has 4294967295 classes"),
    ] {
        let target = FakePage::start(how);
        let output = look(&target);
        assert_eq!(output.status.code(), Some(5), "{how}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{how}: {}", stderr(&output));
    }
}

#[test]
fn a_file_cut_short_under_the_mapping_is_an_answer() {
    let target = FakePage::start("cut");
    let output = look(&target);
    assert!(matches!(output.status.code(), Some(0 | 5)), "{}", stderr(&output));
}

#[test]
fn lying_numbers_do_no_harm() {
    let target = FakePage::start("lying-numbers");
    let output = look(&target);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let arena = &document["processes"][0]["arenas"][0];
    assert_eq!(arena["kind"], Value::Null, "an unknown word is null");
    assert_eq!(arena["tier"], Value::Null);
    let text = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1"]);
    assert_eq!(text.status.code(), Some(0), "{}", stderr(&text));
    let check = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--check"]);
    assert_eq!(check.status.code(), Some(1), "it says that calls were refused: an alert");
}

#[test]
fn records_that_make_no_sense_are_damaged_pages() {
    let target = FakePage::start("lying-map");
    let arguments = ["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--once", "--map", "-O"];
    let output = hg_top(&[&arguments[..], &["json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let arena = &document["processes"][0]["arenas"][0];
    let map = &arena["map"];
    assert_eq!(map["total"]["span_bytes"], 7 << 15, "the one run that fits is believed");
    assert_eq!(map["total"]["damaged_bytes"], 121 << 15, "{}", map["total"]);
    assert!(map["pages"][0]["kept_by"].as_str().unwrap().contains("make no sense"), "{}", map["pages"][0]);
    assert_eq!(arena["decisions"].as_array().unwrap().len(), 32);
    assert_eq!(arena["decisions"][0]["verdict"], Value::Null);
    let text = hg_top(&[&arguments[..], &["text"]].concat());
    assert_eq!(text.status.code(), Some(0), "{}", stderr(&text));
    assert!(text.stdout.len() < 4 << 20, "{} bytes", text.stdout.len());
}

#[test]
fn memory_that_answers_no_read_holds_up_nobody() {
    let Some(target) = FakePage::where_possible("silent-map") else { return };
    let begin = std::time::Instant::now();
    let output = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--once", "--map", "-O", "json"]);
    assert!(begin.elapsed() < std::time::Duration::from_secs(9), "{:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let map = &document["processes"][0]["arenas"][0]["map"];
    assert!(map["error"].as_str().unwrap().contains("within 5 s"), "{map}");
}

#[test]
fn a_block_in_the_middle_of_a_change_is_torn_and_alerted() {
    let target = FakePage::start("writing");
    let output = look(&target);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let arena = &document["processes"][0]["arenas"][0];
    assert_eq!(arena["torn_blocks"], 1);
    assert_eq!((&arena["classes"][1]["torn"], &arena["classes"][0]["torn"]), (&true.into(), &false.into()));
    assert_eq!(document["alerts"][0]["alert"], "stats-torn");
}

#[test]
fn a_page_that_changes_all_the_time_gives_whole_blocks() {
    let target = FakePage::start("moving");
    let output = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "-n", "20", "-O", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut whole = 0;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let document: Value = serde_json::from_str(line).unwrap();
        for class in document["processes"][0]["arenas"][0]["classes"].as_array().unwrap() {
            let (refills, flushes) = (class["refills"].as_u64().unwrap(), class["flushes"].as_u64().unwrap());
            if class["torn"] == false {
                // Both are raised by one within a block: 10 and 3 at first.
                assert_eq!(refills, flushes + 7, "a torn copy passed for a whole one");
                whole += 1;
            }
        }
    }
    assert!(whole > 30, "only {whole} of 60 blocks were whole");
}

#[test]
fn names_are_escaped() {
    let folder = std::env::temp_dir().join(format!("hg-top-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("\x1b[2Jevil\n");
    std::fs::copy(common::example(), &program).unwrap();
    let target = FakePage::start_as(&program, "names");
    for format in ["json", "text"] {
        let output = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--once", "-O", format]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!output.stdout.contains(&0x1b) && !output.stdout.contains(&7), "{format} lets escapes through");
        assert!(String::from_utf8(output.stdout).unwrap().contains("[2Jevil"));
    }
    let document: Value = serde_json::from_slice(&look(&target).stdout).unwrap();
    let process = &document["processes"][0];
    assert_eq!(process["comm"], "\\x1b[31mred\\x07");
    assert!(process["exe"].as_str().unwrap().ends_with("/\\x1b[2Jevil\\n"), "{}", process["exe"]);
    assert!(process["arenas"][0]["name"].as_str().unwrap().starts_with("\\x1b[2Jm\\xffalloc\\n"));
    let list = hg_top(&[]);
    assert!(!list.stdout.contains(&0x1b));
    drop(target);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_target_that_ends_while_watched_keeps_its_last_figures() {
    let mut target = FakePage::start("honest");
    let child = std::process::Command::new(common::HG_TOP)
        .args(["--pid", &target.pid(), "--no-ebpf", "-i", "0.3", "-n", "4", "-O", "json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    target.end();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let process = &last["processes"][0];
    assert!(process["exited"].is_f64(), "{process}");
    assert_eq!(process["arenas"][0]["classes"][1]["live"], 200);
}
