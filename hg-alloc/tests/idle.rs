//! What a load leaves behind: little at once, nothing once the decay time is over, with a thread or with a host that ticks; in
//! forked children too.

mod common;

use common::{MIB, in_child, is_child, page};
use hg_alloc::{raw, shared};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const BLOCKS: usize = 40_000;

/// Allocates some 80 MiB in blocks of all classes, touches and frees them in another order.
fn spike() -> u64 {
    let mut state = 1u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut blocks: Vec<*mut u8> = Vec::with_capacity(BLOCKS);
    for _ in 0..BLOCKS {
        let size = if draw(64) == 0 { draw(100_000) } else { draw(2000) } + 8;
        let block = raw::malloc(size);
        assert!(!block.is_null());
        // SAFETY: just allocated with that size.
        unsafe { block.write_bytes(1, size) };
        blocks.push(block);
    }
    let peak = page().header.committed_bytes.load(Relaxed);
    for left in (1..BLOCKS).rev() {
        blocks.swap(left, draw(left + 1));
    }
    blocks.into_iter().for_each(raw::free);
    peak
}

fn committed() -> u64 {
    page().header.committed_bytes.load(Relaxed)
}

/// Whether memory comes back, while `pass` lets time pass, within twice the decay time.
fn comes_back(mut pass: impl FnMut()) {
    let decay = Duration::from_millis(page().header.decay_ms.load(Relaxed));
    let begin = Instant::now();
    while committed() > 0 || page().header.limbo_bytes.load(Relaxed) > 0 {
        assert!(begin.elapsed() < 2 * decay, "{} bytes are committed after {:?}", committed(), begin.elapsed());
        pass();
    }
    for class in &page().classes {
        assert_eq!(class.cells.load(Relaxed), 0, "spans of {} bytes stay", class.size.load(Relaxed));
    }
    let tables = page().header.metadata_bytes.load(Relaxed);
    assert!(tables < MIB as u64, "{tables} bytes of tables");
}

#[test]
fn a_spike_leaves_at_most_16_mib_at_once() {
    if in_child("a_spike_leaves_at_most_16_mib_at_once", &[]).is_some() {
        return;
    }
    for round in 0..3 {
        let peak = spike();
        assert!(peak > 60 * MIB as u64, "{peak} bytes at the peak");
        assert!(committed() <= 16 * MIB as u64, "{} of {peak} bytes stay in round {round}", committed());
    }
}

#[test]
fn a_host_that_ticks_gets_all_of_it_back() {
    if in_child("a_host_that_ticks_gets_all_of_it_back", &[("HG_DECAY_MS", "500")]).is_some() {
        return;
    }
    spike();
    comes_back(|| {
        std::thread::sleep(Duration::from_millis(10));
        hg_alloc::tick();
    });
    assert!(page().policy.ticks.load(Relaxed) > 4);
    assert_eq!(page().header.maintenance_tid.load(Relaxed), 0);
}

#[test]
fn a_thread_gives_it_back_here_and_in_children() {
    let name = "a_thread_gives_it_back_here_and_in_children";
    if !is_child(name) {
        in_child(name, &[("HG_DECAY_MS", "500"), ("HG_THREAD", "1")]);
        return;
    }
    spike();
    comes_back(|| std::thread::sleep(Duration::from_millis(10)));
    let thread = page().header.maintenance_tid.load(Relaxed);
    assert_ne!(thread, 0);
    spike();
    // SAFETY: the child only allocates, frees and waits, and then leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let in_child = std::panic::catch_unwind(|| {
            spike();
            comes_back(|| std::thread::sleep(Duration::from_millis(10)));
            assert_ne!(page().header.maintenance_tid.load(Relaxed), thread, "a thread of its own");
        });
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(in_child.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's own words are above");
}

/// The thread ticks arenas made by handle too, whenever they are made.
#[test]
fn the_thread_ticks_arenas_made_by_handle() {
    let name = "the_thread_ticks_arenas_made_by_handle";
    if in_child(name, &[("HG_DECAY_MS", "500"), ("HG_THREAD", "1")]).is_some() {
        return;
    }
    raw::free(raw::malloc(64));
    let arena = shared::create(&shared::Options::shared("idle", 0, 64 << 20)).expect("an arena");
    let blocks: Vec<_> = (0..512).map(|_| arena.malloc(64 << 10)).collect();
    assert!(blocks.iter().all(|block| !block.is_null()));
    let full = arena.committed_bytes();
    assert!(full >= 32 << 20, "{full}");
    blocks.into_iter().for_each(|block| arena.free(block));
    let begin = Instant::now();
    while arena.committed_bytes() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} of {full} bytes stay", arena.committed_bytes());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(arena.stats_page().header.maintenance_tid.load(Relaxed), page().header.maintenance_tid.load(Relaxed));
}

/// An array that is used all the time is not idle, and nothing it holds is lost when others are drained around it.
#[test]
fn what_is_in_use_stays() {
    if in_child("what_is_in_use_stays", &[("HG_DECAY_MS", "50")]).is_some() {
        return;
    }
    spike();
    let begin = Instant::now();
    let refills = |class: usize| page().classes[class].refills.load(Relaxed);
    let mut used = 0;
    while begin.elapsed() < Duration::from_millis(500) {
        let block = raw::malloc(64);
        raw::free(block);
        if begin.elapsed() < Duration::from_millis(100) {
            used = refills(3);
        }
        hg_alloc::tick();
    }
    assert_eq!(page().classes[3].size.load(Relaxed), 64);
    assert!(refills(3) <= used + 1, "{} refills of a cache in use", refills(3) - used);
    assert!(committed() <= MIB as u64, "{} bytes are committed beside one block", committed());
}
