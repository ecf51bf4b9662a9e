//! The script of a load: steps, separated by commas.
//!
//! ```text
//! step     = "grow" size ["over" duration]
//!          | "hold" duration
//!          | "release" ("all" | percent | size) ["over" duration]
//! size     = number ("k" | "m" | "g")         powers of 1024
//! percent  = number "%"                       of what is live
//! duration = number ("ms" | "s" | "min")
//! ```
//! Numbers may have a fraction: `grow 1.5g over 10s, hold 5s, release 90%, hold 5s, release all`.

use std::fmt;
use std::time::Duration;

/// The most that one step may grow by, bytes.
const MOST_BYTES: f64 = (1u64 << 42) as f64;

/// The longest duration, seconds (a week).
const MOST_SECONDS: f64 = 604_800.0;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// More live bytes, over so much time.
    Grow(u64, Duration),
    /// Nothing happens.
    Hold(Duration),
    /// Fewer live bytes, over so much time.
    Release(Part, Duration),
}

/// How much is released.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    /// A share of what is live, 0 to 1.
    Share(f64),
    /// So many bytes, or all that is live if that is less.
    Bytes(u64),
}

impl Part {
    /// What stays of so many live bytes.
    pub fn rest(self, live: u64) -> u64 {
        match self {
            Part::Share(share) => live - ((live as f64 * share) as u64).min(live),
            Part::Bytes(bytes) => live.saturating_sub(bytes),
        }
    }
}

/// A parsed script.
#[derive(Clone, Debug, PartialEq)]
pub struct Script(pub Vec<Step>);

impl Script {
    /// The most bytes that are live at once while it runs `repeat` times.
    pub fn peak(&self, repeat: u32) -> u64 {
        let (mut live, mut peak) = (0u64, 0);
        // What is left at its end adds up, but the way it does shows after two runs.
        let mut ends = Vec::new();
        for _ in 0..repeat.min(2) {
            for step in &self.0 {
                match *step {
                    Step::Grow(bytes, _) => live = live.saturating_add(bytes),
                    Step::Hold(_) => {}
                    Step::Release(part, _) => live = part.rest(live),
                }
                peak = peak.max(live);
            }
            ends.push(live);
        }
        let more = ends.get(1).map_or(0, |second| second.saturating_sub(ends[0]));
        peak.saturating_add(more.saturating_mul(u64::from(repeat.saturating_sub(2))))
    }
}

/// Where and why a script cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The script.
    pub text: String,
    /// Column of the first character that is wrong, from 1, in characters.
    pub column: usize,
    /// How many characters are wrong; 0 at the end of the script.
    pub length: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { text, column, length, reason } = self;
        writeln!(f, "column {column}: {reason}\n  {text}")?;
        write!(f, "  {}{}", " ".repeat(column - 1), "^".repeat((*length).max(1)))
    }
}

impl std::error::Error for Error {}

/// A word or a comma, and where it stands.
#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

/// Reads the tokens of a script, one after the other.
struct Parser<'a> {
    text: &'a str,
    rest: std::iter::Peekable<std::vec::IntoIter<Token<'a>>>,
}

impl std::str::FromStr for Script {
    type Err = Error;

    fn from_str(text: &str) -> Result<Script, Error> {
        let mut parser = Parser { text, rest: tokens(text).into_iter().peekable() };
        let mut steps = Vec::new();
        loop {
            steps.push(parser.step()?);
            match parser.rest.next() {
                None => return Ok(Script(steps)),
                Some(Token { text: ",", .. }) => {}
                Some(other) => return Err(parser.wrong(Some(other), "a comma or the end")),
            }
        }
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut start = None;
    for (at, character) in text.char_indices().chain([(text.len(), ' ')]) {
        if character == ',' || character.is_whitespace() {
            tokens.extend(start.take().map(|start| Token { text: &text[start..at], at: start }));
            if character == ',' {
                tokens.push(Token { text: &text[at..at + 1], at });
            }
        } else {
            start.get_or_insert(at);
        }
    }
    tokens
}

impl<'a> Parser<'a> {
    fn step(&mut self) -> Result<Step, Error> {
        let verb = self.rest.next();
        match verb.map(|token| token.text) {
            Some("grow") => Ok(Step::Grow(self.size("a size like 512m")?, self.over()?)),
            Some("hold") => Ok(Step::Hold(self.duration()?)),
            Some("release") => Ok(Step::Release(self.part()?, self.over()?)),
            _ => Err(self.wrong(verb, "grow, hold or release")),
        }
    }

    fn over(&mut self) -> Result<Duration, Error> {
        if self.rest.next_if(|token| token.text == "over").is_none() {
            return Ok(Duration::ZERO);
        }
        self.duration()
    }

    fn part(&mut self) -> Result<Part, Error> {
        const WANTED: &str = "all, a share like 90% or a size like 512m";
        match self.rest.peek().copied() {
            Some(Token { text: "all", .. }) => {
                self.rest.next();
                Ok(Part::Share(1.0))
            }
            Some(token) if token.text.ends_with('%') => {
                self.rest.next();
                let share = number(token.text).filter(|(share, unit)| *unit == "%" && *share <= 100.0);
                share.map(|(share, _)| Part::Share(share / 100.0)).ok_or_else(|| self.wrong(Some(token), WANTED))
            }
            _ => self.size(WANTED).map(Part::Bytes),
        }
    }

    fn size(&mut self, wanted: &str) -> Result<u64, Error> {
        let token = self.rest.next();
        let bytes = token.and_then(|token| number(token.text)).and_then(|(number, unit)| {
            let unit = ["k", "m", "g"].iter().position(|&known| known == unit)?;
            Some(number * f64::from(1 << (10 * (unit as u32 + 1))))
        });
        bytes
            .filter(|&bytes| (1.0..=MOST_BYTES).contains(&bytes))
            .map(|bytes| bytes as u64)
            .ok_or_else(|| self.wrong(token, wanted))
    }

    fn duration(&mut self) -> Result<Duration, Error> {
        let token = self.rest.next();
        let seconds = token.and_then(|token| number(token.text)).and_then(|(number, unit)| match unit {
            "ms" => Some(number / 1e3),
            "s" => Some(number),
            "min" => Some(number * 60.0),
            _ => None,
        });
        let seconds = seconds.filter(|&seconds| seconds <= MOST_SECONDS);
        seconds.map(Duration::from_secs_f64).ok_or_else(|| self.wrong(token, "a duration like 5s, 200ms or 2min"))
    }

    fn wrong(&self, token: Option<Token<'_>>, wanted: &str) -> Error {
        let column = |at: usize| self.text[..at].chars().count() + 1;
        let (column, length, found) = match token {
            Some(token) => (column(token.at), token.text.chars().count(), format!("found {:?}", token.text)),
            None => (column(self.text.trim_end().len()) + 1, 0, "the script ends".into()),
        };
        Error { text: self.text.into(), column, length, reason: format!("expected {wanted}, {found}") }
    }
}

/// A number without a sign, and what follows it.
fn number(word: &str) -> Option<(f64, &str)> {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    Some((word[..end].parse().ok().filter(|number: &f64| number.is_finite())?, &word[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Vec<Step> {
        text.parse::<Script>().unwrap_or_else(|error| panic!("{error}")).0
    }

    #[test]
    fn scripts_that_read() {
        let second = Duration::from_secs(1);
        assert_eq!(
            steps("grow 512m, hold 5s,release 90% , hold 200ms, release all"),
            [
                Step::Grow(512 << 20, Duration::ZERO),
                Step::Hold(5 * second),
                Step::Release(Part::Share(0.9), Duration::ZERO),
                Step::Hold(second / 5),
                Step::Release(Part::Share(1.0), Duration::ZERO),
            ]
        );
        assert_eq!(steps(" grow 1.5g over 2min "), [Step::Grow(3 << 29, 120 * second)]);
        assert_eq!(steps("release 64k over 0.5s"), [Step::Release(Part::Bytes(64 << 10), second / 2)]);
    }

    #[test]
    fn errors_tell_the_column_and_what_was_wanted() {
        for (text, column, length, reason) in [
            ("", 2, 0, "expected grow, hold or release, the script ends"),
            ("shrink 5m", 1, 6, "expected grow, hold or release, found \"shrink\""),
            ("grow", 6, 0, "expected a size like 512m, the script ends"),
            ("grow 512", 6, 3, "expected a size like 512m, found \"512\""),
            ("grow -5m", 6, 3, "expected a size like 512m, found \"-5m\""),
            ("grow 0k", 6, 2, "expected a size like 512m, found \"0k\""),
            ("grow 9999999g", 6, 8, "expected a size like 512m, found \"9999999g\""),
            ("grow 5m, hold 5x", 15, 2, "expected a duration like 5s, 200ms or 2min, found \"5x\""),
            ("hold 1..2s", 6, 5, "expected a duration like 5s, 200ms or 2min, found \"1..2s\""),
            ("hold 8000000s", 6, 8, "expected a duration like 5s, 200ms or 2min, found \"8000000s\""),
            ("release 101%", 9, 4, "expected all, a share like 90% or a size like 512m, found \"101%\""),
            ("release some", 9, 4, "expected all, a share like 90% or a size like 512m, found \"some\""),
            ("grow 5m over", 14, 0, "expected a duration like 5s, 200ms or 2min, the script ends"),
            ("grow 5m hold 5s", 9, 4, "expected a comma or the end, found \"hold\""),
            ("grow 5m,", 10, 0, "expected grow, hold or release, the script ends"),
            ("grow 5m,,hold 5s", 9, 1, "expected grow, hold or release, found \",\""),
            ("grow 5m, h\u{f6}ld 5s", 10, 4, "expected grow, hold or release, found \"h\u{f6}ld\""),
        ] {
            let error = text.parse::<Script>().expect_err(text);
            assert_eq!((error.column, error.length, error.reason.as_str()), (column, length, reason), "{text:?}");
        }
    }

    #[test]
    fn an_error_points_at_its_place() {
        let error = "grow 5m, hold 5x".parse::<Script>().expect_err("5x").to_string();
        assert!(error.ends_with("\n  grow 5m, hold 5x\n                ^^"), "{error}");
    }

    #[test]
    fn the_peak_counts_what_stays_from_run_to_run() {
        let peak = |text: &str, repeat| Script(steps(text)).peak(repeat) >> 20;
        assert_eq!(peak("grow 10m, release all", 5), 10);
        assert_eq!(peak("grow 10m, release 50%, grow 1m, release all", 1), 10);
        assert_eq!(peak("grow 10m", 5), 50);
        assert_eq!(peak("grow 10m, release 4m", 5), 34);
    }
}
