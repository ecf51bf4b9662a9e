//! From the command line to the mode that serves it.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use crate::cli::{Cli, Command, Options};
use crate::collect::Collector;
use crate::exit::Failure;
use crate::say::say;
use crate::{advise, batch, demo, live, picker};

/// How long `demo --once` watches before it prints.
const DEMO_WATCH: Duration = Duration::from_secs(3);

/// Does what the command line says.
pub fn main(cli: &Cli) -> ExitCode {
    dispatch(cli).unwrap_or_else(|failure| {
        say(&failure);
        failure.code()
    })
}

fn dispatch(cli: &Cli) -> Result<ExitCode, Failure> {
    let options = &cli.options;
    match &cli.command {
        Some(Command::Workload { parent }) => {
            demo::workload(*parent);
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Demo) => {
            let demo = demo::Demo::start()?;
            watch(&[demo.pid()], options, DEMO_WATCH)
        }
        Some(Command::Advise(arguments)) => advise::run::main(arguments, options),
        None => match options.pids() {
            Some(pids) if pids.is_empty() => {
                Err(Failure::Nothing("--pid got no pid: is the program running? pidof prints nothing if not".into()))
            }
            Some(pids) => watch(&pids, options, options.interval),
            None => choose(options),
        },
    }
}

fn choose(options: &Options) -> Result<ExitCode, Failure> {
    let found = picker::List::look()?;
    let silent = found.silent();
    if found.is_empty() {
        silent.into_iter().for_each(say);
        return Err(Failure::Nothing(picker::NOTHING.into()));
    }
    if !interactive(options) {
        silent.into_iter().for_each(say);
        return match io::stdout().write_all(found.table().as_bytes()).and_then(|()| io::stdout().flush()) {
            // The reader of the pipe has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(ExitCode::SUCCESS),
        };
    }
    match picker::run(found, options)? {
        Some(pids) => watch(&pids, options, options.interval),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn watch(pids: &[u32], options: &Options, first: Duration) -> Result<ExitCode, Failure> {
    let collector = Collector::open(pids, !options.no_ebpf)?;
    if interactive(options) { live::run(collector, options) } else { batch::run(collector, options, first) }
}

/// Whether there is a screen that can be drawn on, and nobody asked for something else.
fn interactive(options: &Options) -> bool {
    let batch =
        options.once || options.iterations.is_some() || options.output.is_some() || options.check || options.map;
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !batch && !dumb && io::stdout().is_terminal() && io::stdin().is_terminal()
}
