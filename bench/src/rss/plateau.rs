//! Loads that rise to a plateau and fall again: what an allocator keeps afterwards shows in their final memory.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::blocks::{Dice, give, give_all, slots, take, take_aligned};

/// Five times: 1024 blocks of 64 KiB aligned to 8 KiB, all touched, all freed, a rest of 100 ms.
pub(super) fn plateau(_quick: bool) -> Box<dyn FnOnce()> {
    let table = slots(1024);
    Box::new(move || {
        for _ in 0..5 {
            table.iter().for_each(|slot| slot.store(take_aligned(8192, 65_536, usize::MAX), Relaxed));
            give_all(table);
            std::thread::sleep(Duration::from_millis(100));
        }
    })
}

/// 2 GiB in blocks of 8 MiB, all touched, all freed.
pub(super) fn reclaim(quick: bool) -> Box<dyn FnOnce()> {
    let table = slots(if quick { 32 } else { 256 });
    Box::new(move || {
        table.iter().for_each(|slot| slot.store(take(8 << 20, usize::MAX), Relaxed));
        give_all(table);
    })
}

/// Five times: the main thread takes 400 000 blocks of 16 to 1024 bytes, four threads free them, each every fourth.
pub(super) fn phases(quick: bool) -> Box<dyn FnOnce()> {
    let table = slots(if quick { 100_000 } else { 400_000 });
    Box::new(move || {
        for round in 0..5 {
            let mut dice = Dice::new(round);
            table.iter().for_each(|slot| slot.store(take(dice.between(16, 1024), usize::MAX), Relaxed));
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        table.iter().skip(thread).step_by(4).for_each(|slot| give(slot.swap(0, Relaxed)));
                    });
                }
            });
        }
    })
}

/// 64 MiB of small blocks, all but every 64th freed in random order, then those too: what a few survivors pin.
pub(super) fn survivors(quick: bool) -> Box<dyn FnOnce()> {
    let table = slots(if quick { 32_768 } else { 131_072 });
    Box::new(move || {
        let mut dice = Dice::new(3);
        for _ in 0..3 {
            table.iter().for_each(|slot| slot.store(take(dice.between(256, 768), usize::MAX), Relaxed));
            for last in (1..table.len()).rev() {
                let other = table[dice.below(last + 1)].swap(table[last].load(Relaxed), Relaxed);
                table[last].store(other, Relaxed);
            }
            table.iter().skip(table.len() / 64).for_each(|slot| give(slot.swap(0, Relaxed)));
            std::thread::sleep(Duration::from_millis(100));
            give_all(&table[..table.len() / 64]);
        }
    })
}
