//! hg beside other allocators, in one run: `cargo run --release -p hg-bench -- pair` for speed, `... -- rss` for memory.
//!
//! Each allocator is measured in children of this program that preload it. The rounds interleave: every allocator once,
//! then every one again, so that a change of the machine's mood meets all alike; the median over the rounds is reported.
//!
//! | module | what |
//! |---|---|
//! | [`patterns`] | what a child does and times, through the C library's symbols |
//! | [`peers`] | which allocators there are and where |
//! | [`rounds`] | the interleaved rounds |
//! | [`rss`] | the same for resident memory, with loads of its own |
//! | [`shared`] | many processes on one arena |
//! | [`table`] | medians and ratios, as Markdown and JSON |

mod patterns;
mod peers;
mod rounds;
mod rss;
mod shared;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::patterns::Pattern;
use crate::peers::Peer;

/// Compares hg's malloc with the system's other allocators, side by side in one run.
#[derive(Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Other>,
    #[command(flatten)]
    speed: Speed,
}

#[derive(Subcommand)]
enum Other {
    /// Resident memory instead of time: at the peak of a load, when all is freed, and after a rest.
    Rss {
        #[command(flatten)]
        rss: rss::Rss,
        #[command(flatten)]
        common: Common,
    },
    /// Many processes on one arena, beside a mutex and boundary tags; and what caches keep while many idle.
    Shared {
        #[command(flatten)]
        shared: shared::Shared,
        /// Where to write the figures as JSON, besides the table on stdout.
        #[arg(long, value_name = "FILE")]
        json: Option<std::path::PathBuf>,
    },
}

#[derive(clap::Args)]
struct Speed {
    /// What to measure; `all` for everything.
    #[arg(value_name = "PATTERN", default_value = "pair", value_parser = patterns_of)]
    patterns: Patterns,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    /// Another allocator to preload, besides those found on the system.
    #[arg(long = "peer", value_name = "NAME=PATH", value_parser = Peer::parse)]
    peers: Vec<Peer>,
    /// The library of hg; by default the one beside this program.
    #[arg(long, value_name = "PATH")]
    hg: Option<std::path::PathBuf>,
    /// Where to write the figures as JSON, besides the table on stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

#[derive(Clone)]
struct Patterns(Vec<Pattern>);

fn patterns_of(word: &str) -> Result<Patterns, String> {
    if word == "all" {
        return Ok(Patterns(Pattern::value_variants().to_vec()));
    }
    Pattern::from_str(word, false).map(|pattern| Patterns(vec![pattern])).map_err(|_| {
        let names = Pattern::value_variants().iter().map(|p| p.name()).collect::<Vec<_>>();
        format!("one of all, {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(rounds::CHILD) => return patterns::child(words),
        Some(rss::child::CHILD) => return rss::child::child(words),
        _ => {}
    }
    let cli = Cli::parse();
    let done = match &cli.command {
        None => time(&cli.speed),
        Some(Other::Rss { rss, common }) => memory(rss, common),
        Some(Other::Shared { shared, json }) => many(shared, json.as_deref()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("hg-bench: {message}");
            ExitCode::from(2)
        }
    }
}

fn time(speed: &Speed) -> Result<bool, String> {
    let peers = list(vec![Peer::hg(speed.common.hg.as_deref())?], &speed.common);
    let mut results = Vec::new();
    for &pattern in &speed.patterns.0 {
        let result = table::Result::of(pattern, &peers, &rounds::run(pattern, &peers, speed.rounds)?);
        println!("{result}");
        results.push(result);
    }
    put(&results, speed.common.json.as_deref())?;
    Ok(true)
}

fn memory(rss: &rss::Rss, common: &Common) -> Result<bool, String> {
    let hg = Peer::hg(common.hg.as_deref())?;
    let maintained = hg.with("hg, thread", ("HG_THREAD", "1"));
    let (summaries, holds) = rss::run(rss, &list(vec![hg, maintained], common))?;
    put(&summaries, common.json.as_deref())?;
    Ok(holds)
}

fn many(shared: &shared::Shared, json: Option<&std::path::Path>) -> Result<bool, String> {
    let result = shared.run()?;
    println!("{result}");
    put(&result, json)?;
    let failures = result.failures();
    failures.iter().for_each(|failure| eprintln!("hg-bench: {failure}"));
    Ok(failures.is_empty() || !shared.check)
}

/// hg, the C library's allocator, what is installed and what was named; told on stderr.
fn list(mut peers: Vec<Peer>, common: &Common) -> Vec<Peer> {
    peers.push(Peer::glibc());
    peers.extend(peers::installed());
    peers.extend(common.peers.iter().cloned());
    for peer in &peers {
        let library = peer.library.as_deref().map_or("(the C library's own)".into(), |path| path.display().to_string());
        eprintln!("{:<12} {library}", peer.name);
    }
    peers
}

fn put(results: &impl serde::Serialize, file: Option<&std::path::Path>) -> Result<(), String> {
    let json = serde_json::to_string(results).map_err(|error| error.to_string())?;
    match file {
        Some(path) => std::fs::write(path, json).map_err(|error| format!("{}: {error}", path.display())),
        None => {
            println!("{json}");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
