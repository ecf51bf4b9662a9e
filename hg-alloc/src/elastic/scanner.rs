//! A cursor over the text of a setting: words, numbers, sizes, and where they stand.
//!
//! Owns no memory and reads each character once; a line and a column are worked out only when there is an error to tell.

use super::profile::{Error, Reason};

/// The largest size that a setting may name, bytes: 64 TiB, half of what an x86-64 process can address.
pub(crate) const GREATEST: u64 = 64 << 40;

/// A place in a text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    /// Bytes before the cursor, always at the border of a character.
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Scanner { text, at: 0 }
    }

    /// Passes white space and tells where the cursor stands then.
    pub(crate) fn place(&mut self) -> usize {
        self.take(char::is_whitespace);
        self.at
    }

    /// Whether nothing but white space is left.
    pub(crate) fn is_done(&mut self) -> bool {
        self.place() == self.text.len()
    }

    /// The error of a place.
    pub(crate) fn error(&self, place: usize, reason: Reason) -> Error {
        let before = self.text.get(..place).unwrap_or(self.text);
        let line = before.split('\n').count();
        let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
        Error { line: line as u32, column: column as u32, reason }
    }

    /// Passes one of these words, in either case; if another stands here, that is an error for this reason.
    pub(crate) fn expect(&mut self, words: &[&str], reason: Reason) -> Result<usize, Error> {
        let place = self.place();
        match self.accept(words) {
            Some(index) => Ok(index),
            None => Err(self.error(place, reason)),
        }
    }

    /// Passes one of these words, if it stands here, and tells which.
    pub(crate) fn accept(&mut self, words: &[&str]) -> Option<usize> {
        let place = self.place();
        let found = self.take(|c| c.is_alphanumeric() || c == '_');
        let index = words.iter().position(|word| word.eq_ignore_ascii_case(found));
        if index.is_none() {
            self.at = place;
        }
        index
    }

    /// Passes this character, if it stands here.
    pub(crate) fn accept_mark(&mut self, marks: &[char]) -> bool {
        self.place();
        let passed = self.rest().chars().next().filter(|c| marks.contains(c));
        self.at += passed.map_or(0, char::len_utf8);
        passed.is_some()
    }

    /// Passes a number; another text, or a number outside of the range, is an error for this reason at its first digit.
    pub(crate) fn number(&mut self, least: u64, most: u64, reason: Reason) -> Result<u64, Error> {
        let place = self.place();
        let number = self.take(|c| c.is_ascii_digit()).parse().ok();
        number.filter(|number| (least..=most).contains(number)).ok_or_else(|| self.error(place, reason))
    }

    /// Passes a size: digits, and a unit of k, m, g or t (powers of 1024) in either case; without one, MiB. Bytes.
    pub(crate) fn size(&mut self) -> Result<u64, Error> {
        let place = self.place();
        let digits = self.take(|c| c.is_ascii_digit());
        if digits.bytes().all(|digit| digit == b'0') {
            return Err(self.error(place, Reason::Size));
        }
        let unit_place = self.at;
        let shift = match self.take(|c| !c.is_whitespace() && !":/,;".contains(c)) {
            "k" | "K" => 10,
            "" | "m" | "M" => 20,
            "g" | "G" => 30,
            "t" | "T" => 40,
            _ => return Err(self.error(unit_place, Reason::Unit)),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        bytes.filter(|bytes| *bytes <= GREATEST).ok_or_else(|| self.error(place, Reason::SizeLimit))
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Passes all characters from here on that belong, and returns them.
    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }
}
