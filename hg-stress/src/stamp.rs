//! The pattern a block is filled with, and the check that it is still there.
//!
//! A stamp is a sequence of 64-bit words that starts from a key (block address, owner, generation) and changes from word
//! to word, so a block handed out twice, a copy that is shifted, and a write by a stale owner all differ from it. It is
//! written over the whole block. Verifying reads all of a block up to [`EXACT_BYTES`]; of a larger one both ends and one
//! word in each [`SAMPLE_STRIDE`] bytes, which still meets every cache line pair that a stray memset of 512 B would hit.

/// Blocks up to this size are verified byte for byte.
pub const EXACT_BYTES: usize = 4096;

/// Distance of the words that are verified in the middle of a larger block, bytes.
pub const SAMPLE_STRIDE: usize = 512;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A place where a block does not hold what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset of the word in the block, bytes.
    pub offset: usize,
    /// What should stand there.
    pub expected: u64,
    /// What stands there.
    pub found: u64,
}

/// The key of the stamp of a block.
pub fn key(address: usize, owner: u32, generation: u32) -> u64 {
    let identity = (u64::from(owner) << 32) | u64::from(generation);
    ((address as u64).rotate_left(17) ^ identity).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1
}

fn word(key: u64, index: usize) -> u64 {
    key.wrapping_add((index as u64).wrapping_mul(STEP))
}

/// Fills a block with the stamp of `key`.
pub fn write(block: &mut [u8], key: u64) {
    let mut words = block.chunks_exact_mut(8);
    let mut value = key;
    for chunk in &mut words {
        chunk.copy_from_slice(&value.to_le_bytes());
        value = value.wrapping_add(STEP);
    }
    let tail = words.into_remainder();
    let bytes = value.to_le_bytes();
    let length = tail.len();
    tail.copy_from_slice(&bytes[..length]);
}

/// Checks that a block holds the stamp of `key`.
pub fn verify(block: &[u8], key: u64) -> Result<(), Mismatch> {
    check(block, |index| word(key, index))
}

/// Checks that a block holds zeros alone.
pub fn verify_zero(block: &[u8]) -> Result<(), Mismatch> {
    check(block, |_| 0)
}

fn check(block: &[u8], expected: impl Fn(usize) -> u64) -> Result<(), Mismatch> {
    let words = block.len() / 8;
    let at = |index: usize| compare(&block[index * 8..index * 8 + 8], index * 8, expected(index));
    if block.len() <= EXACT_BYTES {
        (0..words).try_for_each(at)?;
    } else {
        let end = SAMPLE_STRIDE / 8;
        (0..end).chain((end..words - end).step_by(end)).chain(words - end..words).try_for_each(at)?;
    }
    compare(&block[words * 8..], words * 8, expected(words))
}

/// Compares up to 8 bytes with the low bytes of a word.
#[inline]
fn compare(bytes: &[u8], offset: usize, expected: u64) -> Result<(), Mismatch> {
    let mut found = [0; 8];
    found[..bytes.len()].copy_from_slice(bytes);
    let kept = if bytes.len() == 8 { expected } else { expected & ((1 << (bytes.len() * 8)) - 1) };
    let found = u64::from_le_bytes(found);
    if found == kept { Ok(()) } else { Err(Mismatch { offset, expected: kept, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_an_exact_block_is_seen() {
        for size in [0, 1, 7, 8, 9, 16, 63, 200, EXACT_BYTES] {
            let mut block = vec![0; size];
            write(&mut block, 0x1234_5678_9abc_def1);
            assert_eq!(verify(&block, 0x1234_5678_9abc_def1), Ok(()));
            for byte in 0..size {
                for bit in [0, 3, 7] {
                    block[byte] ^= 1 << bit;
                    let torn = verify(&block, 0x1234_5678_9abc_def1).expect_err("a flipped bit");
                    assert_eq!(torn.offset, byte / 8 * 8);
                    block[byte] ^= 1 << bit;
                }
            }
        }
    }

    #[test]
    fn a_large_block_is_checked_at_both_ends_and_once_in_each_stride() {
        let size = 100_003;
        let mut block = vec![0; size];
        write(&mut block, 99);
        assert_eq!(verify(&block, 99), Ok(()));
        for offset in [0, 511, size - 1, size - 500] {
            block[offset] ^= 0x80;
            assert!(verify(&block, 99).is_err(), "byte {offset}");
            block[offset] ^= 0x80;
        }
        let middle = 50_000;
        block[middle..middle + SAMPLE_STRIDE + 8].fill(0);
        assert!(verify(&block, 99).is_err());
    }

    #[test]
    fn stamps_of_other_addresses_owners_and_generations_differ() {
        let own = key(0x7000_0000, 3, 9);
        for other in [key(0x7000_0010, 3, 9), key(0x7000_0000, 4, 9), key(0x7000_0000, 3, 10)] {
            let mut block = [0; 64];
            write(&mut block, other);
            assert!(verify(&block, own).is_err());
        }
    }

    #[test]
    fn a_shifted_copy_is_torn() {
        let mut block = [0; 128];
        write(&mut block, 77);
        block.copy_within(16..128, 0);
        assert_eq!(verify(&block, 77).expect_err("shifted").offset, 0);
    }

    #[test]
    fn zeros_are_zeros() {
        assert_eq!(verify_zero(&[0; 77]), Ok(()));
        let mut block = [0; 77];
        block[76] = 1;
        assert!(verify_zero(&block).is_err());
    }
}
