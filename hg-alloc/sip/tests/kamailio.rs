//! Kamailio under the library: calls through it, its own statistics and dumps, roles of its processes, and a clean end.

mod common;

use common::built;
use common::directory::roles;
use common::server::{Answers, Ended, Program, Server, Setup, Transport, numbers};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn check_calls(server: &Server, answers: Answers) {
    assert!(answers.is_complete, "calls failed:\n{}", server.log());
}

/// The server's own figures of its memory, which must make sense at any moment.
fn check_statistics(server: &Server) {
    let log = server.log();
    assert!(!log.contains("CRITICAL:") && !log.contains("ERROR:"), "{log}");
    let shm = server.ask(&["core.shmmem"]);
    let pkg = server.ask(&["pkg.stats"]);
    let one = |name| numbers(&shm, name)[0];
    assert!(one("total") >= 128 * MIB && one("total") < 129 * MIB, "{shm}");
    assert!(one("used") > 0 && one("used") <= one("real_used"), "{shm}");
    assert!(one("real_used") <= one("max_used") && one("max_used") <= one("total"), "{shm}");
    assert_eq!(one("free"), one("total") - one("real_used"), "{shm}");
    let (used, real, total) = (numbers(&pkg, "used"), numbers(&pkg, "real_used"), numbers(&pkg, "total_size"));
    assert!(used.len() > 5, "{pkg}");
    for ((used, real), total) in used.iter().zip(&real).zip(&total) {
        assert!(*used > 0 && used <= real && real <= total, "{pkg}");
    }
    let report = server.ask(&["shm.report"]);
    assert!(report.contains("total_size"), "{report}");
}

fn check_end(Ended { is_clean, log }: Ended) {
    assert!(is_clean, "{log}");
    for domain in ["pkg", "shm"] {
        assert!(log.contains(&format!("hg: {domain}: on hg, up to ")), "{log}");
        // Its dump at exit, which its configuration asks for.
        assert!(log.contains(&format!("hg: {domain}: total=")), "{log}");
    }
    assert!(!log.contains("hg: shm: no memory") && !log.contains("hg: pkg: no memory"), "{log}");
}

#[test]
fn calls_by_two_and_by_four_workers_do_not_fail() {
    for (name, workers) in [("two", 2), ("four", 4)] {
        let setup =
            Setup { program: Program::Kamailio, name, workers, is_preloaded: true, environment: &[], arguments: &[] };
        let Some(server) = Server::start(&setup) else { return };
        check_calls(&server, server.busy_calls(2000, 1000, Transport::Udp));
        check_calls(&server, server.relayed_calls(800, 300, Transport::Udp));
        check_statistics(&server);
        check_end(server.end());
    }
}

/// What `hg-top --pid $(pidof kamailio) --once -O json` says.
#[test]
fn hg_top_shows_one_application() {
    let setup = Setup {
        program: Program::Kamailio,
        name: "hg-top",
        workers: 2,
        is_preloaded: true,
        environment: &[],
        arguments: &[],
    };
    let Some(server) = Server::start(&setup) else { return };
    let program = built("hg-top", "hg-top");
    check_calls(&server, server.relayed_calls(200, 200, Transport::Udp));
    // Its children have roles a moment after they were forked.
    std::thread::sleep(Duration::from_secs(1));
    let pids = server.processes();
    let pidof = pids.iter().map(u32::to_string);
    let output =
        Command::new(program).arg("--pid").args(pidof).args(["--once", "-O", "json"]).output().expect("hg-top");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();

    let [application] = &list(&seen["applications"])[..] else { panic!("{}", seen["applications"]) };
    let mut members: Vec<_> = list(&application["processes"]).iter().filter_map(Value::as_u64).collect();
    let mut wanted: Vec<_> = pids.iter().map(|pid| u64::from(*pid)).collect();
    members.sort_unstable();
    wanted.sort_unstable();
    assert_eq!((&application["name"], members), (&Value::from("kamailio"), wanted));
    assert_eq!(application["private_arenas"], pids.len());

    let [shm] = &list(&seen["shared_arenas"])[..] else { panic!("{}", seen["shared_arenas"]) };
    assert_eq!((&shm["name"], &shm["kind"]), (&Value::from("shm"), &Value::from("shared")));
    assert_eq!(application["shared_arenas"], Value::from(vec![shm["id"].clone()]));
    let bytes = |name| shm[name].as_u64().expect("bytes");
    assert!(bytes("live_bytes") > 0 && bytes("live_bytes") <= bytes("committed_bytes"), "{shm}");
    assert_eq!(bytes("reserved_bytes"), 128 * MIB);

    let processes = list(&seen["processes"]);
    assert_eq!(processes.len(), pids.len());
    for process in &processes {
        let arenas = list(&process["arenas"]);
        assert!(arenas.len() == 1 && arenas[0]["name"] == "pkg", "{process}");
    }
    let receivers = processes.iter().filter_map(|process| process["said_role"].as_str());
    assert_eq!(receivers.filter(|role| role.starts_with("udp receiver child=")).count(), 2, "{processes:?}");
    check_end(server.end());
}

#[test]
fn relayed_calls_over_tcp_do_not_fail() {
    let setup = Setup {
        program: Program::Kamailio,
        name: "tcp",
        workers: 2,
        is_preloaded: true,
        environment: &[],
        arguments: &["-x", "tlsf", "-X", "fm"],
    };
    let Some(server) = Server::start(&setup) else { return };
    check_calls(&server, server.relayed_calls(500, 200, Transport::Tcp));
    check_statistics(&server);
    check_end(server.end());
}

#[test]
fn a_patched_server_relays_calls() {
    let environment = [("HG_SIP_HOOK", "patch"), ("HG_SHM", "8m:128m"), ("HG_PKG", "2m:12m")];
    let setup = Setup {
        program: Program::Kamailio,
        name: "patch",
        workers: 2,
        is_preloaded: true,
        environment: &environment,
        arguments: &[],
    };
    let Some(server) = Server::start(&setup) else { return };
    check_calls(&server, server.relayed_calls(500, 300, Transport::Udp));
    check_calls(&server, server.busy_calls(500, 500, Transport::Udp));
    check_statistics(&server);
    assert_eq!(numbers(&server.ask(&["pkg.stats"]), "total_size")[0], 12 * MIB);
    check_end(server.end());
}

/// Whether the kernel makes a huge page of shared memory when it is told to.
fn kernel_collapses() -> bool {
    const PAGE: usize = 2 << 20;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a mapping of this function's own, of which it fills and keeps whole pages; the second mapping lies in the first.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_NONE, kind, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let first = (at as usize).next_multiple_of(PAGE) as *mut libc::c_void;
        let page = libc::mmap(first, PAGE, access, kind | libc::MAP_FIXED, -1, 0);
        page == first && {
            page.cast::<u8>().write_bytes(1, PAGE);
            libc::madvise(page, PAGE, libc::MADV_COLLAPSE) == 0
        }
    }
}

#[test]
fn huge_pages_are_had_where_they_are_asked_for() {
    if !kernel_collapses() {
        eprintln!("SKIPPED: the kernel makes no huge pages of shared memory");
        return;
    }
    let setup = Setup {
        program: Program::Kamailio,
        name: "huge",
        workers: 2,
        is_preloaded: true,
        environment: &[("HG_TIER", "thp")],
        arguments: &[],
    };
    let Some(server) = Server::start(&setup) else { return };
    check_calls(&server, server.relayed_calls(500, 300, Transport::Udp));
    let huge_kib = |pid: u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the kernel's figures");
        let line = maps.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let most = server.processes().into_iter().map(huge_kib).max().unwrap_or(0);
    assert!(most >= 4096, "{most} KiB at most in huge pages:\n{}", server.log());
    check_statistics(&server);
    check_end(server.end());
}

#[test]
fn processes_have_the_roles_that_the_server_gives_them() {
    let setup = Setup {
        program: Program::Kamailio,
        name: "roles",
        workers: 2,
        is_preloaded: true,
        environment: &[],
        arguments: &[],
    };
    let Some(server) = Server::start(&setup) else { return };
    let begin = Instant::now();
    let found = loop {
        let found = roles(server.pid());
        let receivers = found.values().filter(|role| role.starts_with("udp receiver child=")).count();
        if receivers == 2 && found.get(&server.pid()).is_some_and(|role| role.starts_with("main process")) {
            break found;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{found:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(found.values().any(|role| role == "timer"), "{found:?}");
    check_end(server.end());
}

/// The CPUs that a process may use, as the kernel lists them.
fn cpus(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("a list").trim().to_owned()
}

#[test]
fn workers_run_on_the_cpus_that_they_are_given() {
    let own = cpus(std::process::id());
    let first = own.split([',', '-']).next().expect("a CPU").to_owned();
    let wish = format!("udp receiver={first};timer={first}-1023");
    for (wish, narrowed) in [("auto", "udp"), (&wish, "udp"), ("1023", "none")] {
        let environment = [("HG_CPUS", wish)];
        let setup = Setup {
            program: Program::Kamailio,
            name: "cpus",
            workers: 2,
            is_preloaded: true,
            environment: &environment,
            arguments: &[],
        };
        let Some(server) = Server::start(&setup) else { return };
        let begin = Instant::now();
        loop {
            let roles = roles(server.pid());
            let receivers =
                roles.iter().filter(|(_, role)| role.starts_with("udp receiver")).map(|(pid, _)| cpus(*pid));
            let receivers: Vec<_> = receivers.collect();
            let is_one = |list: &String| list.parse::<usize>().is_ok();
            let is_done = receivers.len() == 2
                && if narrowed == "udp" { receivers.iter().all(is_one) } else { receivers == [&*own, &*own] };
            if is_done {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "{wish}: {receivers:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(cpus(server.pid()), own, "the main process stays as it is");
        assert_eq!(server.end().log.contains("hg: HG_CPUS: none of these CPUs"), narrowed == "none");
    }
}

#[test]
fn a_server_ends_in_good_order_after_a_worker_was_killed() {
    let setup = Setup {
        program: Program::Kamailio,
        name: "killed",
        workers: 2,
        is_preloaded: true,
        environment: &[],
        arguments: &[],
    };
    let Some(server) = Server::start(&setup) else { return };
    check_calls(&server, server.busy_calls(500, 500, Transport::Udp));
    let processes = roles(server.pid());
    let worker = processes.iter().find(|(_, role)| role.starts_with("udp receiver")).expect("a worker").0;
    common::signal(*worker, libc::SIGKILL);
    // It ends by itself: a main process that loses a child ends all others.
    let Ended { log, .. } = server.wait();
    assert!(log.contains("hg: shm: total="), "{log}");
    assert!(processes.keys().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{processes:?}");
}

#[test]
fn a_server_without_memory_says_which_option_gives_more() {
    let setup = Setup {
        program: Program::Kamailio,
        name: "full",
        workers: 2,
        is_preloaded: true,
        environment: &[("HG_SHM", "24m")],
        arguments: &[],
    };
    let Some(server) = Server::start(&setup) else { return };
    // Each call keeps some 13 KiB for five seconds, so that not all can be answered; those that were not, retry.
    check_calls(&server, server.busy_calls(3000, 1500, Transport::Udp));
    let Ended { is_clean, log } = server.end();
    assert!(is_clean, "{log}");
    let told = log.lines().filter(|line| line.contains("hg: shm: no memory for ")).collect::<Vec<_>>();
    assert!(!told.is_empty() && told.len() < 20, "{log}");
    assert!(told[0].contains("a larger -m, or set HG_SHM"), "{}", told[0]);
}

#[test]
fn a_server_keeps_its_own_allocator_if_told_so() {
    let setup = Setup {
        program: Program::Kamailio,
        name: "off",
        workers: 2,
        is_preloaded: true,
        environment: &[("HG_SIP_HOOK", "off")],
        arguments: &[],
    };
    let Some(server) = Server::start(&setup) else { return };
    check_calls(&server, server.busy_calls(200, 200, Transport::Udp));
    let Ended { is_clean, log } = server.end();
    assert!(is_clean && !log.contains("hg: "), "{log}");
}
