//! hg beside other allocators, in one run: `cargo run --release -p hg-bench -- pair`.
//!
//! Each allocator is measured in children of this program that preload it. The rounds interleave: every allocator once,
//! then every one again, so that a change of the machine's mood meets all alike; the median over the rounds is reported.
//!
//! | module | what |
//! |---|---|
//! | [`patterns`] | what a child does and times, through the C library's symbols |
//! | [`peers`] | which allocators there are and where |
//! | [`rounds`] | the interleaved rounds |
//! | [`table`] | medians and ratios, as Markdown and JSON |

mod patterns;
mod peers;
mod rounds;
mod table;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::patterns::Pattern;
use crate::peers::Peer;

/// Compares hg's malloc with the system's other allocators, side by side in one run.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    /// What to measure; `all` for everything.
    #[arg(value_name = "PATTERN", default_value = "pair", value_parser = patterns_of)]
    patterns: Patterns,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
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
    if words.next().as_deref() == Some(rounds::CHILD) {
        return patterns::child(words);
    }
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("hg-bench: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    let mut peers = vec![Peer::hg(cli.hg.as_deref())?, Peer::glibc()];
    peers.extend(peers::installed());
    peers.extend(cli.peers.iter().cloned());
    for peer in &peers {
        eprintln!(
            "{:<12} {}",
            peer.name,
            peer.library.as_deref().map_or("(the C library's own)".into(), |p| p.display().to_string())
        );
    }
    let mut results = Vec::new();
    for &pattern in &cli.patterns.0 {
        let result = table::Result::of(pattern, &peers, &rounds::run(pattern, &peers, cli.rounds)?);
        println!("{result}");
        results.push(result);
    }
    let json = serde_json::to_string(&results).map_err(|error| error.to_string())?;
    match &cli.json {
        Some(path) => std::fs::write(path, json).map_err(|error| format!("{}: {error}", path.display())),
        None => {
            println!("{json}");
            Ok(())
        }
    }
}
