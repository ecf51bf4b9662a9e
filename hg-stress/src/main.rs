//! `hg-stress`: load on hg from the command line. Exit status: 0 sound, 1 not sound, 2 usage or no start.

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use hg_stress::config::{Config, Hold, Pattern, Sizes};
use hg_stress::growth::Growth;
use hg_stress::load::Load;
use hg_stress::load::script::Error;
use hg_stress::processes::{Processes, duel};
use hg_stress::spike::Spike;
use hg_stress::spike::modes::Mode;
use hg_stress::turnover;

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
    /// Grow to gibibytes of live memory and free it all, again and again: does memory come back to the system?
    Spike {
        #[command(flatten)]
        spike: Spike,
        /// With the allocator's maintenance thread alone.
        #[arg(long, conflicts_with = "no_thread")]
        thread: bool,
        /// Without it alone. If neither is given both are run, one after the other.
        #[arg(long)]
        no_thread: bool,
        #[command(flatten)]
        verdict: Verdict,
    },
    /// Grow under load and read how long the allocator's locks were held.
    Growth {
        #[command(flatten)]
        growth: Growth,
        #[command(flatten)]
        verdict: Verdict,
    },
    /// Grow, hold and release by script, to be watched with hg-top: hg-stress load grow 512m, hold 5s, release 90%, hold 5s
    Load {
        /// Steps, separated by commas: grow SIZE [over TIME], hold TIME, release all|PERCENT|SIZE [over TIME]; sizes with k, m
        /// or g, times with ms, s or min.
        #[arg(required = true, value_name = "SCRIPT")]
        script: Vec<String>,
        /// How many times.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        repeat: u32,
        /// Threads that allocate and free.
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
        threads: u32,
        /// Sizes asked for: small, mixed, large, fixed:N; if not given a quarter of the bytes in blocks up to 1 KiB, half in
        /// blocks up to 256 KiB, a quarter in blocks up to 8 MiB.
        #[arg(long)]
        sizes: Option<Sizes>,
        /// Seed of all random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Form of the figures after each step; JSON is one object a line.
        #[arg(short = 'O', value_enum, default_value = "text")]
        output: Output,
    },
    /// Threads come and go while another frees their blocks: is every span reclaimed, and how fast?
    Turnover {
        /// Threads, one after the other.
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
        generations: u32,
        #[command(flatten)]
        verdict: Verdict,
    },
    /// Processes on one shared arena are killed at random instants: is anything lost, doubled or stuck?
    Processes {
        #[command(flatten)]
        processes: Processes,
        #[command(flatten)]
        verdict: Verdict,
    },
    /// Two processes free the same block at the same instant: is exactly one of the frees accepted?
    DoubleFree {
        /// Blocks.
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        tries: u64,
        #[command(flatten)]
        verdict: Verdict,
    },
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

/// What becomes of the outcome.
#[derive(Clone, Copy, clap::Args)]
struct Verdict {
    /// Exit with status 1 unless everything holds.
    #[arg(long)]
    check: bool,
    /// Form of the report.
    #[arg(short = 'O', value_enum, default_value = "text")]
    output: Output,
}

impl Verdict {
    /// Prints a report; the status tells of its failures if they were asked for.
    fn tell(self, report: &(impl std::fmt::Display + serde::Serialize), sound: bool) -> ExitCode {
        self.output.print(report);
        if sound || !self.check { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Output {
    Json,
    Text,
}

impl Output {
    fn print(self, report: &(impl std::fmt::Display + serde::Serialize)) {
        match self {
            Output::Text => println!("{report}"),
            Output::Json => match serde_json::to_string(report) {
                Ok(json) => println!("{json}"),
                Err(error) => eprintln!("hg-stress: {error}"),
            },
        }
    }
}

fn main() -> ExitCode {
    if let Some(done) = turnover::child() {
        return done;
    }
    let outcome = match Cli::parse().command {
        Command::Threads(arguments) => threads(arguments),
        Command::Spike { spike, thread, no_thread, verdict } => match (thread, no_thread) {
            (false, false) => modes(&Mode::BOTH, verdict),
            _ => one_spike(&spike, if thread { Mode::Thread } else { Mode::NoThread }, verdict),
        },
        Command::Turnover { generations, verdict } => {
            turnover::patient(generations).map(|report| verdict.tell(&report, report.failures().is_empty()))
        }
        Command::Growth { growth, verdict } => {
            growth.run().map(|report| verdict.tell(&report, report.failures().is_empty()))
        }
        Command::Processes { processes, verdict } => processes.run().map(|report| {
            let failures = report.failures();
            failures.iter().for_each(|failure| eprintln!("hg-stress: {failure}"));
            verdict.tell(&report, failures.is_empty())
        }),
        Command::DoubleFree { tries, verdict } => {
            duel::run(tries).map(|report| verdict.tell(&report, report.failures.is_empty()))
        }
        Command::Load { script, repeat, threads, sizes, seed, output } => {
            let script = script.join(" ").parse().map_err(|error: Error| error.to_string());
            let load = script.map(|script| Load { script, repeat, threads, sizes, seed });
            load.and_then(|load| load.run(|figures| output.print(&figures))).map(|()| ExitCode::SUCCESS)
        }
        Command::Demo { seconds } => {
            hg_stress::demo(seconds.unwrap_or(u64::MAX));
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|refused| {
        eprintln!("hg-stress: {refused}");
        ExitCode::from(2)
    })
}

/// A spike in this process, or in one that has the environment for it.
fn one_spike(spike: &Spike, mode: Mode, verdict: Verdict) -> Result<ExitCode, String> {
    if !mode.is_on() {
        return modes(&[mode], verdict);
    }
    let report = spike.run(mode, |round| {
        if verdict.output == Output::Text {
            println!("{round}");
        }
    })?;
    Ok(verdict.tell(&report, report.failures.is_empty()))
}

/// A process for each mode. Text goes through as it comes; JSON becomes one object with a member for each mode.
fn modes(modes: &[Mode], verdict: Verdict) -> Result<ExitCode, String> {
    let mut reports = serde_json::Map::new();
    let mut worst = 0;
    for mode in modes {
        let mut command = mode.command().map_err(|error| error.to_string())?;
        if verdict.output == Output::Json {
            command.stdout(std::process::Stdio::piped());
        }
        let ended = command.spawn().and_then(|child| child.wait_with_output()).map_err(|error| error.to_string())?;
        worst = worst.max(ended.status.code().unwrap_or(1));
        if let Ok(report) = serde_json::from_slice(&ended.stdout) {
            reports.insert(mode.flag().trim_start_matches('-').replace('-', "_"), report);
        }
    }
    match reports.len() {
        0 => {}
        1 if modes.len() == 1 => reports.values().for_each(|report| println!("{report}")),
        _ => println!("{}", serde_json::Value::Object(reports)),
    }
    Ok(ExitCode::from(worst as u8))
}

fn threads(arguments: Threads) -> Result<ExitCode, String> {
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
    let report = hg_stress::run::threads(config).map_err(|refused| refused.to_string())?;
    output.print(&report);
    for failure in report.failures() {
        eprintln!("hg-stress: {failure}");
    }
    Ok(if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
