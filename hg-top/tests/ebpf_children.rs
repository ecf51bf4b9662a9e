//! Children of a watched process are watched. A test program of its own: it watches itself, so all it starts counts.

#[path = "../../probes/tests/common/mod.rs"]
mod common;

use hg_top::source::ebpf::{EbpfSource, Without};

#[test]
fn children_are_watched_with_and_without_the_kernels_help() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("children_are_watched_with_and_without_the_kernels_help", why);
    }
    // This process carries a probe, so it can be watched and have children.
    let me = std::process::id();
    let fire = || {
        hg_probes::emit::alloc_failed(|| hg_probes::catalogue::args::alloc_failed {
            arena: 1,
            bytes: 2,
            cause: hg_probes::words::Cause::Cap,
        });
    };
    for newtask in [false, true] {
        let without = Without { multi: false, newtask };
        let mut source = EbpfSource::attach_without(&[me], without).expect("attached");
        assert_eq!(source.sites().children.is_ok(), !newtask);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        if newtask {
            source.poll().expect("a sample");
        }
        let processes = source.processes();
        assert!(processes.contains(&me) && processes.contains(&child.id()), "{processes:?}");
        // Threads are no processes.
        std::thread::spawn(fire).join().expect("fired");
        let sample = source.poll().expect("a sample");
        assert_eq!(sample.events.len(), 1);
        let event = &sample.events[0].event;
        assert!(event.tgid == me && event.tid != me, "{event:?}");
        assert!(!source.processes().contains(&event.tid));
        child.kill().expect("killed");
        child.wait().expect("waited for");
        source.poll().expect("a sample");
        assert!(!source.processes().contains(&child.id()), "the dead are given up");
    }
}
