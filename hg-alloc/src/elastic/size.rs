//! What an arena starts with and grows to, as one setting: `INIT:CAP`.

use super::profile::{Error, Reason};
use super::scanner::Scanner;

/// The least address space that an arena can do with, bytes.
pub(crate) const LEAST_CAP: u64 = 16 << 20;

/// What an arena starts with and grows to: `INIT:CAP`, or one size for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Committed at the start and never given back, bytes.
    pub init_bytes: u64,
    /// Address space, bytes.
    pub cap_bytes: u64,
}

impl Size {
    /// Reads a size such as `64m:8g` of a process's arena. An error names the first place that cannot be understood.
    pub fn parse(text: &str) -> Result<Size, Error> {
        Size::parse_from(text, LEAST_CAP)
    }

    /// As [`parse`](Size::parse), of an arena whose cap may be as small as `least_cap` bytes.
    pub fn parse_from(text: &str, least_cap: u64) -> Result<Size, Error> {
        let mut scanner = Scanner::new(text);
        let mut cap_place = scanner.place();
        let init_bytes = scanner.size()?;
        let mut cap_bytes = init_bytes;
        if scanner.accept_mark(&[':']) {
            cap_place = scanner.place();
            cap_bytes = scanner.size()?;
        }
        let end = scanner.place();
        match () {
            () if !scanner.is_done() => Err(scanner.error(end, Reason::Colon)),
            () if cap_bytes < init_bytes => Err(scanner.error(cap_place, Reason::CapBelowInit)),
            () if cap_bytes < least_cap => Err(scanner.error(cap_place, Reason::CapLimit)),
            () => Ok(Size { init_bytes, cap_bytes }),
        }
    }
}
