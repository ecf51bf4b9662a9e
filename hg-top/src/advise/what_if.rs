//! What a profile would have made of a recorded load: the allocator's own policy, played over the trace.

use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;

use hg_alloc::policy::{Event, Rules, Sample, Summary, what_if};
use hg_alloc::profile::{Error, Profile, Size};
use hg_probes::words::Verdict;
use serde::Serialize;

use super::record::Line;
use super::run::write_out;
use crate::cli::{Options, Output};
use crate::exit::Failure;
use crate::model::Decision;
use crate::unit;

/// Bytes of a trace that are read: half a year of seconds.
const MAX_TRACE: u64 = 1 << 30;

/// Events that are told; sums go on after them.
const MAX_EVENTS: usize = 10_000;

/// Cap of an arena that says nothing else, where no size is given.
const CAP: u64 = 64 << 40;

/// Something that would have happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Told {
    t: f64,
    what: String,
    committed_bytes: u64,
}

#[derive(Serialize)]
struct Document {
    version: u32,
    profile: String,
    events: Vec<Told>,
    events_left_out: u64,
    samples: u64,
    used_peak_bytes: u64,
    committed_peak_bytes: u64,
    committed_mean_bytes: u64,
    recorded_mean_bytes: u64,
    grows_ahead: u64,
    grows_exhausted: u64,
    shrinks: u64,
    refusals: u64,
}

/// Plays `trace` under the profile of `text`.
pub fn run(text: &str, trace: &Path, size: Option<&str>, options: &Options) -> Result<ExitCode, Failure> {
    let profile = Profile::parse(text).map_err(|error| wrong(text, &error))?;
    let size = size.map(|size| Size::parse(size).map_err(|error| wrong(size, &error))).transpose()?;
    let size = size.unwrap_or(Size { init_bytes: 0, cap_bytes: CAP });
    let file = File::open(trace).map_err(|error| anyhow::anyhow!("cannot read {}: {error}", trace.display()))?;
    let samples = read(BufReader::new(file.take(MAX_TRACE))).map_err(Failure::Usage)?;
    let (events, left_out, summary) = play(profile, size, samples);
    let out = match options.output.unwrap_or_default() {
        Output::Text => render(text, &events, left_out, &summary),
        Output::Json => {
            let document = document(text, events, left_out, &summary);
            serde_json::to_string_pretty(&document).map_err(std::io::Error::other)? + "\n"
        }
    };
    write_out(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// The text with the place that is wrong, and what is wrong there.
fn wrong(text: &str, error: &Error) -> Failure {
    let line = text.lines().nth((error.line as usize).saturating_sub(1)).unwrap_or_default();
    let line = crate::escape::text(line);
    let before = " ".repeat((error.column as usize).saturating_sub(1).min(line.chars().count()));
    Failure::Usage(format!(
        "line {}, column {}: {}\n  {line}\n  {before}^",
        error.line,
        error.column,
        error.reason.label()
    ))
}

fn read(mut lines: impl BufRead) -> Result<Vec<Sample>, String> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut text = String::new();
    for number in 1.. {
        text.clear();
        if lines.read_line(&mut text).map_err(|error| format!("line {number} of the trace: {error}"))? == 0 {
            break;
        }
        if text.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&text).map_err(|error| format!("line {number} of the trace: {error}"))?;
        let at_ns = (line.t * 1e9) as u64;
        if !line.t.is_finite() || line.t < 0.0 || samples.last().is_some_and(|last| at_ns < last.at_ns) {
            return Err(format!("line {number} of the trace: time goes back"));
        }
        samples.push(Sample { at_ns, used_bytes: line.used, committed_bytes: line.committed });
    }
    if samples.is_empty() {
        Err("the trace is empty: hg-top advise --record FILE --pid PID makes one".into())
    } else {
        Ok(samples)
    }
}

fn play(profile: Profile, size: Size, samples: Vec<Sample>) -> (Vec<Told>, u64, Summary) {
    let mut events: Vec<Told> = Vec::new();
    let mut left_out = 0;
    // What was said last of use beyond the ceiling, and of leaving things as they are: the same again is nothing new.
    let mut last = [String::new(), String::new()];
    let tell = |sample: Sample, event, committed_bytes| {
        let (what, lasting) = match event {
            Event::Decided(decision) => {
                (meaning(sample, decision), Some(0).filter(|_| decision.verdict == Verdict::Keep))
            }
            Event::Exhausted(bytes) => (format!("a request waits for {} more", unit::bytes(bytes)), None),
            Event::Refused(bytes) => (format!("{} find no room below the ceiling", unit::bytes(bytes)), Some(1)),
        };
        match lasting {
            Some(place) if last[place] == what => return,
            Some(place) => last[place].clone_from(&what),
            None => last[0].clear(),
        }
        match events.len() {
            MAX_EVENTS => left_out += 1,
            _ => events.push(Told { t: sample.at_ns as f64 / 1e9, what, committed_bytes }),
        }
    };
    let summary = what_if(Rules::new(Some(profile)), size.init_bytes, size.cap_bytes, samples, tell);
    (events, left_out, summary)
}

fn meaning(sample: Sample, decision: hg_alloc::policy::Decision) -> String {
    let decision = Decision {
        at: sample.at_ns,
        times: 1,
        verdict: Some(decision.verdict),
        why: Some(decision.why),
        bytes: decision.bytes,
        page: decision.page,
        class: decision.class,
        cells: decision.cells,
        percent: (decision.usage, decision.limit),
    };
    decision.meaning()
}

fn render(profile: &str, events: &[Told], left_out: u64, summary: &Summary) -> String {
    let mut out = format!("profile: {}\n", crate::escape::text(profile.trim()));
    // Writing to a string cannot fail.
    for event in events {
        let _ = writeln!(out, "{:>10.1} s  {:>9}  {}", event.t, unit::bytes(event.committed_bytes), event.what);
    }
    if left_out > 0 {
        let _ = writeln!(out, "({left_out} events more)");
    }
    let bytes = unit::bytes;
    let _ = writeln!(out, "samples    {}", summary.samples);
    let _ = writeln!(out, "used       peak {}", bytes(summary.used_peak_bytes));
    let _ = writeln!(
        out,
        "committed  mean {} instead of {}, peak {}",
        bytes(summary.committed_mean_bytes),
        bytes(summary.recorded_mean_bytes),
        bytes(summary.committed_peak_bytes)
    );
    let _ = writeln!(
        out,
        "growths    {} ahead of demand, {} that a request waits for; {} shrinks",
        summary.grows_ahead, summary.grows_exhausted, summary.shrinks
    );
    let _ = writeln!(out, "refusals   {} samples find no room below the ceiling", summary.refusals);
    out
}

fn document(profile: &str, events: Vec<Told>, events_left_out: u64, summary: &Summary) -> Document {
    Document {
        version: 1,
        profile: profile.trim().into(),
        events,
        events_left_out,
        samples: summary.samples,
        used_peak_bytes: summary.used_peak_bytes,
        committed_peak_bytes: summary.committed_peak_bytes,
        committed_mean_bytes: summary.committed_mean_bytes,
        recorded_mean_bytes: summary.recorded_mean_bytes,
        grows_ahead: summary.grows_ahead,
        grows_exhausted: summary.grows_exhausted,
        shrinks: summary.shrinks,
        refusals: summary.refusals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "scale up to 256m on 70% for 2 cycles / scale down to 32m on 30% for 5 cycles";

    fn trace(used_mib: impl Fn(u64) -> u64) -> Vec<Sample> {
        let line =
            |second: u64| format!("{{\"t\":{second}.0,\"used\":{},\"committed\":268435456}}\n", used_mib(second) << 20);
        read((0..300).map(line).collect::<String>().as_bytes()).unwrap()
    }

    #[test]
    fn a_spike_is_grown_for_and_given_back() {
        let spike = trace(|second| if (20..60).contains(&second) { 200 } else { 8 });
        let size = Size { init_bytes: 32 << 20, cap_bytes: 1 << 30 };
        let (events, left_out, summary) = play(Profile::parse(PROFILE).unwrap(), size, spike);
        assert_eq!((summary.samples, summary.used_peak_bytes, left_out), (300, 200 << 20, 0));
        assert!(summary.shrinks > 0 && summary.grows_exhausted > 0 && summary.refusals == 0, "{summary:?}");
        assert!(summary.committed_mean_bytes < summary.recorded_mean_bytes, "{summary:?}");
        assert!(events.iter().any(|event| event.what.starts_with("shrink by ")), "{events:?}");
        assert!(events.iter().any(|event| event.what.starts_with("a request waits for 176 MiB")), "{events:?}");
        let text = render(PROFILE, &events, left_out, &summary);
        assert!(text.contains("instead of 256 MiB"), "{text}");
    }

    #[test]
    fn a_load_beyond_the_ceiling_is_refused() {
        let size = Size { init_bytes: 0, cap_bytes: 1 << 30 };
        let (events, _, summary) = play(Profile::parse(PROFILE).unwrap(), size, trace(|_| 300));
        assert_eq!(summary.refusals, 300);
        assert_eq!(events.iter().filter(|event| event.what == "44.0 MiB find no room below the ceiling").count(), 1);
    }

    #[test]
    fn errors_name_the_place() {
        let error = |text: &str| wrong(text, &Profile::parse(text).unwrap_err()).to_string();
        assert_eq!(
            error("scale up to 1g on 70% for many cycles"),
            "line 1, column 27: want a number of cycles from 1 to 1000\n  scale up to 1g on 70% for many cycles\n  \
             \u{20}                         ^"
        );
        for (trace, words) in [
            ("", "the trace is empty"),
            ("{\"t\":1,\"used\":1}", "line 1 of the trace: missing field `committed`"),
            (
                "{\"t\":2,\"used\":1,\"committed\":1}\n{\"t\":1,\"used\":1,\"committed\":1}",
                "line 2 of the trace: time goes back",
            ),
            ("{\"t\":-1,\"used\":1,\"committed\":1}", "time goes back"),
            ("\u{1b}[2J", "line 1 of the trace"),
        ] {
            let said = read(trace.as_bytes()).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
