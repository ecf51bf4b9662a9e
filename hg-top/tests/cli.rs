//! The built binary: exit codes, messages, and the JSON contract.

use serde_json::Value;

mod common;
use common::trouble::Trouble;
use common::{FakePage, hg_top, stderr};

#[test]
fn nothing_to_attach_is_3_and_says_what_to_do() {
    let gone = hg_top(&["--pid", "999999999"]);
    assert_eq!((gone.status.code(), stderr(&gone)), (Some(3), "hg-top: no process 999999999\n".into()));
    // Our own process does not run on hg.
    let other = hg_top(&["--pid", &std::process::id().to_string()]);
    assert_eq!(other.status.code(), Some(3), "{}", stderr(&other));
    assert!(stderr(&other).contains("does not run on hg") && stderr(&other).contains("LD_PRELOAD=libhg_preload.so"));
    let none = hg_top(&["--pid"]);
    assert_eq!(none.status.code(), Some(3));
    assert!(stderr(&none).contains("pidof prints nothing"), "{}", stderr(&none));
}

#[test]
fn wrong_usage_is_2() {
    for bad in [&["--nonsense"][..], &["--pid", "x"], &["-i", "0"], &["-O", "xml"], &["-n", "0"], &["nonsense"]] {
        let output = hg_top(bad);
        assert_eq!(output.status.code(), Some(2), "{bad:?}: {}", stderr(&output));
        assert!(!output.stderr.is_empty());
    }
    let help = hg_top(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("Exit codes:"));
}

#[test]
fn several_pids_as_words_and_commas_and_one_that_is_gone() {
    let (one, two) = (FakePage::start("honest"), FakePage::start("honest"));
    let pids = format!("{},{}", one.pid(), two.pid());
    let output = hg_top(&["--pid", &pids, "999999999", "--no-ebpf", "-i", "0.1", "-O", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("no process 999999999"), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["processes"].as_array().unwrap().len(), 2);
}

#[test]
fn the_json_contract() {
    let target = FakePage::start("honest");
    let output = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--once", "-O", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["version"], 1);
    assert!(document["time"].as_f64().unwrap() > 1.7e9);
    assert_eq!(document["sources"]["stats_page"]["on"], true);
    assert_eq!(document["sources"]["ebpf"]["on"], false);
    assert!(document["sources"]["ebpf"]["reason"].is_string());
    for list in ["events", "alerts"] {
        assert_eq!(document[list], Value::Array(Vec::new()), "{list}");
    }
    assert_eq!(document["lost_events"], 0);
    let process = &document["processes"][0];
    assert_eq!(process["pid"].to_string(), target.pid());
    assert!(process["exe"].as_str().unwrap().ends_with("/fake_page"));
    assert_eq!(process["role"], "fake_page honest");
    assert_eq!(process["sources"], serde_json::json!(["stats-page"]));
    let arena = &process["arenas"][0];
    for (field, value) in [
        ("name", Value::from("fake")),
        ("kind", "private".into()),
        ("tier", "4K".into()),
        ("tier_wanted", "THP".into()),
        ("pinned_bytes", 0.into()),
        ("committed_bytes", (64 << 20).into()),
        ("reserved_bytes", (1 << 30).into()),
        // 200 reused + 120 carved - 100 flushed - 4 drained - 16 in front caches = 200 cells of each class are live.
        ("live_bytes", (200 * (16 + 64 + 4096) + (8 << 20)).into()),
        // 16 in front caches and 20 in the transfer cache.
        ("cached_bytes", (36 * (16 + 64 + 4096)).into()),
    ] {
        assert_eq!(arena[field], value, "{field}");
    }
    let class = &arena["classes"][1];
    for (field, value) in
        [("size", 64), ("live", 200), ("cached", 36), ("carved", 120), ("reused", 200), ("refills", 10), ("flushes", 3)]
    {
        assert_eq!(class[field], value, "{field}");
    }
    let lock = arena["locks"].as_array().unwrap().iter().find(|lock| lock["lock"] == "class 64").unwrap();
    assert_eq!((&lock["reason"], &lock["hold"]["count"]), (&"refill".into(), &100.into()));
    assert_eq!((&lock["hold"]["max_ns"], &lock["wait"]["p99_ns"]), (&5000.into(), &0.into()));
    assert!((256..512).contains(&lock["hold"]["p50_ns"].as_u64().unwrap()));
    assert_eq!(lock["hold"]["buckets"].as_array().unwrap().len(), 32);
}

#[test]
fn the_map_in_json_and_in_text() {
    let target = FakePage::start("map");
    let arguments = ["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--map", "-O"];
    let output = hg_top(&[&arguments[..], &["json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let arena = &document["processes"][0]["arenas"][0];
    let map = &arena["map"];
    for (field, slices) in [
        ("span_bytes", 2),
        ("large_bytes", 40),
        ("free_dirty_bytes", 62),
        ("free_fresh_bytes", 16),
        ("released_bytes", 8),
        ("damaged_bytes", 0),
    ] {
        assert_eq!(map["total"][field], slices << 15, "{field}");
    }
    assert_eq!(map["total"]["used_bytes"], 4096 + 3 * 64 + (40 << 15));
    let pages = map["pages"].as_array().unwrap();
    assert_eq!(pages.len(), 2);
    assert_eq!(pages[0]["kept_by"], "2 spans; kept by 1 live 4 KiB cell (class 4096)");
    assert_eq!((&pages[0]["tier"], &pages[0]["pinned"]), (&"THP".into(), &false.into()));
    assert_eq!(pages[1]["kept_by"], "kept by a large object of 1.25 MiB");
    assert_eq!((&pages[1]["tier"], &pages[1]["pinned"]), (&"hugetlb".into(), &true.into()));
    assert_eq!(map["sparse"], serde_json::json!({"pages": 1, "held_bytes": 2 << 20, "used_bytes": 4096 + 3 * 64}));
    assert_eq!((&arena["used_bytes"], &arena["used_peak_bytes"]), (&(42 << 15).into(), &(64 << 15).into()));
    assert_eq!(arena["advice"]["setting"], "HG_SIZE=2304k:96m");
    let text = String::from_utf8(hg_top(&[&arguments[..], &["text"]].concat()).stdout).unwrap();
    assert!(text.contains("page 0 holds 2.00 MiB: 2 spans; kept by 1 live 4 KiB cell (class 4096)"), "{text}");
    let without = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "-O", "json"]);
    let document: Value = serde_json::from_slice(&without.stdout).unwrap();
    assert!(document["processes"][0]["arenas"][0].get("map").is_none());
}

#[test]
fn advice_a_recording_and_what_a_profile_makes_of_it() {
    let target = FakePage::start("map");
    let output = hg_top(&["advise", "--pid", &target.pid()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["advice     HG_SIZE=2304k:96m (sure: low)", "tier: 4K instead of THP", "echo madvise > "] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let output = hg_top(&["advise", "--pid", &target.pid(), "-O", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let advice = &document["arenas"][0]["advice"];
    assert_eq!((&advice["init_bytes"], &advice["sure"]), (&(2304 << 10).into(), &"low".into()));

    let file = std::env::temp_dir().join(format!("hg-top-trace-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let record = ["advise", "--pid", &target.pid(), "-i", "0.1", "--seconds", "1", "--record", path];
    let output = hg_top(&record);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let trace = std::fs::read_to_string(&file).unwrap();
    let first: Value = serde_json::from_str(trace.lines().next().unwrap()).unwrap();
    assert_eq!((&first["used"], &first["committed"]), (&(42 << 15).into(), &(120 << 15).into()));
    assert!((8..=11).contains(&trace.lines().count()), "{trace}");
    let again = hg_top(&record);
    assert_eq!(again.status.code(), Some(1), "a recording is not overwritten: {}", stderr(&again));

    let profile = "scale up to 64m on 70% for 2 cycles / scale down to 1m on 30% for 3 cycles";
    let output = hg_top(&["advise", "--what-if", profile, "--trace", path, "--size", "1m:64m"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("committed  mean") && text.contains("used       peak 1.31 MiB"), "{text}");
    let output = hg_top(&["advise", "--what-if", profile, "--trace", path, "-O", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["used_peak_bytes"], 42 << 15);
    let bad = hg_top(&["advise", "--what-if", "scale sideways", "--trace", path]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(stderr(&bad).contains("line 1, column 7: want `up` or `down`"), "{}", stderr(&bad));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(hg_top(&["advise"]).status.code(), Some(2));
    assert_eq!(hg_top(&["advise", "--pid", "999999999"]).status.code(), Some(3));
}

#[test]
fn several_samples_are_one_document_a_line() {
    let target = FakePage::start("honest");
    let output = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "-n", "3", "-O", "json"]);
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[2]["time"].as_f64() > lines[0]["time"].as_f64());
}

#[test]
fn text_when_stdout_is_no_terminal() {
    let target = FakePage::start("honest");
    let output = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["MEMORY", "RSS + hugetlb", "4K", "REFILL/s", "class 64", "grid"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(!text.contains('\x1b'));
}

#[test]
fn the_list_of_processes() {
    let target = FakePage::start("honest");
    let output = hg_top(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&target.pid()));
    assert!(line.is_some_and(|line| line.contains("fake_page honest")), "{text}");
}

#[test]
fn a_pipe_that_closes_is_no_error() {
    let target = FakePage::start("honest");
    let shell =
        format!("{} --pid {} --no-ebpf -i 0.1 -n 3 | head -1; echo ${{PIPESTATUS[0]}}", common::HG_TOP, target.pid());
    let output = std::process::Command::new("bash").args(["-c", &shell]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.ends_with("\n0\n"), "{text} {}", stderr(&output));
}

#[test]
fn output_that_nobody_takes_is_no_panic() {
    let target = FakePage::start("honest");
    let list = format!("sleep 0.2; {}", common::HG_TOP);
    let watch = format!("sleep 0.2; {} --pid {} --no-ebpf -i 0.1", common::HG_TOP, target.pid());
    let full = format!("{} --pid {} --no-ebpf -i 0.1 > /dev/full", common::HG_TOP, target.pid());
    for (shell, code) in [
        (format!("({list}) | true; echo ${{PIPESTATUS[0]}}"), "0"),
        (format!("({watch}) | true; echo ${{PIPESTATUS[0]}}"), "0"),
        (format!("{} > /dev/full; echo $?", common::HG_TOP), "1"),
        (format!("{full}; echo $?"), "1"),
        (format!("{} --pid 999999999 2> /dev/full; echo $?", common::HG_TOP), "3"),
        (format!("{} --pid 999999999 2>&-; echo $?", common::HG_TOP), "3"),
    ] {
        let output = std::process::Command::new("bash").args(["-c", &shell]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), code, "{shell}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{shell}: {}", stderr(&output));
    }
}

#[test]
fn each_process_that_cannot_be_watched_is_told_of() {
    let own = std::process::id().to_string();
    let output = hg_top(&["--pid", &own, "999999998", "999999999"]);
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    assert!(text.lines().all(|line| line.starts_with("hg-top: ")) && text.lines().count() == 3, "{text}");
    assert!(text.contains(&format!("process {own} does not run on hg")) && text.contains("no process 999999999"));
}

#[test]
fn a_stopped_target_is_read_all_the_same() {
    let target = FakePage::start("honest");
    // SAFETY: our own child, which ends with the test.
    assert_eq!(unsafe { libc::kill(target.pid().parse().unwrap(), libc::SIGSTOP) }, 0);
    let begin = std::time::Instant::now();
    let output = hg_top(&["--pid", &target.pid(), "-i", "0.1", "-n", "2", "-O", "json"]);
    assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 2);
}

#[test]
fn a_target_that_executes_another_program_is_followed_or_said_to_have_left() {
    let watch = |program: &str| {
        let mut target = Trouble::start(&[]);
        let child = std::process::Command::new(common::HG_TOP)
            .args(["--pid", &target.pid().to_string(), "--no-ebpf", "-i", "0.3", "-n", "5", "-O", "json"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(400));
        target.ask(&format!("exec {program}"));
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        last["processes"][0].clone()
    };
    let off = watch("/bin/cat");
    assert!(off["page_error"].as_str().is_some_and(|error| error.contains("executed another program")), "{off}");
    assert!(off["arenas"][0]["live_bytes"].as_u64().unwrap() > 0, "the last figures are kept");
    let on = watch(&format!("{} honest", common::example().display()));
    assert_eq!((on["page_error"].as_str(), &on["exited"]), (None, &Value::Null), "{on}");
    assert!(on["exe"].as_str().unwrap().ends_with("/fake_page"), "{on}");
    assert_eq!(on["arenas"][0]["name"], "fake");
}

#[test]
fn the_demo_runs_and_reports() {
    let output = hg_top(&["demo", "--once", "-O", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let arena = &document["processes"][0]["arenas"][0];
    assert!(arena["live_bytes"].as_u64().unwrap() > 1 << 20);
    let refills = arena["classes"].as_array().unwrap().iter().map(|class| class["refills"].as_u64().unwrap());
    assert!(refills.sum::<u64>() > 100);
    assert!(arena["locks"].as_array().unwrap().len() > 10);
    let pid = document["processes"][0]["pid"].as_u64().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the workload outlived the demo");
}

/// Runs hg-top as nobody, from a place that nobody may read; `None` where that cannot be tried.
fn as_nobody(arguments: &[&str]) -> Option<std::process::Output> {
    let program = std::env::temp_dir().join(format!("hg-top-nobody-{}-{}", std::process::id(), arguments.len()));
    std::fs::copy(common::HG_TOP, &program).unwrap();
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let output = std::process::Command::new("setpriv").args(nobody).arg(&program).args(arguments).output();
    std::fs::remove_file(&program).unwrap();
    match output {
        Ok(output) if !stderr(&output).starts_with("setpriv:") => Some(output),
        _ => {
            eprintln!("skipped: needs root and setpriv");
            None
        }
    }
}

#[test]
fn without_rights_it_is_4_and_names_them() {
    let target = FakePage::start("honest");
    let Some(output) = as_nobody(&["--pid", &target.pid(), "--once"]) else { return };
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    for part in ["CAP_SYS_PTRACE", "ptrace_scope", &format!("sudo hg-top --pid {}", target.pid())] {
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
}

#[test]
fn without_ebpf_rights_the_stats_page_is_read_all_the_same() {
    let Some(output) = as_nobody(&["demo", "--once", "-O", "json"]) else { return };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("CAP_BPF, CAP_PERFMON missing"), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["sources"]["ebpf"]["on"], false);
    assert_eq!(document["processes"][0]["sources"], serde_json::json!(["stats-page"]));
    assert!(document["processes"][0]["arenas"][0]["live_bytes"].as_u64().unwrap() > 0);
}
