//! Addresses of an arena for a SIP server spread over the sets of its hashes: servers take some bits of an address.

use hg_alloc::shared::{Arena, Options, create};
use std::collections::BTreeSet;

/// Sizes of a server's callbacks, headers, replies, transactions, branches and messages, bytes.
const SIZES: [usize; 8] = [40, 64, 344, 464, 1096, 2112, 4400, 6024];

/// Sets that an operator may configure.
const SETS: [usize; 4] = [2, 4, 8, 16];

/// How many of so many sets the blocks of a size use, if an address's set is what is left of it without its lowest bits.
fn used(arena: &Arena, size: usize, shift: u32, sets: usize) -> usize {
    let addresses: Vec<usize> = (0..512).map(|_| arena.malloc(size) as usize).collect();
    assert!(addresses.iter().all(|address| *address != 0 && address % 8 == 0));
    addresses.iter().for_each(|address| arena.free(*address as *mut u8));
    addresses.iter().map(|address| (address >> shift) % sets).collect::<BTreeSet<_>>().len()
}

#[test]
fn every_set_of_a_hash_of_addresses_is_used() {
    let options = Options::shared("spread", 0, 64 << 20);
    let arena = create(&Options { odd_strides: true, ..options }).expect("an arena");
    for size in SIZES {
        for sets in SETS {
            // By words, as OpenSIPS's timers do, or by pairs of them. A span of large blocks has few of them, and
            // the next one begins like it: then not all sets can be used, but most.
            for shift in [3, 4] {
                let used = used(arena, size, shift, sets);
                let least = if size < 1024 { sets } else { sets / 2 };
                assert!((least..=sets).contains(&used), "{size} bytes: {used} of {sets} sets, {shift} bits dropped");
            }
        }
    }
    // The option is what makes the difference: blocks of 64 bytes in a row have the same low bits.
    let plain = create(&options).expect("an arena");
    assert_eq!(used(plain, 64, 3, 8), 1);
}
