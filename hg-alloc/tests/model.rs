//! The allocator against a model: random calls of the raw interface, each block's content checked, and the stats page's
//! sums compared with what is really live.
//!
//! The test's own allocations go to the system's malloc, so the arena holds nothing but the model's blocks.

use hg_alloc::raw;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// A call on one of a few named blocks.
#[derive(Clone, Debug)]
enum Call {
    Malloc { block: u8, size: usize },
    Calloc { block: u8, size: usize },
    Aligned { block: u8, log2: u32, size: usize },
    Realloc { block: u8, size: usize },
    Free { block: u8 },
    Trim,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0usize..=256,
        4 => 257usize..=8192,
        2 => 8193usize..=300_000,
        1 => 300_001usize..=5_000_000,
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let block = 0u8..48;
    prop_oneof![
        8 => (block.clone(), size()).prop_map(|(block, size)| Call::Malloc { block, size }),
        2 => (block.clone(), size()).prop_map(|(block, size)| Call::Calloc { block, size }),
        2 => (block.clone(), 0u32..22, size()).prop_map(|(block, log2, size)| Call::Aligned { block, log2, size }),
        4 => (block.clone(), size()).prop_map(|(block, size)| Call::Realloc { block, size }),
        8 => block.prop_map(|block| Call::Free { block }),
        1 => Just(Call::Trim),
    ]
}

/// A live block: address and requested size. Its bytes are a pattern of its address.
struct Block {
    address: *mut u8,
    size: usize,
}

impl Block {
    fn fill(address: *mut u8, size: usize) -> Block {
        assert!(!address.is_null());
        assert!(raw::usable_size(address) >= size);
        let mut block = Block { address, size };
        let pattern = block.pattern();
        block.bytes_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
        block
    }

    fn pattern(&self) -> impl Fn(usize) -> u8 + use<> {
        let seed = (self.address as usize >> 4).wrapping_mul(31);
        move |at| seed.wrapping_add(at) as u8
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block is live and the model's alone.
        unsafe { core::slice::from_raw_parts_mut(self.address, self.size) }
    }

    fn check(&mut self) {
        let (pattern, address, size) = (self.pattern(), self.address, self.size);
        let torn = self.bytes_mut().iter().enumerate().find(|(at, byte)| **byte != pattern(*at));
        assert!(torn.is_none(), "block {address:p} of {size} changed at {torn:?}");
    }

    fn free(mut self) {
        self.check();
        raw::free(self.address);
    }
}

fn put(live: &mut HashMap<u8, Block>, name: u8, new: Block) {
    if let Some(old) = live.insert(name, new) {
        old.free();
    }
}

fn run(calls: &[Call]) {
    let mut live: HashMap<u8, Block> = HashMap::new();
    for call in calls {
        match *call {
            Call::Malloc { block, size } => {
                let address = raw::malloc(size);
                assert!((address as usize).is_multiple_of(raw::MIN_ALIGN));
                put(&mut live, block, Block::fill(address, size));
            }
            Call::Calloc { block, size } => {
                let address = raw::calloc(size);
                // SAFETY: just allocated with that size.
                let bytes = unsafe { core::slice::from_raw_parts(address, size) };
                assert!(bytes.iter().all(|byte| *byte == 0), "calloc({size}) is dirty");
                put(&mut live, block, Block::fill(address, size));
            }
            Call::Aligned { block, log2, size } => {
                let address = raw::aligned(1 << log2, size);
                assert!((address as usize).is_multiple_of(1 << log2));
                put(&mut live, block, Block::fill(address, size));
            }
            Call::Realloc { block, size } => {
                let Some(mut old) = live.remove(&block) else { continue };
                old.check();
                let address = raw::realloc(old.address, size);
                assert!(!address.is_null());
                let (kept, pattern) = (old.size.min(size), old.pattern());
                // SAFETY: just allocated with at least that size.
                let bytes = unsafe { core::slice::from_raw_parts(address, kept) };
                assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(at)), "realloc lost bytes");
                live.insert(block, Block::fill(address, size));
            }
            Call::Free { block } => {
                if let Some(old) = live.remove(&block) {
                    old.free();
                }
            }
            Call::Trim => {
                hg_alloc::trim();
            }
        }
    }
    no_two_overlap(&live);
    sums_agree(live.len());
    live.into_values().for_each(Block::free);
}

fn no_two_overlap(live: &HashMap<u8, Block>) {
    let mut places: Vec<(usize, usize)> =
        live.values().map(|block| (block.address as usize, raw::usable_size(block.address))).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
}

/// After a trim no cell is cached, so the page's sums tell exactly how many cells and large objects are live.
fn sums_agree(live: usize) {
    hg_alloc::trim();
    let page = hg_alloc::stats_page().expect("something was allocated");
    let (mut cells, mut spans) = (0, 0);
    for class in &page.classes {
        let handed_out = class.reused.load(Relaxed) + class.carved.load(Relaxed);
        let taken_back = class.flushed.load(Relaxed) + class.drained.load(Relaxed);
        let free = class.central_cells.load(Relaxed) + class.transfer_cells.load(Relaxed);
        let in_use = class.cells.load(Relaxed) - free;
        assert_eq!(handed_out - taken_back, in_use, "class {}", class.size.load(Relaxed));
        cells += in_use;
        spans += class.span_bytes.load(Relaxed);
    }
    let header = &page.header;
    assert_eq!(cells + header.large_count.load(Relaxed), live as u64);
    assert_eq!(header.span_bytes.load(Relaxed), spans);
    let parts = spans
        + header.large_bytes.load(Relaxed)
        + header.free_dirty_bytes.load(Relaxed)
        + header.free_clean_bytes.load(Relaxed);
    assert_eq!(header.committed_bytes.load(Relaxed), parts, "committed is spans, large objects and free runs");
    assert_eq!(header.limbo_bytes.load(Relaxed), 0);
    assert_eq!(header.corruptions.iter().map(|count| count.load(Relaxed)).sum::<u64>(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_block_keeps_its_bytes_and_every_cell_is_counted(calls in prop::collection::vec(call(), 1..400)) {
        run(&calls);
    }
}
