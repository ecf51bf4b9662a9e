//! Samples printed to stdout, without a screen.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::advise::Host;
use crate::alert::Alerts;
use crate::cli::{Options, Output};
use crate::collect::{Collector, map};
use crate::event::Event;
use crate::exit::{ALERT, Failure};
use crate::export::{json, text};
use crate::model::EbpfState;
use crate::model::timeline::Timeline;
use crate::say::say;

/// Events that a document holds at most: the latest ones.
const MAX_EVENTS: usize = 1000;

/// Prints one sample, or `-n` of them, each after an interval of `watch` (at first) or `-i`.
pub fn run(mut collector: Collector, options: &Options, watch: Duration) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    if let EbpfState::Off(why) = collector.ebpf()
        && !options.no_ebpf
    {
        say(format_args!("eBPF is off: {why} (no events, no stacks)"));
    }
    let mut timeline = Timeline::default();
    let mut alerts = Alerts::default();
    let mut events: Vec<Event> = Vec::new();
    take(&mut collector, &mut timeline, &mut alerts, &mut events);
    let samples = options.iterations.unwrap_or(1);
    let mut wait = watch;
    let mut printed = Ok(());
    for _ in 0..samples {
        sleep(wait, &stop, &mut collector, &mut alerts, &mut events);
        take(&mut collector, &mut timeline, &mut alerts, &mut events);
        printed = print(options, samples > 1, &timeline, &events, &alerts);
        if printed.is_err() || stop.load(Ordering::Relaxed) {
            break;
        }
        wait = options.interval;
        if samples > 1 {
            events.clear();
        }
    }
    collector.close();
    match printed {
        // The reader of the pipe has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(if options.check && !alerts.is_empty() { ExitCode::from(ALERT) } else { ExitCode::SUCCESS })
}

fn take(collector: &mut Collector, timeline: &mut Timeline, alerts: &mut Alerts, events: &mut Vec<Event>) {
    let (snapshot, new) = collector.sample();
    alerts.snapshot(&snapshot, timeline.latest());
    timeline.push(snapshot);
    keep(new, alerts, events);
    for warning in collector.take_warnings() {
        say(warning);
    }
}

/// Sleeps in short steps, taking events out of the ring buffer so that it does not fill up.
fn sleep(time: Duration, stop: &AtomicBool, collector: &mut Collector, alerts: &mut Alerts, events: &mut Vec<Event>) {
    const STEP: Duration = Duration::from_millis(100);
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(left.min(STEP));
        if collector.event_fd().is_some_and(|fd| crate::wake::readable(fd)) {
            keep(collector.events(), alerts, events);
        }
    }
}

fn keep(new: Vec<Event>, alerts: &mut Alerts, events: &mut Vec<Event>) {
    new.iter().for_each(|event| alerts.event(event));
    events.extend(new);
    let surplus = events.len().saturating_sub(MAX_EVENTS);
    events.drain(..surplus);
}

fn print(options: &Options, lines: bool, timeline: &Timeline, events: &[Event], alerts: &Alerts) -> io::Result<()> {
    let maps = timeline.latest().filter(|_| options.map).map(map::read_all).transpose()?;
    let host = Host::read(None);
    let beside = json::Beside { before: timeline.previous(), events, alerts, host: &host, maps: maps.as_ref() };
    let mut out = io::stdout().lock();
    match (options.output.unwrap_or_default(), timeline.latest()) {
        (Output::Json, Some(latest)) => {
            let document = json::document(latest, beside);
            let text = if lines { serde_json::to_string(&document) } else { serde_json::to_string_pretty(&document) };
            writeln!(out, "{}", text.map_err(io::Error::other)?)?;
        }
        _ => writeln!(out, "{}", text::render(timeline, beside))?,
    }
    out.flush()
}
