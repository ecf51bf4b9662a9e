//! Rare events arrive with the arguments they were fired with, with stacks where they should have one, and what does not
//! fit is counted; a source that is gone leaves nothing behind.

#[path = "../../probes/tests/common/mod.rs"]
mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::Fire;
use hg_probes::maps::{Lost, has_stack, is_event};
use hg_probes::{PROBES, ProbeId};
use hg_top::attach::links::LinkKind;
use hg_top::source::ebpf::{EbpfSource, Without};

#[test]
fn every_rare_event_arrives_as_it_was_fired() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("every_rare_event_arrives_as_it_was_fired", why);
    }
    let mut fire = Fire::start(&["once"]);
    let before = monotonic_ns();
    let mut source = EbpfSource::attach(&[fire.pid()]).expect("attached");
    assert!(!readable(&source), "nothing was fired yet");
    fire.fire();
    assert!(readable(&source));
    let sample = source.poll().expect("a sample");
    assert!(!readable(&source));
    let after = monotonic_ns();

    let rare: Vec<_> = common::ONCE.iter().filter(|(probe, _)| is_event(*probe)).collect();
    assert_eq!(sample.events.len(), rare.len());
    for (seen, (probe, arguments)) in sample.events.iter().zip(rare) {
        let event = &seen.event;
        assert_eq!(ProbeId::from_u64(u64::from(event.probe)), Some(*probe));
        assert_eq!(event.args[..arguments.len()], **arguments, "{probe:?}");
        assert_eq!((event.tgid, event.tid), (fire.pid(), fire.pid()));
        assert!((before..=after).contains(&event.ns));
        if has_stack(*probe) {
            assert!(event.stack >= 0, "{probe:?}: {}", event.stack);
            // The innermost address is the probe's instruction, which lies in the program's own code.
            assert!(code_of(fire.pid()).contains(&seen.stack[0]), "{probe:?}: {:x?}", seen.stack);
        } else {
            assert_eq!((event.stack, seen.stack.as_slice()), (-1, &[][..]), "{probe:?}");
        }
    }
    let used: Vec<&str> =
        PROBES.iter().map(|probe| probe.name).filter(|name| source.sites().probes.contains(name)).collect();
    assert_eq!(used.len(), 14, "{used:?}");
    fire.end();
}

#[test]
fn a_flood_is_counted_where_it_does_not_fit() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("a_flood_is_counted_where_it_does_not_fit", why);
    }
    const FIRED: u64 = 10_000;
    let mut fire = Fire::start(&["flood", &FIRED.to_string()]);
    let mut source = EbpfSource::attach(&[fire.pid()]).expect("attached");
    fire.fire();
    let sample = source.poll().expect("a sample");
    let arrived = sample.events.len() as u64;
    let mut lost = [0; Lost::COUNT as usize];
    lost[Lost::RingFull as usize] = FIRED - arrived;
    assert!(arrived > 1000 && arrived < FIRED, "{arrived}");
    assert_eq!(sample.lost, lost);
    // The first ones arrived, in order.
    for (i, seen) in sample.events.iter().enumerate() {
        assert_eq!(seen.event.args[..3], [1, i as u64, i as u64 + 1]);
    }
    fire.end();
}

#[test]
fn detaching_takes_no_time_and_takes_the_semaphores_down() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("detaching_takes_no_time_and_takes_the_semaphores_down", why);
    }
    // A link for each site takes the kernel 100 ms each to let go: the same must hold for those.
    for without in [Without::default(), Without { multi: true, newtask: false }] {
        let mut fire = Fire::start(&["once"]);
        let mut source = EbpfSource::attach_without(&[fire.pid()], without).expect("attached");
        assert!(!without.multi || source.sites().links == LinkKind::Perf);
        assert_eq!(common::listened_to(fire.pid()), 14, "one for each probe that is watched");
        fire.fire();
        assert_eq!(source.poll().expect("a sample").events.len(), 10);
        let start = Instant::now();
        source.detach();
        let took = start.elapsed();
        assert!(took < Duration::from_millis(250), "{took:?} without {without:?}");
        // The kernel is given its time in the background.
        let deadline = Instant::now() + Duration::from_secs(30);
        while common::listened_to(fire.pid()) != 0 {
            assert!(Instant::now() < deadline, "still attached");
            std::thread::sleep(Duration::from_millis(20));
        }
        fire.end();
    }
}

/// Where the code of the example lies in a process.
fn code_of(pid: u32) -> std::ops::Range<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let line = maps.lines().find(|line| line.contains("r-xp") && line.ends_with("/fire")).expect("its code");
    let (start, rest) = line.split_once('-').expect("a range");
    let end = rest.split(' ').next().expect("an end");
    u64::from_str_radix(start, 16).expect("start")..u64::from_str_radix(end, 16).expect("end")
}

fn readable(source: &EbpfSource) -> bool {
    use std::os::fd::AsRawFd;
    let mut poll = libc::pollfd { fd: source.event_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, valid for the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
