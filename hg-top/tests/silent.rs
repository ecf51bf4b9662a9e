//! Targets whose memory answers no read: they are told of, and hold up nobody.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

mod common;
use common::{FakePage, hg_top, stderr};

/// The processes of a look at `targets`, in their order, and how long it took.
fn look(targets: &[&FakePage]) -> (Vec<Value>, Duration) {
    let pids: Vec<String> = targets.iter().map(|target| target.pid()).collect();
    let begin = Instant::now();
    let output = hg_top(&["--pid", &pids.join(","), "--no-ebpf", "-i", "0.1", "--once", "-O", "json"]);
    let took = begin.elapsed();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |pid: &String| {
        let pid: u64 = pid.parse().unwrap();
        let processes = document["processes"].as_array().unwrap();
        processes.iter().find(|process| process["pid"] == pid).unwrap().clone()
    };
    (pids.iter().map(of).collect(), took)
}

fn live_cells(process: &Value) -> &Value {
    &process["arenas"][0]["classes"][1]["live"]
}

#[test]
fn a_page_that_answers_nothing_is_told_of_beside_the_others() {
    let Some(first) = FakePage::where_possible("silent-page") else { return };
    let (second, honest) = (FakePage::where_possible("silent-page").unwrap(), FakePage::start("honest"));
    let (processes, took) = look(&[&honest, &first, &second]);
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!((live_cells(&processes[0]), &processes[0]["page_error"]), (&200.into(), &Value::Null));
    for process in &processes[1..] {
        assert!(process["page_error"].as_str().unwrap().starts_with("does not answer: "), "{process}");
        assert_eq!((process["comm"].as_str(), &process["arenas"]), (Some("fake_page"), &Value::Array(vec![])));
    }
    let text = hg_top(&["--pid", &first.pid(), "--no-ebpf", "-i", "0.1", "--once"]);
    assert_eq!(text.status.code(), Some(0), "{}", stderr(&text));
    assert!(String::from_utf8_lossy(&text.stdout).contains(" · does not answer: "));
}

#[test]
fn front_caches_and_arguments_that_answer_nothing_are_left_alone() {
    let Some(fronts) = FakePage::where_possible("silent-fronts") else { return };
    let (processes, took) = look(&[&fronts]);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // 16 of the cells that are out were in these caches.
    assert_eq!((live_cells(&processes[0]), &processes[0]["page_error"]), (&216.into(), &Value::Null));
    assert_eq!(processes[0]["role"], "fake_page silent-fronts");
    let Some(arguments) = FakePage::where_possible("silent-arguments") else { return };
    let (processes, took) = look(&[&arguments]);
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!((live_cells(&processes[0]), &processes[0]["page_error"]), (&200.into(), &Value::Null));
    assert_eq!(processes[0]["role"], "fake_page", "its name, as its arguments do not answer");
    let begin = Instant::now();
    let list = hg_top(&[]);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert!(String::from_utf8_lossy(&list.stdout).contains(&arguments.pid()));
}

#[test]
fn last_figures_stay_while_it_is_silent_and_new_ones_come_after() {
    let Some(mut target) = FakePage::where_possible("silent-page-later") else { return };
    let mut child = Command::new(common::HG_TOP)
        .args(["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "-n", "200", "-O", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = |reached: &dyn Fn(&Value) -> bool| {
        lines.by_ref().take(60).find_map(|line| {
            let document: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let process = document["processes"][0].clone();
            reached(&process).then_some(process)
        })
    };
    let error = |process: &Value| process["page_error"].as_str().unwrap_or_default().to_owned();
    let begun = until(&|process| error(process).is_empty()).unwrap();
    assert_eq!(live_cells(&begun), 200);
    target.step();
    let silent = until(&|process| error(process).contains("its last figures, ")).unwrap();
    assert_eq!(live_cells(&silent), 200, "{silent}");
    // Nobody asks again meanwhile: one thread waits.
    std::thread::sleep(Duration::from_millis(500));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let waiting = tasks.filter(|task| {
        let name = std::fs::read_to_string(task.as_ref().unwrap().path().join("comm")).unwrap_or_default();
        name == "hg-top-read\n"
    });
    assert_eq!(waiting.count(), 1);
    assert!(until(&|process| error(process).contains("not returned for 1.")).is_some(), "its age is told");
    target.step();
    let again = until(&|process| error(process).is_empty()).unwrap();
    assert_eq!(live_cells(&again), &Value::Null, "its blocks are blank now: {again}");
    child.kill().unwrap();
    child.wait().unwrap();
}
