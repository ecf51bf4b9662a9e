//! Loads of several threads that free each other's blocks, come and go: what caches and owners keep shows in them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};

use super::blocks::{Dice, give, give_all, slots, take, touch_end};

/// 400 threads, one after the other: 2000 blocks of 200 to 900 bytes, touched and freed.
pub(super) fn thread_exit(quick: bool) -> Box<dyn FnOnce()> {
    let threads = if quick { 100 } else { 400 };
    let table = slots(2000);
    Box::new(move || {
        for number in 0..threads {
            let work = move || {
                let mut dice = Dice::new(number);
                table.iter().for_each(|slot| slot.store(take(dice.between(200, 900), usize::MAX), Relaxed));
                give_all(table);
            };
            std::thread::scope(|scope| _ = scope.spawn(work));
        }
    })
}

/// Eight generations: a thread takes 65 536 blocks of 64 bytes (64 spans of 64 KiB), another frees them, the owner ends.
pub(super) fn turnover(_quick: bool) -> Box<dyn FnOnce()> {
    let table = slots(65_536);
    Box::new(move || {
        for _ in 0..8 {
            let allocated = std::sync::Barrier::new(2);
            let freed = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    table.iter().for_each(|slot| slot.store(take(64, 1), Relaxed));
                    allocated.wait();
                    freed.wait();
                });
                allocated.wait();
                give_all(table);
                freed.wait();
            });
        }
    })
}

/// Four pairs of threads with a ring of 4096 slots each: one takes blocks of 8 to 1024 bytes, the other frees them.
pub(super) fn pipeline(quick: bool) -> Box<dyn FnOnce()> {
    const PAIRS: usize = 4;
    let blocks = if quick { 100_000 } else { 1_000_000 };
    let table = slots(PAIRS * 4096);
    Box::new(move || {
        std::thread::scope(|scope| {
            for (pair, ring) in table.chunks(4096).enumerate() {
                scope.spawn(move || {
                    let mut dice = Dice::new(pair as u64);
                    for number in 0..blocks {
                        let slot = &ring[number % ring.len()];
                        while slot.load(Acquire) != 0 {
                            std::thread::yield_now();
                        }
                        slot.store(take(dice.between(8, 1024), usize::MAX), Release);
                    }
                });
                scope.spawn(move || {
                    for number in 0..blocks {
                        let slot = &ring[number % ring.len()];
                        while slot.load(Acquire) == 0 {
                            std::thread::yield_now();
                        }
                        give(slot.swap(0, AcqRel));
                    }
                });
            }
        });
    })
}

/// Blocks on their way to a thread; full, a sender frees its block itself.
struct Inbox {
    count: Mutex<usize>,
    slots: &'static [AtomicUsize],
}

impl Inbox {
    fn send(&self, block: usize) {
        let mut count = self.count.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *count < self.slots.len() {
            self.slots[*count].store(block, Relaxed);
            *count += 1;
        } else {
            drop(count);
            give(block);
        }
    }

    fn drain(&self) {
        let mut count = self.count.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        give_all(&self.slots[..*count]);
        *count = 0;
    }
}

/// Eight threads, 16 bytes to 32 KiB, both ends touched: half of the blocks go to another thread's inbox of 1024 places,
/// the others stay in a window of 1024 of their own.
pub(super) fn remote(quick: bool) -> Box<dyn FnOnce()> {
    const THREADS: usize = 8;
    const WINDOW: usize = 1024;
    let steps = if quick { 5000 } else { 20_000 };
    let windows = slots(THREADS * WINDOW);
    let inboxes: &[Inbox] = Vec::leak(slots(THREADS * WINDOW).chunks(WINDOW).map(inbox).collect());
    Box::new(move || {
        std::thread::scope(|scope| {
            for (thread, window) in windows.chunks(WINDOW).enumerate() {
                scope.spawn(move || {
                    let mut dice = Dice::new(thread as u64);
                    for step in 0..steps {
                        let size = dice.between(16, 32 << 10);
                        let block = take(size, 1);
                        touch_end(block, size);
                        if dice.below(2) == 0 {
                            let other = (thread + 1 + dice.below(THREADS - 1)) % THREADS;
                            inboxes[other].send(block);
                        } else {
                            give(window[step % WINDOW].swap(block, Relaxed));
                        }
                        if step % 32 == 31 {
                            inboxes[thread].drain();
                        }
                    }
                    give_all(window);
                });
            }
        });
        inboxes.iter().for_each(Inbox::drain);
    })
}

fn inbox(slots: &'static [AtomicUsize]) -> Inbox {
    Inbox { count: Mutex::new(0), slots }
}
