//! The sizes of a spike: of the bytes a quarter in small, half in medium, a quarter in large blocks.
//!
//! | share | sizes |
//! |---|---|
//! | 1/4 | small: 16 bytes to 1 KiB |
//! | 1/2 | medium: 1 to 256 KiB |
//! | 1/4 | large: 256 KiB to 8 MiB |
//!
//! Within a kind each doubling is as likely as the next. The kind that lags most behind its share comes next, so that the
//! shares hold at any size of the spike and the kinds are interleaved in time.

use crate::rng::Rng;

/// Share in quarters, least and greatest size of each kind.
const KINDS: [(usize, usize, usize); 3] = [(1, 16, 1 << 10), (2, 1 << 10, 256 << 10), (1, 256 << 10, LARGEST)];

/// The largest block, bytes.
pub const LARGEST: usize = 8 << 20;

/// A sequence of sizes.
#[derive(Clone, Debug, Default)]
pub struct Mix {
    /// Bytes of each kind so far.
    taken: [usize; KINDS.len()],
}

impl Mix {
    /// The next size, but at most `room`; bytes.
    pub fn draw(&mut self, rng: &mut Rng, room: usize) -> usize {
        let behind = |&kind: &usize| self.taken[kind] / KINDS[kind].0;
        let kind = (0..KINDS.len()).min_by_key(behind).unwrap_or(0);
        let (_, low, high) = KINDS[kind];
        let size = rng.log_uniform(low, high).min(room.max(16));
        self.taken[kind] += size;
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_hold_and_sizes_stay_in_their_bounds() {
        let (mut mix, mut rng) = (Mix::default(), Rng::new(1, 1));
        let mut kinds = [0; 3];
        let total = 256 << 20;
        let mut sum = 0;
        while sum < total {
            let size = mix.draw(&mut rng, usize::MAX);
            assert!((16..=LARGEST).contains(&size), "{size}");
            kinds[usize::from(size > 1 << 10) + usize::from(size > 256 << 10)] += size;
            sum += size;
        }
        let quarters = kinds.map(|bytes| (bytes * 4) as f64 / total as f64);
        assert!((0.8..1.2).contains(&quarters[0]) && (1.8..2.2).contains(&quarters[1]), "{quarters:?}");
        assert!((0.8..1.2).contains(&quarters[2]), "{quarters:?}");
    }

    #[test]
    fn a_size_fits_the_room_left() {
        let (mut mix, mut rng) = (Mix::default(), Rng::new(1, 1));
        assert!((0..1000).all(|_| mix.draw(&mut rng, 100) <= 100));
    }
}
