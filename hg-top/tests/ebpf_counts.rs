//! What the kernel counts is exactly what was fired: over threads on several CPUs and forked children, and of nobody else.

#[path = "../../probes/tests/common/mod.rs"]
mod common;

use common::Fire;
use hg_probes::maps::{ClassKey, LockKey, Lost, MAX_KEYS_PER_PROCESS};
use hg_top::source::ebpf::EbpfSource;

/// Hits of each probe, thread and child. Enough for threads and children to run at the same time.
const HITS: u64 = 20_000;

#[test]
fn sums_are_exact_over_threads_and_children() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("sums_are_exact_over_threads_and_children", why);
    }
    let mut fire = Fire::start(&["hits", &HITS.to_string()]);
    // The same program, so the same sites are hit; but nobody watches it.
    let mut other = Fire::start(&["hits", "1000"]);
    let mut source = EbpfSource::attach(&[fire.pid()]).expect("attached");
    other.fire();
    let children = fire.fire();
    let sample = source.poll().expect("a sample");

    assert_eq!(children.len(), 2);
    let tgids = [fire.pid(), fire.pid(), children[0], children[1]];
    assert_eq!(sample.lost, [0; Lost::COUNT as usize]);
    // Two classes for each of the four.
    assert_eq!(sample.classes.len(), 8, "{:?}", sample.classes);
    assert_eq!(sample.locks.len(), 4, "{:?}", sample.locks.keys());
    for (who, tgid) in tgids.into_iter().enumerate() {
        let arena = 1 + who as u32;
        for class in [64, 128] {
            let value = sample.classes[&ClassKey { tgid, arena, class }];
            let counts = [value.refills, value.reused, value.carved, value.flushes, value.flushed];
            assert_eq!(counts, [1, 3, 2, 1, 7].map(|each| each * HITS / 2), "process {tgid}, class {class}");
        }
        let value = sample.locks[&LockKey { tgid, arena, lock: 64, reason: 0 }];
        for (name, histogram, first) in [("wait", value.wait, 0), ("hold", value.hold, 1000)] {
            assert_eq!(histogram.count, HITS, "{name} of process {tgid}");
            assert_eq!(histogram.sum_ns, (first..first + HITS).sum::<u64>());
            assert_eq!(histogram.max_ns, first + HITS - 1);
            for (bucket, counted) in histogram.buckets.into_iter().enumerate() {
                let fired = (first..first + HITS).filter(|ns| hg_probes::page::bucket(*ns) == bucket).count();
                assert_eq!(counted, fired as u64, "{name} of process {tgid}, bucket {bucket}");
            }
        }
    }
    let sites = source.sites();
    assert_eq!((sites.found, sites.attached), (14, 14), "{sites:?}");
    assert_eq!(sites.problems, Vec::<String>::new());

    // The children are dead and were seen once more; the next sample knows only the living.
    let sample = source.poll().expect("a sample");
    assert_eq!(source.processes(), [fire.pid()]);
    assert_eq!(sample.classes.len(), 4);
    source.detach();
    fire.end();
    other.end();
}

#[test]
fn one_process_cannot_use_up_the_keys_of_others() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("one_process_cannot_use_up_the_keys_of_others", why);
    }
    let mut greedy = Fire::start(&["keys", "3000"]);
    let mut modest = Fire::start(&["hits", "10"]);
    let mut source = EbpfSource::attach(&[greedy.pid(), modest.pid()]).expect("attached");
    greedy.fire();
    modest.fire();
    let sample = source.poll().expect("a sample");
    let of = |pid| sample.classes.keys().filter(move |key| key.tgid == pid).count();
    assert_eq!(of(greedy.pid()), MAX_KEYS_PER_PROCESS as usize);
    assert_eq!(of(modest.pid()), 4);
    let mut lost = [0; Lost::COUNT as usize];
    lost[Lost::KeysSpent as usize] = 3000 - u64::from(MAX_KEYS_PER_PROCESS);
    assert_eq!(sample.lost, lost);
    greedy.end();
    modest.end();
}
