//! The processes that share an arena, as text.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::model::{MonotonicNs, Shared};
use crate::unit::{age, count, ns};

/// One line a process of the arena's directory; at `now`.
pub(super) fn members(out: &mut String, shared: &Shared, now: MonotonicNs) -> fmt::Result {
    let Some(members) = &shared.members else { return writeln!(out, "its directory of processes cannot be read") };
    writeln!(
        out,
        "{:>8} {:>8} {:>8} {:>7} {:>6} {:>6} {:>6} {:>9} {:<26} ROLE",
        "PID", "REFILLS", "FLUSHES", "LARGE", "FAILED", "STALLS", "REPAIR", "RECOVERED", "LAST STALL"
    )?;
    for member in members {
        let counts = &member.counts;
        let stall = member.stall.map_or_else(String::new, |stall| {
            let ago = age(Duration::from_nanos(now.saturating_sub(stall.at)));
            format!("{} {} {ago} ago", ns(stall.ns), stall.lock)
        });
        let state = match (member.gone, member.watched) {
            (true, _) => "dead: ",
            (false, false) => "not watched: ",
            _ => "",
        };
        writeln!(
            out,
            "{:>8} {:>8} {:>8} {:>7} {:>6} {:>6} {:>6} {:>9} {stall:<26} {state}{}",
            member.shown_pid(),
            count(counts.refills),
            count(counts.flushes),
            count(counts.large_allocs),
            count(counts.failed),
            count(counts.stalls),
            count(counts.repairs),
            count(counts.recovered),
            member.role
        )?;
    }
    Ok(())
}
