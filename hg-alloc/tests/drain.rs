//! Front caches are emptied under the threads that use them: no cell is lost, none is handed out twice, and at the end
//! everything is back.

mod common;

use common::in_child;
use hg_alloc::raw;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const THREADS: usize = 6;
const BLOCKS: usize = 200;
const LOAD: Duration = Duration::from_secs(3);

/// A pseudo-random number (xorshift).
fn draw(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 8) as usize
}

fn hammer(owner: u64, stop: &AtomicBool) -> u64 {
    let mut state = owner * 7919 + 1;
    let mut live = [(core::ptr::null_mut::<u64>(), 0u64); BLOCKS];
    let mut calls = 0usize;
    // Sizes of one class for a thousand calls, then those of another: the first one's caches are idle for a while.
    while !stop.load(Relaxed) {
        let slot = &mut live[draw(&mut state) % BLOCKS];
        if slot.0.is_null() {
            let size = 16 + (calls / 1000 * 97 + draw(&mut state) % 300) % 3000;
            let block: *mut u64 = raw::malloc(size).cast();
            let stamp = block as u64 ^ size as u64 ^ owner << 48;
            // SAFETY: just allocated with at least 16 bytes.
            unsafe { block.write(stamp) };
            *slot = (block, stamp);
        } else {
            // SAFETY: the block is this thread's.
            assert_eq!(unsafe { slot.0.read() }, slot.1, "somebody else wrote into a live block");
            raw::free(slot.0.cast());
            slot.0 = core::ptr::null_mut();
        }
        calls += 1;
    }
    live.iter().for_each(|slot| raw::free(slot.0.cast()));
    calls as u64
}

/// Runs threads that allocate and free, each for a while and then not, while `empty` empties caches under them.
fn empty_under_load(empty: impl Fn()) {
    let stop = AtomicBool::new(false);
    let mut drains = 0;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=THREADS as u64)
            .map(|owner| {
                let stop = &stop;
                scope.spawn(move || hammer(owner, stop))
            })
            .collect();
        let begin = Instant::now();
        while begin.elapsed() < LOAD {
            empty();
            drains += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
        stop.store(true, Relaxed);
        let calls: u64 = workers.into_iter().map(|worker| worker.join().expect("no torn block")).sum();
        assert!(calls > 100_000 && drains > 3, "{calls} calls, {drains} drains");
    });
    hg_alloc::trim();
    let page = hg_alloc::stats_page().expect("something was allocated");
    assert_eq!(page.header.corruptions.iter().map(|count| count.load(Relaxed)).sum::<u64>(), 0);
    for class in &page.classes {
        let live = class.cells.load(Relaxed) - class.central_cells.load(Relaxed) - class.transfer_cells.load(Relaxed);
        assert_eq!(live, 0, "cells of {} bytes that nobody has", class.size.load(Relaxed));
    }
}

#[test]
fn trims_under_load_lose_and_double_nothing() {
    if in_child("trims_under_load_lose_and_double_nothing", &[]).is_none() {
        empty_under_load(|| {
            hg_alloc::trim();
        });
    }
}

/// Epochs of two milliseconds: now this class's array is idle, now that one, and the rest are in use.
#[test]
fn drains_of_idle_caches_under_load_lose_and_double_nothing() {
    if in_child("drains_of_idle_caches_under_load_lose_and_double_nothing", &[("HG_DECAY_MS", "10")]).is_none() {
        empty_under_load(hg_alloc::tick);
        let drained =
            hg_alloc::stats_page().map(|page| page.classes.iter().map(|class| class.drained.load(Relaxed)).sum());
        assert!(drained.is_some_and(|cells: u64| cells > 1000), "{drained:?} cells were drained");
    }
}
