//! A small, fast, seeded random number generator: a run with the same seed asks for the same sizes in each thread.

/// xorshift64* (Marsaglia, Vigna): good enough to choose sizes and slots, one multiplication a draw.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose sequence depends on the seed and the stream alone.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mixed = (seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Rng((mixed ^ (mixed >> 31)) | 1)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high bits are the good ones; the bias of this reduction is below 2^-32 for the bounds used here.
        ((u128::from(self.draw()) * bound as u128) >> 64) as usize
    }

    /// True once in `n` draws on average.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number from `low` to `high`, both included, each doubling of size as likely as the next.
    pub fn log_uniform(&mut self, low: usize, high: usize) -> usize {
        let (first, last) = (low.max(1).ilog2(), high.max(1).ilog2());
        let doubling = first + self.below((last - first + 1) as usize) as u32;
        let base = 1usize << doubling;
        (base + self.below(base)).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_and_stream_give_the_same_sequence_and_others_do_not() {
        let draw = |seed, stream| (0..8).scan(Rng::new(seed, stream), |r, _| Some(r.draw())).collect::<Vec<_>>();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn log_uniform_stays_in_its_bounds_and_reaches_every_doubling() {
        let mut rng = Rng::new(7, 7);
        let mut seen = 0u64;
        for _ in 0..20_000 {
            let n = rng.log_uniform(16, 65_536);
            assert!((16..=65_536).contains(&n));
            seen |= 1 << n.ilog2();
        }
        assert_eq!(seen, 0b1_1111_1111_1111_0000, "doublings from 2^4 to 2^16");
    }
}
