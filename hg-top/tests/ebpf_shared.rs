//! Processes that share an arena of hg, for real: who has a lock and is stopped, and who was killed with one, is told within a
//! second, by pid and role.

use std::time::{Duration, Instant};

use hg_top::alert::{Alert, Alerts, Kind};
use hg_top::collect::Collector;
use hg_top::model::EbpfState;
use hg_top::process::monotonic_ns;
use hg_top::wake;

mod common;
#[path = "../../probes/tests/common/mod.rs"]
mod fire;
use common::prefork::Prefork;

/// Time that a test may take to catch a worker with a lock in its hands.
const PATIENCE: Duration = Duration::from_secs(40);

/// The collector over `pids`, or `None` where tracing is not possible.
fn collector(pids: &[u32]) -> Option<Collector> {
    let collector = Collector::open(pids, true).expect("targets on hg");
    match collector.ebpf() {
        EbpfState::On { .. } => Some(collector),
        EbpfState::Off(why) => {
            const CAP_SYS_ADMIN: u32 = 21;
            assert!(
                !fire::has(CAP_SYS_ADMIN) || why.contains("namespace") || why.contains("uprobes"),
                "not attached: {why}"
            );
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a child of this test's own target.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "{pid} has ended");
}

/// Takes events as the live loop does, for at most `time`, until an alert of `kind` about `wanted` is there; it, and how long after
/// its event.
fn await_alert(
    collector: &mut Collector,
    kind: Kind,
    time: Duration,
    wanted: impl Fn(&Alert) -> bool,
) -> Option<(Alert, Duration)> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        wake::wait([collector.event_fd()], end.saturating_duration_since(Instant::now()));
        for event in collector.events() {
            let mut alerts = Alerts::default();
            alerts.event(&event);
            let latency = Duration::from_nanos(monotonic_ns().saturating_sub(event.at));
            if let Some(alert) = alerts.all().into_iter().find(|alert| alert.kind == kind && wanted(alert)) {
                return Some((alert.clone(), latency));
            }
        }
    }
    None
}

#[test]
fn a_worker_stopped_with_a_lock_is_named_with_its_role_within_a_second() {
    stopped_with_a_lock(&Prefork::start(3));
}

/// In a container locks know their holders by other ids than we do.
#[test]
fn a_worker_of_a_container_stopped_with_a_lock_is_named_by_our_pid() {
    match Prefork::start_inside(3) {
        Some(target) => stopped_with_a_lock(&target),
        None => eprintln!("skipped: needs unshare and the right to make namespaces"),
    }
}

fn stopped_with_a_lock(target: &Prefork) {
    let Some(mut collector) = collector(&target.pids()) else { return };
    // Roles are known from the directory.
    collector.sample();
    let begin = Instant::now();
    for tries in 1.. {
        assert!(begin.elapsed() < PATIENCE, "{tries} times no worker had a lock");
        let worker = target.workers[tries % target.workers.len()];
        let stopped = Instant::now();
        signal(worker, libc::SIGSTOP);
        // Not one that it told of itself, of a hold that was over before.
        let is_it = |alert: &Alert| {
            alert.pid == worker && alert.evidence.contains("(stopped)") && alert.evidence.contains("waited for")
        };
        let found = await_alert(&mut collector, Kind::LockStall, Duration::from_millis(15), is_it);
        let took = stopped.elapsed();
        signal(worker, libc::SIGCONT);
        let Some((alert, latency)) = found else {
            std::thread::sleep(Duration::from_micros(200 + tries as u64 % 7 * 130));
            continue;
        };
        eprintln!("try {tries}: {took:?} after the stop, {latency:?} after the event: {}", alert.evidence);
        assert!(took < Duration::from_secs(1) && latency < Duration::from_secs(1), "{took:?}, {latency:?}");
        let number = target.workers.iter().position(|pid| *pid == worker).unwrap() + 1;
        assert_eq!(alert.role, Some(format!("worker {number}")));
        let held = format!(" held by tid {worker} (stopped), worker {number}; waited for ");
        assert!(alert.evidence.contains(&held), "{}", alert.evidence);
        assert!(alert.stuck && alert.next_step.contains("kill -CONT"), "{alert:?}");
        assert!(alert.evidence.contains(") by tid ") && alert.evidence.contains(", worker "), "{}", alert.evidence);
        break;
    }
    collector.close();
}

/// Without eBPF the arena's own directory tells of who waits, and the kernel of who is stopped.
#[test]
fn a_worker_stopped_with_a_lock_is_told_of_by_the_directory() {
    let target = Prefork::start(3);
    let mut collector = Collector::open(&target.pids(), false).expect("targets on hg");
    let begin = Instant::now();
    for tries in 1.. {
        assert!(begin.elapsed() < PATIENCE, "{tries} times no worker had a lock");
        let worker = target.workers[tries % target.workers.len()];
        let (before, _) = collector.sample();
        signal(worker, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(10));
        let (now, _) = collector.sample();
        let mut alerts = Alerts::default();
        alerts.snapshot(&now, Some(&before));
        signal(worker, libc::SIGCONT);
        let Some(alert) = alerts.all().into_iter().find(|alert| alert.kind == Kind::LockStall) else { continue };
        eprintln!("try {tries}: {}", alert.evidence);
        let number = target.workers.iter().position(|pid| *pid == worker).unwrap() + 1;
        assert_eq!((alert.pid, &alert.role), (worker, &Some(format!("worker {number}"))));
        assert!(alert.evidence.ends_with(&format!("by the directory; {worker} (worker {number}) is stopped")));
        assert!(alert.stuck && alert.next_step.contains("kill -CONT"), "{alert:?}");
        return;
    }
}

#[test]
fn a_worker_killed_with_a_lock_is_an_event_and_an_alert() {
    let mut target = Prefork::start(3);
    let Some(mut collector) = collector(&target.pids()) else { return };
    let begin = Instant::now();
    for tries in 1.. {
        assert!(begin.elapsed() < PATIENCE, "{tries} were killed, none with a lock");
        // Roles are known from the directory.
        let (snapshot, _) = collector.sample();
        let shared = snapshot.shared.values().next().expect("the shared arena");
        let members = shared.members.as_ref().expect("its directory");
        let victim = target.workers[0];
        let role = members.iter().find(|member| member.inner_pid == victim).map(|member| member.role.clone());
        signal(victim, libc::SIGKILL);
        let is_it = |alert: &Alert| alert.evidence.contains(&format!("thread {victim} "));
        let found = await_alert(&mut collector, Kind::OwnerDead, Duration::from_millis(20), is_it);
        target.replace(0);
        let (Some((alert, latency)), Some(role)) = (found, role.filter(|role| !role.is_empty())) else { continue };
        eprintln!("kill {tries}: {latency:?} after the event: {}", alert.evidence);
        assert!(latency < Duration::from_secs(1), "{latency:?}");
        assert_eq!((alert.pid, alert.role.as_ref()), (target.parent(), Some(&role)), "{alert:?}");
        assert!(alert.evidence.starts_with(&format!("thread {victim} ({role}) died with ")), "{}", alert.evidence);
        break;
    }
    let (snapshot, _) = collector.sample();
    let shared = snapshot.shared.values().next().expect("the shared arena");
    assert!(shared.arena.figures.as_ref().is_some_and(|figures| figures.owner_deaths > 0));
    collector.close();
}
