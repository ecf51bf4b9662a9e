//! An arena that several processes share: one arena, with all of them, whoever is asked about it.

use std::time::{Duration, Instant};

use hg_top::process::Process;
use serde_json::{Value, json};

mod common;
use common::prefork::Prefork;
use common::{FakePage, hg_top, stderr};

/// The document of a look at these processes.
fn look(pids: &[u32]) -> Value {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let pids = pids.join(",");
    let output = hg_top(&["--pid", &pids, "--no-ebpf", "-i", "0.2", "--once", "-O", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("a document")
}

/// A parent with two children that share an arena, and the pids of all three.
fn family() -> (FakePage, [u32; 3]) {
    let target = FakePage::start("shared");
    let parent = target.pid().parse().expect("a pid");
    let mut children = Process::children(&[parent]).expect("/proc");
    children.sort_unstable();
    let [first, second] = children[..] else { panic!("two children: {children:?}") };
    (target, [parent, first, second])
}

#[test]
fn one_application_with_one_arena_and_its_processes() {
    let (_target, pids) = family();
    let document = look(&pids);
    let shared = document["shared_arenas"].as_array().unwrap();
    assert_eq!(shared.len(), 1, "{shared:#?}");
    let arena = &shared[0];
    for (field, value) in [
        ("name", json!("fake")),
        ("kind", json!("shared")),
        ("arena", json!(2)),
        ("owner_pid", json!(pids[0])),
        ("mapped_by", json!(pids)),
        ("committed_bytes", json!(64 << 20)),
        ("live_bytes", json!(200 * (16 + 64 + 4096) + (8 << 20))),
        ("owner_deaths", json!(3)),
        ("recovered", json!(5)),
        ("stranded_bytes", json!(640)),
        ("inherited", json!(false)),
    ] {
        assert_eq!(arena[field], value, "{field}");
    }
    let processes = document["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 3);
    for process in processes {
        assert_eq!((&process["arenas"], &process["shared_arenas"]), (&json!([]), &json!([arena["id"]])), "{process}");
        assert_eq!(process["sources"], json!(["stats-page"]));
    }
    assert_eq!((&processes[1]["said_role"], &processes[1]["role"]), (&json!("worker 1"), &json!("fake_page shared")));
    let applications = document["applications"].as_array().unwrap();
    assert_eq!(applications.len(), 1);
    let application = &applications[0];
    assert_eq!((&application["processes"], &application["exited"]), (&json!(pids), &json!([])));
    assert_eq!(application["shared_arenas"], json!([arena["id"]]));
    assert_eq!(application["committed_bytes"], 64 << 20, "counted once");
    // Each process has touched all 24 MiB of it.
    let sum = |field: &str| processes.iter().map(|process| process[field].as_u64().unwrap()).sum::<u64>();
    let memory = application["memory_bytes"].as_u64().unwrap();
    assert!(sum("rss_bytes") > 3 * (24 << 20), "{processes:#?}");
    assert!((24 << 20..2 * (24 << 20)).contains(&memory), "{memory}");
    assert_eq!(memory, sum("pss_bytes"));
}

#[test]
fn the_directory_tells_who_they_are_and_who_has_died() {
    let (_target, pids) = family();
    let document = look(&pids[..2]);
    let entries = document["shared_arenas"][0]["processes"].as_array().unwrap().clone();
    let told: Vec<Value> = entries
        .iter()
        .map(|entry| json!([entry["pid"], entry["state"], entry["watched"], entry["role"], entry["cpus"]]))
        .collect();
    let wanted = [
        json!([pids[0], "live", true, "main", null]),
        json!([pids[1], "live", true, "worker 1", 1]),
        json!([pids[2], "live", false, "worker 2", 2]),
        json!([null, "dead", false, "killed", null]),
        json!([null, "dead", false, "its pid came again", null]),
    ];
    assert_eq!(told, wanted);
    assert_eq!(entries[4]["pid_inside"], pids[1], "the same pid as a living one's");
    assert_eq!((&entries[0]["repairs"], &entries[0]["recovered"]), (&json!(3), &json!(5)));
    let stall = &entries[2]["last_stall"];
    assert_eq!(
        (&stall["lock"], &stall["ns"], &entries[2]["stalls"]),
        (&json!("class 64"), &json!(4_200_000), &json!(2))
    );
    let ago = document["time"].as_f64().unwrap() - stall["time"].as_f64().unwrap();
    assert!((0.0..60.0).contains(&ago), "{ago}");
    let output = hg_top(&["--pid", &pids[0].to_string(), "--no-ebpf", "-i", "0.1", "--once"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "shared by  3 live (2 not watched), 2 dead   owner deaths 3, recovered 5, stranded 640 B",
        "dead: its pid came again",
        "not watched: worker 2",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn children_are_followed_and_the_arena_outlives_the_one_it_was_read_through() {
    let (target, pids) = family();
    let watched = target.pid();
    let child = std::process::Command::new(common::HG_TOP)
        .args(["--pid", &watched, "--no-ebpf", "-i", "0.3", "-n", "12", "-O", "json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(2800));
    // SAFETY: a process of this test's own.
    assert_eq!(unsafe { libc::kill(pids[1] as i32, libc::SIGKILL) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["shared_arenas"].as_array().unwrap().len(), 1);
    assert_eq!(last["shared_arenas"][0]["mapped_by"], json!(pids));
    let application = &last["applications"][0];
    assert_eq!((&application["processes"], &application["exited"]), (&json!([pids[0], pids[2]]), &json!([pids[1]])));
    let states = |at: usize| &last["shared_arenas"][0]["processes"][at];
    assert_eq!((&states(1)["state"], &states(2)["state"]), (&json!("dead"), &json!("live")), "{}", states(1));
    assert_eq!(states(2)["watched"], true);
}

#[test]
fn the_next_process_is_read_when_one_ends() {
    let (_target, [_, first, second]) = family();
    let pids = format!("{first},{second}");
    let child = std::process::Command::new(common::HG_TOP)
        .args(["--pid", &pids, "--no-ebpf", "-i", "0.2", "-n", "8", "-O", "json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(600));
    // SAFETY: a process of this test's own.
    assert_eq!(unsafe { libc::kill(first as i32, libc::SIGKILL) }, 0);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let documents: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let through = |document: &Value| document["shared_arenas"][0]["read_through"].as_u64().unwrap();
    let (begin, end) = (&documents[0], &documents[documents.len() - 1]);
    assert_eq!((through(begin), through(end)), (first.into(), second.into()));
    let age = end["time"].as_f64().unwrap() - end["shared_arenas"][0]["read"].as_f64().unwrap();
    assert!(age < 0.5, "it is read through the other one: {age} s old");
    assert_eq!(end["shared_arenas"][0]["owner_pid"], second);
}

#[test]
fn a_directory_that_lies_or_is_nowhere_does_no_harm() {
    for (how, listed) in [("lying-directory", Some(256)), ("no-directory", None), ("far-directory", None)] {
        let target = FakePage::start(how);
        let pid = target.pid().parse().unwrap();
        let document = look(&[pid]);
        let arena = &document["shared_arenas"][0];
        assert_eq!(arena["committed_bytes"], 64 << 20, "{how}");
        assert_eq!(arena["processes"].as_array().map(Vec::len), listed, "{how}");
        if listed.is_some() {
            let entries = arena["processes"].as_array().unwrap();
            assert!(entries.iter().all(|entry| entry["state"] == "dead"), "no such process lives");
            assert_eq!(entries[0]["role"], "\\x1b[2Jrole\\n\\x07\\xff");
        }
        let text = hg_top(&["--pid", &target.pid(), "--no-ebpf", "-i", "0.1", "--once"]);
        assert_eq!(text.status.code(), Some(0), "{how}: {}", stderr(&text));
        assert!(!text.stdout.contains(&0x1b), "{how} lets escapes through");
    }
}

#[test]
fn a_directory_that_answers_nothing_is_told_of() {
    let Some(target) = FakePage::where_possible("silent-directory") else { return };
    let honest = FakePage::start("honest");
    let begin = Instant::now();
    let document = look(&[target.pid().parse().unwrap(), honest.pid().parse().unwrap()]);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let processes = document["processes"].as_array().unwrap();
    let of = |pid: String| processes.iter().find(|process| process["pid"] == pid.parse::<u32>().unwrap()).unwrap();
    assert!(of(target.pid())["page_error"].as_str().unwrap().starts_with("does not answer: "));
    assert_eq!(of(honest.pid())["arenas"][0]["classes"][1]["live"], 200);
}

/// In a container the directory has other pids than we do; they are found all the same.
#[test]
fn processes_of_a_container_are_found_by_their_own_pids() {
    let through = ["unshare", "-pf", "--kill-child"];
    let Some(mut target) = FakePage::start_through(&through, "shared") else {
        return eprintln!("skipped: needs unshare and the right to make namespaces");
    };
    let outer: u32 = target.pid().parse().unwrap();
    let parent = *Process::children(&[outer]).unwrap().first().expect("the child of unshare");
    let mut pids = Process::children(&[parent]).unwrap();
    pids.push(parent);
    pids.sort_unstable();
    let document = look(&pids);
    target.end();
    let arena = &document["shared_arenas"][0];
    let entries = arena["processes"].as_array().unwrap();
    let watched: Vec<u64> =
        entries.iter().filter(|entry| entry["watched"] == true).map(|entry| entry["pid"].as_u64().unwrap()).collect();
    assert_eq!(watched, pids.iter().map(|pid| u64::from(*pid)).collect::<Vec<_>>(), "{entries:#?}");
    assert_eq!((&entries[0]["pid_inside"], &entries[0]["role"]), (&json!(1), &json!("main")));
    assert_eq!(arena["owner_pid"], parent);
    assert_eq!(document["processes"][1]["said_role"], "worker 1");
}

#[test]
fn a_real_server_of_several_processes() {
    let target = Prefork::start(3);
    let pids = target.pids();
    let document = look(&pids);
    let applications = document["applications"].as_array().unwrap();
    assert_eq!(applications.len(), 1, "{applications:#?}");
    assert_eq!((&applications[0]["processes"], &applications[0]["private_arenas"]), (&json!(pids), &json!(3)));
    let [shared] = &document["shared_arenas"].as_array().unwrap()[..] else { panic!("one: {document:#}") };
    assert_eq!(
        (&shared["name"], &shared["kind"], &shared["owner_pid"]),
        (&json!("shm"), &json!("shared"), &json!(pids[0]))
    );
    let entries = shared["processes"].as_array().unwrap();
    let roles: Vec<&str> = entries.iter().map(|entry| entry["role"].as_str().unwrap()).collect();
    assert_eq!(roles.len(), 4, "{roles:?}");
    for (entry, role) in entries.iter().zip(&roles) {
        let pid = match role.strip_prefix("worker ") {
            Some(number) => target.workers[number.parse::<usize>().unwrap() - 1],
            None => pids[0],
        };
        assert_eq!((&entry["pid"], &entry["watched"], &entry["state"]), (&json!(pid), &json!(true), &json!("live")));
        assert!(*role == "main" || entry["refills"].as_u64().unwrap() > 10, "{entry}");
    }
    for process in document["processes"].as_array().unwrap() {
        let arenas = process["arenas"].as_array().unwrap();
        let names: Vec<&str> = arenas.iter().map(|arena| arena["name"].as_str().unwrap()).collect();
        let own: &[&str] = if process["pid"] == pids[0] { &[] } else { &["pkg"] };
        assert_eq!((names.as_slice(), &process["shared_arenas"]), (own, &json!([shared["id"]])));
    }
    // What is committed is there once, not four times; some of it nobody has touched.
    let application = &applications[0];
    let bytes = |field: &str| application[field].as_u64().unwrap();
    let shm = shared["committed_bytes"].as_u64().unwrap();
    assert!(bytes("committed_bytes") >= shm && bytes("committed_bytes") <= shm + 3 * (8 << 20), "{application:#}");
    assert!(bytes("memory_bytes") < 2 * (shm + (32 << 20)), "{application:#}");
}

#[test]
fn processes_that_open_an_arena_by_its_name_are_one_application() {
    let shm = std::path::Path::new("/dev/shm");
    let name = format!("hg-top-{}", std::process::id());
    let folder = shm.join(&name);
    if std::fs::create_dir(&folder).is_err() {
        return eprintln!("skipped: needs a folder in /dev/shm");
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    let (mut first, second) = (Prefork::named(&name, &folder), Prefork::named(&name, &folder));
    let mut pids = [first.parent(), second.parent()];
    pids.sort_unstable();
    let document = look(&pids);
    let [shared] = &document["shared_arenas"].as_array().unwrap()[..] else { panic!("one: {document:#}") };
    assert_eq!((&shared["name"], &shared["mapped_by"]), (&json!(name), &json!(pids)));
    assert_eq!(document["applications"].as_array().unwrap().len(), 1);
    // Its name is gone; who has it goes on.
    first.ask("unlink");
    assert_eq!(first.answer(), "done");
    let again = look(&pids);
    assert_eq!(again["shared_arenas"][0]["id"], shared["id"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
