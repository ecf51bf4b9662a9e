//! From the event in a real target to the alert in the live collector: within a second, with the thread and its stack.

use std::time::{Duration, Instant};

use hg_top::alert::{Alert, Alerts, Kind};
use hg_top::collect::Collector;
use hg_top::model::EbpfState;
use hg_top::process::{Process, monotonic_ns};
use hg_top::wake;

mod common;
#[path = "../../probes/tests/common/mod.rs"]
mod fire;
use common::trouble::Trouble;

/// The collector over `pid`, or `None` where tracing is not possible.
fn collector(pid: u32) -> Option<Collector> {
    let collector = Collector::open(&[pid], true).expect("a target on hg");
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

/// Asks for trouble and waits for its alert as the live loop does; the alert, and how long after the event it was there.
fn alert(target: &mut Trouble, collector: &mut Collector, word: &str, kind: Kind) -> (Alert, Duration) {
    let mut alerts = Alerts::default();
    // What is left of an earlier stall is not what is asked for.
    collector.events();
    target.ask(word);
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        wake::wait([collector.event_fd()], Duration::from_millis(100));
        for event in collector.events() {
            alerts.event(&event);
            if let Some(alert) = alerts.all().into_iter().find(|alert| alert.kind == kind) {
                let latency = Duration::from_nanos(monotonic_ns().saturating_sub(event.at));
                let alert = alert.clone();
                assert_eq!(target.answer(), "done");
                return (alert, latency);
            }
        }
    }
    panic!("no {word} alert in {:?}", collector.ebpf())
}

#[test]
fn trouble_is_an_alert_within_a_second() {
    let mut target = Trouble::start(&[]);
    let Some(mut collector) = collector(target.pid()) else { return };
    for (word, kind) in [("stall", Kind::LockStall), ("fault", Kind::Corruption)] {
        let (alert, latency) = alert(&mut target, &mut collector, word, kind);
        eprintln!("{word}: {latency:?} after the event: {} [{}]", alert.evidence, alert.stack.join(" "));
        assert!(latency < Duration::from_secs(1), "{word}: {latency:?}");
        assert_eq!(alert.pid, target.pid());
        assert!(alert.stack_id.is_some() && alert.stack[0].starts_with("trouble+0x"), "{alert:?}");
        let tids = tids(&alert.evidence);
        assert!(!tids.is_empty(), "no thread: {}", alert.evidence);
    }
    collector.close();
}

/// In a container a lock knows its holder by another id than we do: the alert names the thread by ours.
#[test]
fn the_holder_is_found_in_a_pid_namespace() {
    if !std::process::Command::new("unshare").args(["-pf", "true"]).output().is_ok_and(|done| done.status.success()) {
        return eprintln!("skipped: needs unshare and the right to make namespaces");
    }
    let mut target = Trouble::start(&["unshare", "-pf", "--kill-child"]);
    let inner = *Process::children(&[target.pid()]).expect("/proc").first().expect("the child of unshare");
    let Some(mut collector) = collector(inner) else { return };
    // Who waits tells who holds; the holder may be gone before it is looked up, but not each time.
    let mut seen = Vec::new();
    let named = (0..10).any(|_| {
        let (alert, _) = alert(&mut target, &mut collector, "stall", Kind::LockStall);
        let known = alert.evidence.contains("held by tid") && tids(&alert.evidence).iter().all(|tid| *tid >= inner);
        seen.push(alert.evidence);
        known
    });
    assert!(named, "ids of inside, which are small: {seen:#?}");
    collector.close();
}

/// The numbers after the word `tid` or `thread`.
fn tids(evidence: &str) -> Vec<u32> {
    let words: Vec<&str> = evidence.split_whitespace().collect();
    let named = words.windows(2).filter(|pair| matches!(pair[0], "tid" | "thread"));
    named.map(|pair| pair[1].trim_end_matches(';').parse().expect("a thread id")).collect()
}
