//! Records what an arena uses and has committed, one JSON line an interval: `{"t":12.0,"used":…,"committed":…}`.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::aside::{Aside, Bell, FIRST};
use crate::cli::AdviseArgs;
use crate::exit::Failure;
use crate::model::Arena;
use crate::process::Process as Proc;
use crate::say::say;
use crate::source::stats::{Found, StatsSource};

/// A line of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds since the recording began.
    pub t: f64,
    /// Bytes of spans and large objects.
    pub used: u64,
    /// Bytes committed.
    pub committed: u64,
}

/// How often a sleeping recorder looks whether it should end.
const STEP: Duration = Duration::from_millis(100);

/// Records the one process of `pids` until it ends, the time is over, or a signal says so.
pub fn run(pids: &[u32], arguments: &AdviseArgs, file: &Path, interval: Duration) -> Result<ExitCode, Failure> {
    let [pid] = *pids else { return Err(Failure::Usage("--record takes one process".into())) };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let bell = Bell::new()?;
    let stopped = || stop.load(Ordering::Relaxed);
    let opened = Aside::start(&bell, move || StatsSource::open(pid))?.wait(Some(Instant::now() + FIRST), stopped);
    let silent = || anyhow::anyhow!("process {pid} does not answer: a read of its memory has not returned");
    let mut source = opened.ok_or_else(silent)??;
    let start_ticks = Proc::start_ticks(pid)?;
    // What somebody recorded for hours is not overwritten.
    let opened = OpenOptions::new().write(true).create_new(true).open(file);
    let opened = opened.map_err(|error| anyhow::anyhow!("cannot create {}: {error}", file.display()))?;
    let mut out = BufWriter::new(opened);
    let begin = Instant::now();
    let mut lines = 0u64;
    let mut next = begin;
    while !stopped() {
        let elapsed = begin.elapsed();
        if arguments.seconds.is_some_and(|seconds| elapsed > Duration::from_secs(seconds)) {
            break;
        }
        let aside = Aside::start(&bell, move || {
            let arenas = source.read(&Found::default(), &BTreeSet::new());
            (source, arenas)
        })?;
        // While it does not answer there are no lines; that may be over again.
        let end = arguments.seconds.and_then(|seconds| begin.checked_add(Duration::from_secs(seconds)));
        let arenas;
        (source, arenas) = match aside.wait(end, stopped) {
            Some(look) => look,
            None => break,
        };
        let alive = Proc::start_ticks(pid).is_ok_and(|ticks| ticks == start_ticks);
        let arena = match (&arenas, alive) {
            (Ok(found), true) => chosen(found, arguments.arena),
            _ => break,
        };
        let Some(figures) = arena.and_then(|arena| arena.figures.as_ref()) else {
            return Err(Failure::Usage("there is no such arena, or its figures cannot be read".into()));
        };
        let t = elapsed.as_millis() as f64 / 1000.0;
        let line = Line { t, used: figures.used(), committed: figures.committed };
        writeln!(out, "{}", serde_json::to_string(&line).map_err(std::io::Error::other)?)?;
        // Whatever ends this, the lines so far are there.
        out.flush()?;
        lines += 1;
        next = (next + interval).max(Instant::now());
        while Instant::now() < next && !stopped() {
            std::thread::sleep(next.saturating_duration_since(Instant::now()).min(STEP));
        }
    }
    say(format_args!("{lines} lines in {}", file.display()));
    Ok(ExitCode::SUCCESS)
}

/// The arena that was asked for, else the one that has most memory.
fn chosen(found: &Found, wanted: Option<u32>) -> Option<&Arena> {
    let shared = found.shared.values().map(|shared| (&shared.number, &shared.arena));
    let known = found.private.iter().chain(shared).filter(|(number, _)| wanted.is_none_or(|wanted| wanted == **number));
    known.max_by_key(|(_, arena)| arena.figures.as_ref().map(|figures| figures.committed)).map(|(_, arena)| arena)
}
