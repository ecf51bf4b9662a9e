//! A child's side: runs one load under the allocator preloaded and tells how much memory was resident.
//!
//! It prints two lines: `START PEAK FINAL SECONDS` when the load has freed all its blocks, and `SETTLED` after a rest in which it
//! does nothing, so that an allocator with a clock may act on it. Bytes, by the kernel's count. The peak is the kernel's
//! own high-water mark, set back before the load.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::load::Load;

/// First word of the command line of such a child.
pub(crate) const CHILD: &str = "__rss";

/// Runs the load named by the words: name, `quick` or `full`, the rest in milliseconds.
pub(crate) fn child(mut words: impl Iterator<Item = String>) -> ExitCode {
    let load = words.next().and_then(|name| Load::named(&name));
    let quick = words.next().is_some_and(|word| word == "quick");
    let rest = words.next().and_then(|word| word.parse().ok()).map(Duration::from_millis);
    let (Some(load), Some(rest)) = (load, rest) else { return ExitCode::from(2) };
    match measure(load, quick, rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hg-bench: /proc: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(load: Load, quick: bool, rest: Duration) -> std::io::Result<()> {
    let run = load.prepare(quick);
    // A first look before the one that counts: what reading and printing take themselves is in place then.
    resident("VmHWM:")?;
    println!();
    std::fs::write("/proc/self/clear_refs", "5")?;
    let start = resident("VmRSS:")?;
    let begin = Instant::now();
    run();
    let seconds = begin.elapsed().as_secs_f64();
    let end = resident("VmRSS:")?;
    let peak = resident("VmHWM:")?.max(end).max(start);
    println!("{start} {peak} {end} {seconds:.3}");
    std::thread::sleep(rest);
    println!("{}", resident("VmRSS:")?);
    Ok(())
}

/// A figure of `/proc/self/status`, bytes.
fn resident(name: &str) -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| std::io::Error::other(format!("no {name} in /proc/self/status")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read() {
        let (now, peak) = (resident("VmRSS:").expect("a figure"), resident("VmHWM:").expect("a figure"));
        assert!(now > 100 << 10 && peak > 100 << 10, "{now} {peak}");
        assert!(resident("VmNone:").is_err());
    }
}
