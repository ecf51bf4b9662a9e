//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit;

/// Watch the hg allocator of running processes, live.
#[derive(Debug, Parser)]
#[command(name = "hg-top", version, after_help = exit::HELP, max_term_width = 100)]
pub struct Cli {
    /// What to do instead of watching --pid.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to show it.
    #[command(flatten)]
    pub options: Options,
}

/// What else hg-top does.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Start a threaded workload on hg and watch it: nothing else is needed
    Demo,
    /// Say how large an arena should be and what should back it, from what it really reached
    Advise(AdviseArgs),
    /// The workload of the demo
    #[command(name = "__workload", hide = true)]
    Workload {
        /// The hg-top that started it
        parent: u32,
    },
}

/// What `advise` takes.
#[derive(Clone, Debug, Default, Args)]
pub struct AdviseArgs {
    /// Record what the arena uses to a new file instead, a line each interval, until ^C
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Record for so long
    #[arg(long, requires = "record")]
    pub seconds: Option<u64>,
    /// Record this arena instead of the largest one
    #[arg(long, value_name = "NUMBER", requires = "record")]
    pub arena: Option<u32>,
    /// Play a recording under a profile: `scale up to 2g on 70% for 3 cycles / scale down to 256m on 30% for 20 cycles`
    #[arg(long, value_name = "PROFILE", requires = "trace", conflicts_with = "record")]
    pub what_if: Option<String>,
    /// The recording to play
    #[arg(long, value_name = "FILE", requires = "what_if")]
    pub trace: Option<PathBuf>,
    /// Play it in an arena of this size
    #[arg(long, value_name = "INIT:CAP", requires = "what_if")]
    pub size: Option<String>,
}

/// Options of all commands.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Processes to watch, as words or separated by commas; without it, choose from those that run on hg
    #[arg(short, long, value_name = "PID", num_args = 0.., value_parser = pids, global = true)]
    pub pid: Option<Vec<Pids>>,
    /// Print one sample (after one interval, so that rates are known) and exit
    #[arg(long, global = true)]
    pub once: bool,
    /// Print this many samples, one an interval, and exit
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), global = true)]
    pub iterations: Option<u32>,
    /// Seconds between samples, 0.1 to 3600
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval, global = true)]
    pub interval: Duration,
    /// What to print: text, or JSON (one document; one a line with -n). Implies batch mode
    #[arg(short = 'O', long, value_name = "FORMAT", global = true)]
    pub output: Option<Output>,
    /// Print the pages of each arena too, and what keeps them. Implies batch mode
    #[arg(long, global = true)]
    pub map: bool,
    /// Exit with 1 if an alert fired (in batch mode)
    #[arg(long, global = true)]
    pub check: bool,
    /// Read stats pages alone
    #[arg(long, global = true)]
    pub no_ebpf: bool,
    /// Draw with ASCII characters alone
    #[arg(long, global = true)]
    pub ascii: bool,
    /// No colours; NO_COLOR in the environment does the same
    #[arg(long, global = true)]
    pub no_color: bool,
}

/// What batch mode prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables.
    #[default]
    Text,
    /// The document of docs/json.md.
    Json,
}

/// The pids of one word of the command line.
#[derive(Clone, Debug)]
pub struct Pids(Vec<u32>);

impl Options {
    /// The pids asked for; `None` if none were to be named at all.
    pub fn pids(&self) -> Option<Vec<u32>> {
        let words = self.pid.as_ref()?;
        let mut pids: Vec<u32> = words.iter().flat_map(|word| word.0.iter().copied()).collect();
        pids.sort_unstable();
        pids.dedup();
        Some(pids)
    }

    /// Whether to do without colours.
    pub fn colourless(&self) -> bool {
        self.no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
    }
}

/// One word may hold several pids, as `"$(pidof opensips)"` in quotes does.
fn pids(word: &str) -> Result<Pids, String> {
    word.split([',', ' ', '\t', '\n'])
        .filter(|pid| !pid.is_empty())
        .map(|pid| match pid.parse() {
            Ok(pid @ 1..=0x7fff_ffff) => Ok(pid),
            _ => Err(format!("{} is no pid", crate::escape::text(pid))),
        })
        .collect::<Result<Vec<u32>, String>>()
        .map(Pids)
}

fn interval(word: &str) -> Result<Duration, String> {
    match word.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give 0.1 to 3600 seconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("hg-top").chain(words.iter().copied()))
    }

    #[test]
    fn pids_as_words_commas_and_both() {
        let pids = |words: &[&str]| parse(words).unwrap().options.pids();
        assert_eq!(pids(&["--pid", "3", "1", "2"]), Some(vec![1, 2, 3]));
        assert_eq!(pids(&["--pid", "3,1", "2 1", "--once"]), Some(vec![1, 2, 3]));
        assert_eq!(pids(&["-p", "7", "-p", "8"]), Some(vec![7, 8]));
        assert_eq!(pids(&["--pid"]), Some(vec![]));
        assert_eq!(pids(&[]), None);
        for bad in ["0", "-1", "x", "99999999999", "1;2"] {
            assert!(parse(&[&format!("--pid={bad}")]).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_go_before_and_after_the_command() {
        let after = parse(&["demo", "--once", "-O", "json"]).unwrap();
        assert!(after.options.once && after.options.output == Some(Output::Json));
        assert!(parse(&["--once", "demo"]).unwrap().options.once);
        for bad in [&["-i", "0"][..], &["-i", "nan"], &["-n", "0"], &["-O", "xml"], &["--nonsense"], &["nonsense"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
