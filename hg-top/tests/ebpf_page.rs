//! Two sources, one truth: over a run of known work the kernel counts exactly what the allocator writes into its stats page,
//! for every class, and for every lock and reason down to the buckets of the histograms.

#[path = "../../probes/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use hg_probes::maps::{ClassKey, ClassValue, HistogramValue, LockKey, LockValue, Lost};
use hg_probes::words::{LockId, Reason};
use hg_probes::{ProbeId, page::BUCKETS};
use hg_top::model::{Arena, Histogram};
use hg_top::source::ebpf::EbpfSource;
use hg_top::source::stats::{Found, StatsSource};

/// This program runs on hg, so that it can be its own target.
#[global_allocator]
static ALLOCATOR: hg_alloc::HgAlloc = hg_alloc::HgAlloc::new();

/// Set in the process that is watched.
const WORKER: &str = "HG_TEST_WORKER";

/// The watched process: works when told to, and is silent before and after. Does nothing in a run of the tests.
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    let mut line = String::with_capacity(64);
    let mut input = std::io::stdin().lock();
    // Once, so that buffers exist before anybody compares.
    for _ in 0..2 {
        eprintln!("waiting");
        line.clear();
        input.read_line(&mut line).expect("told");
        work();
    }
    eprintln!("done");
    line.clear();
    let _ = input.read_line(&mut line);
}

/// Allocations of many sizes in threads that free each other's, some large, more than fits without growing.
fn work() {
    let (sender, receiver) = std::sync::mpsc::channel::<Vec<Vec<u8>>>();
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut size = 17 + thread;
                for round in 0..200 {
                    let mut blocks = Vec::new();
                    for _ in 0..200 {
                        size = (size * 31 + 7) % 20_000;
                        blocks.push(vec![round as u8; 1 + size]);
                    }
                    blocks.retain(|block| block.len() % 3 != 0);
                    if round % 20 == 0 {
                        blocks.push(vec![1; 3 << 20]);
                    }
                    sender.send(blocks).expect("a receiver");
                }
            });
        }
        drop(sender);
        let mut kept = Vec::new();
        for blocks in receiver {
            kept.extend(blocks.into_iter().step_by(2));
        }
        drop(kept);
    });
}

/// The watched process, with a line of its stderr for each state.
struct Worker {
    child: Child,
    states: BufReader<std::process::ChildStderr>,
}

impl Worker {
    fn start() -> Worker {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
            .env(WORKER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the worker");
        let states = BufReader::new(child.stderr.take().expect("its states"));
        Worker { child, states }
    }

    /// Waits until it says so, and sleeps.
    fn wait_for(&mut self, state: &str) {
        let mut line = String::new();
        while line.trim_end() != state {
            line.clear();
            assert_ne!(
                self.states.read_line(&mut line).expect("its states"),
                0,
                "the worker ended before it was {state}"
            );
        }
        // It blocks in a read right after the line; nothing of it runs then.
        let waits = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
            tasks
                .flatten()
                .all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") S ")))
        };
        while !waits() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().expect("its input")).expect("it listens");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn arena(pid: u32) -> Arena {
    let found = StatsSource::open(pid).expect("a page").read(&Found::default(), &Default::default());
    let mut arenas = found.expect("its figures").private;
    assert_eq!(arenas.keys().copied().collect::<Vec<u32>>(), [1]);
    let arena = arenas.remove(&1).expect("the arena");
    assert_eq!(arena.torn, 0, "nothing changes while the worker waits");
    arena
}

fn class_changes(before: &Arena, after: &Arena) -> BTreeMap<u32, ClassValue> {
    let of = |arena: &Arena, size: u32| arena.classes.get(&size).and_then(|class| class.total).unwrap_or_default();
    let change = |size: u32| {
        let (was, is) = (of(before, size), of(after, size));
        let value = ClassValue {
            refills: is.refills - was.refills,
            reused: is.reused - was.reused,
            carved: is.carved - was.carved,
            flushes: is.flushes - was.flushes,
            flushed: is.flushed - was.flushed,
        };
        (size, value)
    };
    after.classes.keys().map(|size| change(*size)).filter(|(_, value)| *value != ClassValue::default()).collect()
}

/// Count, sum and buckets: what both sources keep since any moment.
type Counts = (u64, u64, [u64; BUCKETS]);

fn lock_changes(before: &Arena, after: &Arena) -> BTreeMap<(LockId, Reason), [Counts; 2]> {
    let difference = |was: &Histogram, is: &Histogram| -> Counts {
        let buckets = std::array::from_fn(|bucket| is.buckets[bucket] - was.buckets[bucket]);
        (is.count - was.count, is.sum_ns - was.sum_ns, buckets)
    };
    let mut changes = BTreeMap::new();
    for (key, lock) in &after.locks {
        let is = lock.total.clone().unwrap_or_default();
        let was = before.locks.get(key).and_then(|lock| lock.total.clone()).unwrap_or_default();
        let change = [difference(&was.hold, &is.hold), difference(&was.wait, &is.wait)];
        if change[0].0 + change[1].0 > 0 {
            changes.insert(*key, change);
        }
    }
    changes
}

fn traced(histogram: &HistogramValue) -> Counts {
    (histogram.count, histogram.sum_ns, histogram.buckets)
}

#[test]
fn the_kernel_counts_what_the_page_shows() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("the_kernel_counts_what_the_page_shows", why);
    }
    let mut worker = Worker::start();
    let pid = worker.child.id();
    worker.wait_for("waiting");
    worker.go_on();
    worker.wait_for("waiting");
    let mut source = EbpfSource::attach(&[pid]).expect("attached");
    let before = arena(pid);
    assert!(source.poll().expect("a sample").classes.is_empty(), "nothing has happened yet");
    worker.go_on();
    worker.wait_for("done");
    let after = arena(pid);
    let sample = source.poll().expect("a sample");
    assert_eq!(sample.lost, [0; Lost::COUNT as usize]);

    let classes: BTreeMap<u32, ClassValue> = sample
        .classes
        .iter()
        .map(|(ClassKey { tgid, arena, class }, value)| {
            assert_eq!((*tgid, *arena), (pid, 1));
            (*class, *value)
        })
        .collect();
    let expected = class_changes(&before, &after);
    assert!(expected.len() > 10, "the work reaches many classes: {expected:?}");
    assert_eq!(classes, expected);

    let locks: BTreeMap<(LockId, Reason), [Counts; 2]> = sample
        .locks
        .iter()
        .map(|(LockKey { lock, reason, .. }, LockValue { hold, wait })| {
            let reason = Reason::from_u64(u64::from(*reason)).expect("a known reason");
            ((LockId(*lock), reason), [traced(hold), traced(wait)])
        })
        .collect();
    let expected = lock_changes(&before, &after);
    assert_eq!(locks.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, expected) in &expected {
        assert_eq!(locks[key], *expected, "{} for {}", key.0, key.1.label());
    }

    let figures = |arena: &Arena| arena.figures.clone().expect("figures");
    let seen = |probe| sample.events.iter().filter(|seen| seen.event.probe == probe as u32).count() as u64;
    let (was, is) = (figures(&before), figures(&after));
    assert_eq!(seen(ProbeId::Grow), is.grows - was.grows);
    assert_eq!(seen(ProbeId::Shrink), is.shrinks - was.shrinks);
}
