//! What a run does, in the words of the command line.

use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::rng::Rng;

/// Which sizes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// 16 to 512 bytes.
    Small,
    /// 16 bytes to 32 KiB, and one in 64 up to 1 MiB.
    Mixed,
    /// 64 KiB to 4 MiB.
    Large,
    /// One size, bytes.
    Fixed(usize),
}

impl Sizes {
    /// A size to ask for, bytes.
    pub fn draw(self, rng: &mut Rng) -> usize {
        match self {
            Sizes::Small => rng.log_uniform(16, 512),
            Sizes::Mixed if rng.one_in(64) => rng.log_uniform(32 << 10, 1 << 20),
            Sizes::Mixed => rng.log_uniform(16, 32 << 10),
            Sizes::Large => rng.log_uniform(64 << 10, 4 << 20),
            Sizes::Fixed(size) => size,
        }
    }

    /// The mean of the sizes drawn, bytes; used to size the tables.
    pub fn mean(self) -> usize {
        match self {
            Sizes::Small => 140,
            Sizes::Mixed => 8 << 10,
            Sizes::Large => 1 << 20,
            Sizes::Fixed(size) => size.max(1),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(word: &str) -> Result<Sizes, String> {
        match (word, word.strip_prefix("fixed:").map(str::parse)) {
            ("small", _) => Ok(Sizes::Small),
            ("mixed", _) => Ok(Sizes::Mixed),
            ("large", _) => Ok(Sizes::Large),
            (_, Some(Ok(size @ 1..=1_073_741_824))) => Ok(Sizes::Fixed(size)),
            (_, Some(_)) => Err("fixed:N takes a number of bytes from 1 to 1073741824".into()),
            _ => Err("one of small, mixed, large, fixed:N".into()),
        }
    }
}

/// How long blocks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Hold {
    /// Tens of operations.
    Short,
    /// Half of them tens of operations, half of them thousands.
    Mixed,
    /// Thousands of operations.
    Long,
}

impl Hold {
    /// A slot of a table of `slots`: the fewer slots are drawn from, the shorter a block lives in one.
    pub fn slot(self, rng: &mut Rng, slots: usize) -> usize {
        let few = slots.min(32);
        match self {
            Hold::Short => rng.below(few),
            Hold::Mixed if rng.one_in(2) => rng.below(few),
            Hold::Mixed | Hold::Long => rng.below(slots),
        }
    }
}

/// Who frees what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Each thread frees its own blocks (and those that it inherits from a thread it replaces).
    Local,
    /// Producer threads allocate, consumer threads free.
    Pipeline,
    /// All threads swap blocks in one table: mostly a block is freed by another thread than its owner.
    Swap,
}

/// A run in threads mode.
#[derive(Clone, Debug)]
pub struct Config {
    /// Worker threads.
    pub threads: usize,
    /// Length of the load, seconds.
    pub seconds: u64,
    /// Sizes asked for.
    pub sizes: Sizes,
    /// How long blocks are held.
    pub hold: Hold,
    /// Who frees what.
    pub pattern: Pattern,
    /// Threads end and are replaced after this many milliseconds; 0 for never.
    pub churn_ms: u64,
    /// Whether bad frees are injected.
    pub faults: bool,
    /// Milliseconds that a provoked lock stall lasts; 0 for none.
    pub stall_ms: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Live bytes a thread may hold.
    pub live_bytes: usize,
}

impl Config {
    /// Places for blocks in a table that one thread fills.
    pub fn slots(&self) -> usize {
        // A table filled at random is half full on average.
        (2 * self.live_bytes / self.sizes.mean()).clamp(32, 16_384)
    }
}

/// Ranges of sizes that workers do not ask for, because faults need classes of their own.
#[derive(Clone, Debug, Default)]
pub struct Reserved(pub Vec<RangeInclusive<usize>>);

impl Reserved {
    /// The size itself, or the next smaller one that is not reserved.
    pub fn avoid(&self, size: usize) -> usize {
        self.0.iter().find(|range| range.contains(&size)).map_or(size, |range| range.start() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_words() {
        assert_eq!("mixed".parse(), Ok(Sizes::Mixed));
        assert_eq!("fixed:64".parse(), Ok(Sizes::Fixed(64)));
        for bad in ["", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:9999999999", "huge"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reserved_sizes_are_avoided_downwards() {
        let reserved = Reserved(vec![1025..=1280, 2561..=3072]);
        assert_eq!(reserved.avoid(1024), 1024);
        assert_eq!(reserved.avoid(1025), 1024);
        assert_eq!(reserved.avoid(1280), 1024);
        assert_eq!(reserved.avoid(3000), 2560);
        assert_eq!(reserved.avoid(3073), 3073);
    }
}
