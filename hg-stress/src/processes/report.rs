//! What a run of processes came to, and the verdict. Field names are a contract.

use std::fmt;

use serde::Serialize;

use super::hunt::{Kill, Place};

/// Of so many kills one must have been at each place that a check asks for; and one dead owner of a lock in so many repaired.
const KILLS_A_PLACE: u64 = 50;
const KILLS_A_REPAIR: u64 = 20;

/// Kills that landed at one place.
#[derive(Clone, Debug, Serialize)]
pub struct Landed {
    /// Where.
    pub place: &'static str,
    /// Of victims that were stopped and looked at before they were killed.
    pub looked_at: u64,
    /// Of victims killed as they ran, by what their records said afterwards.
    pub running: u64,
}

/// The outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Processes at a time.
    pub workers: usize,
    /// Processes killed at random instants.
    pub kills: u64,
    /// Length of the run, s.
    pub seconds: f64,
    /// Where the kills landed.
    pub landed: Vec<Landed>,
    /// Kills that hit the holder of a lock, as seen in victims that were stopped.
    pub with_a_lock: u64,
    /// Critical sections of dead owners that others put right.
    pub owner_deaths: u64,
    /// Cells that only a dead thread had.
    pub recovered: u64,
    /// Calls of malloc and free, and blocks that another process freed than allocated them.
    pub calls: u64,
    /// As `calls`.
    pub crossed: u64,
    /// Allocations for which there was no memory.
    pub failed: u64,
    /// Growths and shrinks.
    pub grows: u64,
    /// As `grows`.
    pub shrinks: u64,
    /// Waits and holds over the stall threshold.
    pub stalls: u64,
    /// Bad calls made, and refused.
    pub faults: u64,
    /// As `faults`.
    pub refused: u64,
    /// Looks at everything.
    pub censuses: u64,
    /// Live blocks that they accounted for, together.
    pub blocks: u64,
    /// Blocks that a process died over and that its slot gave back.
    pub orphans: u64,
    /// Free cells that were scribbled over.
    pub scribbled: u64,
    /// What was not as it must be.
    pub failures: Vec<String>,
}

impl Report {
    pub(crate) fn new(workers: usize) -> Report {
        let landed = Place::ALL.iter().map(|place| Landed { place: place.label(), looked_at: 0, running: 0 }).collect();
        Report { workers, landed, ..Report::default() }
    }

    pub(crate) fn count(&mut self, kill: Kill) {
        self.kills += 1;
        self.with_a_lock += u64::from(kill.locked);
        let landed = &mut self.landed[kill.place as usize];
        *(if kill.looked { &mut landed.looked_at } else { &mut landed.running }) += 1;
    }

    /// Kills at a place, of victims that were stopped and looked at.
    pub(crate) fn looked_at(&self, place: Place) -> u64 {
        self.landed[place as usize].looked_at
    }

    /// Why this run does not pass a check: what failed, and what it did not get to.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = self.failures.clone();
        let wanted = self.kills / KILLS_A_PLACE;
        let mut reached = |what: &str, count: u64, wanted: u64| {
            if count < wanted {
                failures.push(format!("only {count} kills {what}, of {wanted} that are wanted"));
            }
        };
        for place in [Place::Front, Place::Refill, Place::Flush, Place::Grow] {
            reached(&format!("in {}", place.label()), self.looked_at(place), wanted);
        }
        reached("with a lock held", self.with_a_lock, wanted);
        reached("repaired by the lock's next owner", self.owner_deaths, self.kills / KILLS_A_REPAIR);
        failures
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { kills, workers, seconds, .. } = self;
        writeln!(f, "{kills} of {workers} processes on one arena were killed and replaced in {seconds:.1} s\n")?;
        writeln!(f, "{:<10} {:>10} {:>12}", "killed in", "looked at", "running")?;
        for Landed { place, looked_at, running } in &self.landed {
            writeln!(f, "{place:<10} {looked_at:>10} {running:>12}")?;
        }
        writeln!(f, "\nwith a lock held     {}", self.with_a_lock)?;
        writeln!(f, "owner_dead repairs   {}", self.owner_deaths)?;
        writeln!(f, "cells recovered      {}", self.recovered)?;
        writeln!(f, "calls                {}, {} blocks freed by another process", self.calls, self.crossed)?;
        writeln!(f, "no memory            {}", self.failed)?;
        writeln!(f, "grows, shrinks       {}, {}", self.grows, self.shrinks)?;
        writeln!(f, "stalls               {}", self.stalls)?;
        writeln!(f, "bad calls            {}, refused {}", self.faults, self.refused)?;
        writeln!(
            f,
            "censuses             {}: {} live blocks, {} left by the dead, {} free cells scribbled over",
            self.censuses, self.blocks, self.orphans, self.scribbled
        )?;
        match self.failures.as_slice() {
            [] => write!(f, "nothing lost, nothing doubled"),
            failures => write!(f, "FAILED: {}", failures.join("; ")),
        }
    }
}
