//! Loads that replace blocks at random for a long time: what fragmentation costs shows in their peak.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::blocks::{Dice, give, give_all, resize, slots, take};

/// 10 000 slots; each step frees a random one's block and allocates another: 40% of 16 to 127 bytes, 30% to 2 KiB, 20% to
/// 64 KiB, 10% to 1 MiB. Only the first 256 bytes of a block are touched.
pub(super) fn fragmentation(quick: bool) -> Box<dyn FnOnce()> {
    let steps = if quick { 200_000 } else { 1_000_000 };
    let table = slots(10_000);
    Box::new(move || {
        let mut dice = Dice::new(1);
        for _ in 0..steps {
            let slot = &table[dice.below(table.len())];
            let size = match dice.below(10) {
                0..4 => dice.between(16, 127),
                4..7 => dice.between(256, 2047),
                7..9 => dice.between(4 << 10, 64 << 10),
                _ => dice.between(128 << 10, 1 << 20),
            };
            give(slot.load(Relaxed));
            slot.store(take(size, 256), Relaxed);
        }
        give_all(table);
    })
}

/// 40% allocations of 256 bytes to 64 KiB, 40% frees, 20% growths to up to three times the size; all bytes written.
pub(super) fn fragmentation_churn(quick: bool) -> Box<dyn FnOnce()> {
    let steps = if quick { 20_000 } else { 50_000 };
    let (table, sizes) = (slots(10_000), slots(10_000));
    Box::new(move || {
        let mut dice = Dice::new(2);
        for _ in 0..steps {
            let index = dice.below(table.len());
            let (slot, size) = (&table[index], &sizes[index]);
            let block = slot.load(Relaxed);
            match (block, dice.below(10)) {
                (0, 0..4) => {
                    size.store(dice.between(256, 65_791), Relaxed);
                    slot.store(take(size.load(Relaxed), usize::MAX), Relaxed);
                }
                (1.., 4..8) => give(slot.swap(0, Relaxed)),
                (1.., 8..) if size.load(Relaxed) < 1 << 20 => {
                    size.store(size.load(Relaxed) * dice.between(100, 300) / 100, Relaxed);
                    slot.store(resize(block, size.load(Relaxed)), Relaxed);
                }
                _ => {}
            }
        }
        give_all(table);
    })
}

/// A store of keys and values: 60% set, 30% get, 10% delete, over 100 000 keys; values of 16 bytes to 64 KiB, all written.
pub(super) fn kv_store(quick: bool) -> Box<dyn FnOnce()> {
    let (operations, keys) = if quick { (200_000, 20_000) } else { (1_000_000, 100_000) };
    let (names, values) = (slots(keys), slots(keys));
    Box::new(move || {
        let mut dice = Dice::new(12_345);
        for _ in 0..operations {
            let key = dice.below(keys);
            match dice.below(10) {
                0..6 => {
                    forget(&names[key], &values[key]);
                    let value = match dice.below(10) {
                        0..3 => dice.between(16, 63),
                        3..7 => dice.between(128, 511),
                        7..9 => dice.between(1 << 10, 4 << 10),
                        _ => dice.between(8 << 10, 64 << 10),
                    };
                    names[key].store(take(dice.between(8, 63) + 1, usize::MAX), Relaxed);
                    values[key].store(take(value, usize::MAX), Relaxed);
                }
                6..9 => read(values[key].load(Relaxed)),
                _ => forget(&names[key], &values[key]),
            }
        }
        give_all(names);
        give_all(values);
    })
}

fn forget(name: &AtomicUsize, value: &AtomicUsize) {
    give(name.swap(0, Relaxed));
    give(value.swap(0, Relaxed));
}

fn read(address: usize) {
    if address != 0 {
        // SAFETY: a live block of this thread, of at least one byte, written when it was taken.
        std::hint::black_box(unsafe { (address as *const u8).read_volatile() });
    }
}

/// Eight threads with 4096 slots each, 16 to 2048 bytes; a full slot is emptied, an empty one filled. Slot and size come
/// from the same random word, so that they hang together as they do in programs.
pub(super) fn working_set(quick: bool) -> Box<dyn FnOnce()> {
    const THREADS: usize = 8;
    let steps = if quick { 50_000 } else { 250_000 };
    let table = slots(THREADS * 4096);
    Box::new(move || {
        std::thread::scope(|scope| {
            for (thread, own) in table.chunks(4096).enumerate() {
                scope.spawn(move || {
                    let mut word = thread as u64 + 1;
                    for step in 0..steps {
                        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let random = (word >> 33) as usize;
                        let (slot, size) = (&own[random % own.len()], 16 + random % 2033);
                        match slot.load(Relaxed) {
                            0 => slot.store(take(size, usize::MAX), Relaxed),
                            block if step % 64 == 0 => slot.store(resize(block, size + 16), Relaxed),
                            block => {
                                give(block);
                                slot.store(0, Relaxed);
                            }
                        }
                    }
                    give_all(own);
                });
            }
        });
    })
}
