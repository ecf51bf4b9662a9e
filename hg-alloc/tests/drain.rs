//! Front caches are emptied under the threads that use them: no cell is lost, none is handed out twice, and at the end
//! everything is back.

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
    let mut calls = 0;
    while !stop.load(Relaxed) {
        let slot = &mut live[draw(&mut state) % BLOCKS];
        if slot.0.is_null() {
            let size = 16 + draw(&mut state) % 3000;
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
    calls
}

#[test]
fn trims_under_load_lose_and_double_nothing() {
    let stop = AtomicBool::new(false);
    let mut trims = 0;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=THREADS as u64)
            .map(|owner| {
                let stop = &stop;
                scope.spawn(move || hammer(owner, stop))
            })
            .collect();
        let begin = Instant::now();
        while begin.elapsed() < LOAD {
            hg_alloc::trim();
            trims += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
        stop.store(true, Relaxed);
        let calls: u64 = workers.into_iter().map(|worker| worker.join().expect("no torn block")).sum();
        assert!(calls > 100_000 && trims > 3, "{calls} calls, {trims} trims");
    });
    hg_alloc::trim();
    let page = hg_alloc::stats_page().expect("something was allocated");
    assert_eq!(page.header.corruptions.iter().map(|count| count.load(Relaxed)).sum::<u64>(), 0);
    for class in &page.classes {
        let live = class.cells.load(Relaxed) - class.central_cells.load(Relaxed) - class.transfer_cells.load(Relaxed);
        assert_eq!(live, 0, "cells of {} bytes that nobody has", class.size.load(Relaxed));
    }
}
