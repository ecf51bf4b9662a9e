//! Resident memory, side by side: `hg-bench rss`.
//!
//! Each allocator runs each load in children of its own, in interleaved rounds. A child rests at its end, that an allocator
//! with a clock may give memory back by it; the rests of all children of a load overlap.
//!
//! | module | what |
//! |---|---|
//! | [`load`] | the loads by name |
//! | [`churn`], [`plateau`], [`threads`] | what they do |
//! | [`blocks`] | malloc and free, tables apart from them |
//! | [`child`] | a child's side and what it measures |
//! | [`summary`] | medians, table, verdict |

mod blocks;
pub(crate) mod child;
mod churn;
mod load;
mod plateau;
mod summary;
mod threads;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;

use crate::peers::Peer;
use load::Load;
use summary::{Figures, Summary};

/// What `hg-bench rss` measures.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Rss {
    /// Loads to run; all of them if none is named.
    #[arg(value_name = "LOAD", value_enum)]
    loads: Vec<Load>,
    /// Interleaved rounds; 3, or 1 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// A fraction of each load, one round, and a rest of one second: to see that it works, not to judge by.
    #[arg(long)]
    quick: bool,
    /// Seconds that a child rests before its final figure; 12, or 1 with --quick. hg and jemalloc decay within 10.
    #[arg(long, value_name = "S")]
    rest: Option<u16>,
    /// Exit with status 1 unless hg's peak and final memory are below those of mimalloc, jemalloc and glibc in every load.
    #[arg(long)]
    check: bool,
}

/// Measures and prints; returns the summaries and whether the check, if asked for, holds.
pub(crate) fn run(arguments: &Rss, peers: &[Peer]) -> Result<(Vec<Summary>, bool), String> {
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let rest = Duration::from_secs(arguments.rest.unwrap_or(if arguments.quick { 1 } else { 12 }).into());
    let loads = if arguments.loads.is_empty() { Load::value_variants() } else { &arguments.loads };
    let mut summaries = Vec::new();
    for &load in loads {
        let figures = interleaved(load, arguments.quick, rest, peers, rounds)?;
        let summary = Summary::of(load.name(), load.about(), rest.as_secs_f64(), &figures);
        println!("{summary}");
        summaries.push(summary);
    }
    let misses: Vec<String> = summaries.iter().flat_map(Summary::misses).collect();
    misses.iter().for_each(|miss| println!("not below: {miss}"));
    Ok((summaries, !arguments.check || misses.is_empty()))
}

fn interleaved(
    load: Load,
    quick: bool,
    rest: Duration,
    peers: &[Peer],
    rounds: u32,
) -> Result<Vec<(String, Vec<Figures>)>, String> {
    let mut running = Vec::new();
    for round in 0..rounds as usize {
        // The order turns from round to round, so that none always runs behind the same other.
        for index in (0..peers.len()).map(|k| (k + round) % peers.len()) {
            running.push((index, Running::start(load, quick, rest, &peers[index])?));
        }
    }
    let mut figures: Vec<_> = peers.iter().map(|peer| (peer.name.clone(), Vec::new())).collect();
    for (index, child) in running {
        figures[index]
            .1
            .push(child.end().map_err(|error| format!("{} under {}: {error}", load.name(), peers[index].name))?);
    }
    Ok(figures)
}

/// A child that has run its load and rests.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    figures: Figures,
}

impl Running {
    /// Starts a child and waits until it has freed all.
    fn start(load: Load, quick: bool, rest: Duration, peer: &Peer) -> Result<Running, String> {
        let mut command = peer.command()?;
        let scale = if quick { "quick" } else { "full" };
        command.args([child::CHILD, &load.name(), scale, &rest.as_millis().to_string()]);
        let told = |error: String| format!("{} under {}: {error}", load.name(), peer.name);
        let mut child = spawn(&mut command).map_err(|error| told(error.to_string()))?;
        let output = child.stdout.take().map(BufReader::new).ok_or_else(|| told("no output".into()))?;
        let mut running = Running { child, output, figures: Figures::default() };
        // The first line is empty: printing itself was measured by it.
        running.line().and_then(|_| running.line()).and_then(|line| running.at_once(&line)).map_err(told)?;
        Ok(running)
    }

    fn at_once(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[start, peak, freed, seconds] = &words[..] else { return Err(format!("printed {line:?}")) };
        self.figures = Figures { start: start as u64, peak: peak as u64, freed: freed as u64, settled: 0, seconds };
        Ok(())
    }

    fn end(mut self) -> Result<Figures, String> {
        let line = self.line()?;
        self.figures.settled = line.trim().parse().map_err(|_| format!("printed {line:?}"))?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(self.figures) } else { Err(status.to_string()) }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line),
            Ok(_) => Err(format!("ended early: {}", self.child.wait().map_or("?".into(), |status| status.to_string()))),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Running {
    /// A run that is given up leaves no child behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> std::io::Result<Child> {
    command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()
}
