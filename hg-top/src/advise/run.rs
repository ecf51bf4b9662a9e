//! `hg-top advise`: the advice for processes, printed; or a recording; or a what-if over one.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::{Advice, Host, advise, record, what_if};
use crate::cli::{AdviseArgs, Options, Output};
use crate::collect::Collector;
use crate::exit::Failure;
use crate::export::{arena, json};
use crate::model::Snapshot;
use crate::model::scope::same_arena;
use crate::say::say;

/// Least time between the two looks that tell whether a peak is still rising.
const LOOK: Duration = Duration::from_secs(1);

/// Version of the JSON documents of this command.
const VERSION: u32 = 1;

/// The advice as JSON.
#[derive(Serialize)]
struct Document {
    version: u32,
    time: f64,
    arenas: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    pid: u32,
    comm: String,
    arena: u32,
    name: String,
    advice: Option<json::Advice>,
}

/// Does what the arguments say.
pub fn main(arguments: &AdviseArgs, options: &Options) -> Result<ExitCode, Failure> {
    if let (Some(profile), Some(trace)) = (&arguments.what_if, &arguments.trace) {
        return what_if::run(profile, trace, arguments.size.as_deref(), options);
    }
    let pids = options.pids().filter(|pids| !pids.is_empty());
    let pids = pids.ok_or_else(|| Failure::Usage("advise needs --pid, or --what-if with --trace".into()))?;
    match &arguments.record {
        Some(file) => record::run(&pids, arguments, file, options.interval),
        None => print(&pids, options),
    }
}

fn print(pids: &[u32], options: &Options) -> Result<ExitCode, Failure> {
    let mut collector = Collector::open(pids, false)?;
    let (first, _) = collector.sample();
    std::thread::sleep(options.interval.max(LOOK));
    let (latest, _) = collector.sample();
    collector.take_warnings().into_iter().for_each(say);
    let found = all(&latest, &first);
    let text = match options.output.unwrap_or_default() {
        Output::Text => text(&found),
        Output::Json => {
            let entry =
                |(entry, advice): (Entry, Option<Advice>)| Entry { advice: advice.map(json::Advice::of), ..entry };
            let time = latest.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1000.0;
            let document = Document { version: VERSION, time, arenas: found.into_iter().map(entry).collect() };
            serde_json::to_string_pretty(&document).map_err(io::Error::other)? + "\n"
        }
    };
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn all(latest: &Snapshot, first: &Snapshot) -> Vec<(Entry, Option<Advice>)> {
    let mut found = Vec::new();
    for of in latest.arenas() {
        let Some(figures) = &of.arena.figures else { continue };
        let identity = &of.process.identity;
        let before = same_arena(first, &of).and_then(|before| before.figures.as_ref());
        let entry = Entry {
            pid: identity.pid,
            comm: identity.comm.clone(),
            arena: of.number,
            name: of.arena.name.clone(),
            advice: None,
        };
        found.push((entry, advise(figures, before, latest.at, &Host::read(Some(identity.pid)))));
    }
    found
}

fn text(found: &[(Entry, Option<Advice>)]) -> String {
    let mut text = String::new();
    for (entry, advice) in found {
        text.push_str(&format!("arena {} of {} {}\n", entry.name, entry.pid, entry.comm));
        match advice {
            // Writing to a string cannot fail.
            Some(advice) => drop(arena::advice(&mut text, advice)),
            None => text.push_str("           nothing was in use yet: there is no peak to go by\n"),
        }
    }
    text
}

/// Writes to stdout. A reader that has seen enough is no error.
pub(super) fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
