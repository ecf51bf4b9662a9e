//! Lines for the operator on stderr. A stderr that is closed or full is no reason to end, least of all with a panic.

use std::fmt::Display;
use std::io::Write;

/// Writes `hg-top: MESSAGE`, if anybody listens.
pub fn say(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "hg-top: {message}");
}
