//! `hg-stress`: load on hg from the command line. Exit status: 0 sound, 1 not sound, 2 usage or no start.

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use hg_stress::config::{Config, Hold, Pattern, Sizes};

#[global_allocator]
static GLOBAL: hg_alloc::HgAlloc = hg_alloc::HgAlloc::new();

/// Load generator, block verifier and fault injector for the allocator hg.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Threads allocate, stamp, verify and free.
    Threads(Threads),
    /// The workload of `hg-top demo`, without hg-top.
    Demo {
        /// How long, in seconds; until stopped if not given.
        #[arg(long, value_name = "S")]
        seconds: Option<u64>,
    },
}

#[derive(clap::Args)]
struct Threads {
    /// Worker threads.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Length of the load, seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    seconds: u64,
    /// Sizes asked for: small (16-512 B), mixed (16 B-1 MiB), large (64 KiB-4 MiB), fixed:N.
    #[arg(long, default_value = "mixed")]
    sizes: Sizes,
    /// How long blocks are held.
    #[arg(long, value_enum, default_value = "mixed")]
    hold: Hold,
    /// Who frees what.
    #[arg(long, value_enum, default_value = "local")]
    pattern: Pattern,
    /// Each thread ends after about this many milliseconds and is replaced by a new one.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    churn: u64,
    /// Inject double, interior, foreign and wild frees, and check that each is refused and counted.
    #[arg(long)]
    faults: bool,
    /// Provoke lock stalls of this many milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    stall: u64,
    /// Live memory a thread may hold, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    live: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Form of the report.
    #[arg(short = 'O', value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Json,
    Text,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Threads(arguments) => threads(arguments),
        Command::Demo { seconds } => {
            hg_stress::demo(seconds.unwrap_or(u64::MAX));
            ExitCode::SUCCESS
        }
    }
}

fn threads(arguments: Threads) -> ExitCode {
    let output = arguments.output;
    let config = Config {
        threads: arguments.threads as usize,
        seconds: arguments.seconds,
        sizes: arguments.sizes,
        hold: arguments.hold,
        pattern: arguments.pattern,
        churn_ms: arguments.churn,
        faults: arguments.faults,
        stall_ms: arguments.stall,
        seed: arguments.seed,
        live_bytes: (arguments.live as usize) << 20,
    };
    let report = match hg_stress::run::threads(config) {
        Ok(report) => report,
        Err(refused) => {
            eprintln!("hg-stress: {refused}");
            return ExitCode::from(2);
        }
    };
    match output {
        Output::Text => println!("{report}"),
        Output::Json => match serde_json::to_string(&report) {
            Ok(json) => println!("{json}"),
            Err(error) => eprintln!("hg-stress: {error}"),
        },
    }
    for failure in report.failures() {
        eprintln!("hg-stress: {failure}");
    }
    if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
