//! In how many of the last cycles something was so: a sliding window of bits and their sum.

use super::profile::MOST_CYCLES;

const WORDS: usize = (MOST_CYCLES as usize).div_ceil(64);

/// The last cycles of a rule.
#[derive(Clone)]
pub(super) struct Window {
    /// A bit for each cycle, in a ring.
    bits: [u64; WORDS],
    /// Cycles that the window spans.
    length: u16,
    /// The oldest, which the next one replaces.
    next: u16,
    hits: u16,
}

impl Window {
    /// A window over so many cycles, at most [`MOST_CYCLES`]; none of them was a hit yet.
    pub(super) const fn new(length: u16) -> Self {
        Window { bits: [0; WORDS], length, next: 0, hits: 0 }
    }

    /// Enters a cycle; the oldest one leaves.
    pub(super) fn push(&mut self, hit: bool) {
        let Some(word) = self.bits.get_mut(usize::from(self.next / 64)) else { return };
        let bit = 1 << (self.next % 64);
        let was_hit = *word & bit != 0;
        *word = if hit { *word | bit } else { *word & !bit };
        self.hits = self.hits + u16::from(hit) - u16::from(was_hit);
        self.next = if self.next + 1 < self.length { self.next + 1 } else { 0 };
    }

    /// How many of its cycles were hits.
    pub(super) fn hits(&self) -> u16 {
        self.hits
    }

    /// Forgets all cycles.
    pub(super) fn clear(&mut self) {
        *self = Window::new(self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_leave_with_their_cycle() {
        for length in [1, 2, 3, 63, 64, 65, MOST_CYCLES] {
            let mut window = Window::new(length);
            for round in 0..3u32 * u32::from(length) {
                window.push(round % 3 == 0);
                let seen = (round + 1).saturating_sub(length.into())..=round;
                let expected = seen.filter(|round| round % 3 == 0).count();
                assert_eq!(usize::from(window.hits()), expected, "round {round} of a window of {length}");
            }
            window.clear();
            assert_eq!(window.hits(), 0);
            window.push(true);
            assert_eq!(window.hits(), 1);
        }
    }
}
