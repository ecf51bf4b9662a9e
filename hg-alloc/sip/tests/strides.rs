//! Addresses of an arena for a SIP server spread over the sets of its hashes: servers take some bits of an address.

use hg_alloc::shared::{Options, create};
use std::collections::BTreeSet;

/// Sizes of a server's transactions, branches, dialogs and timers, bytes.
const SIZES: [usize; 8] = [40, 64, 344, 464, 1096, 2112, 4400, 6024];

/// Sets that an operator may configure.
const SETS: [usize; 4] = [2, 4, 8, 16];

/// How many sets the blocks of a size use, where the server drops the bits that its blocks have in common by rounding their
/// size up to a power of two.
fn used(addresses: &[usize], shift: u32, sets: usize) -> usize {
    addresses.iter().map(|address| (address >> shift) % sets).collect::<BTreeSet<_>>().len()
}

#[test]
fn every_set_of_a_hash_of_addresses_is_used() {
    let options = Options { odd_strides: true, ..Options::shared("spread", 0, 64 << 20) };
    let arena = create(&options).expect("an arena");
    for size in SIZES {
        let addresses: Vec<usize> = (0..512).map(|_| arena.malloc(size) as usize).collect();
        assert!(addresses.iter().all(|address| *address != 0 && address % 8 == 0));
        for sets in SETS {
            for shift in 3..=size.ilog2() {
                let used = used(&addresses, shift, sets);
                assert_eq!(used, sets, "blocks of {size} bytes, {sets} sets, shift {shift}");
            }
        }
        addresses.iter().for_each(|address| arena.free(*address as *mut u8));
    }
}
