//! CPU time of a Kamailio per call, by allocator: its own three, and hg by way of `libhg_sip.so`.
//!
//! `cargo bench -p hg-sip -- [ROUNDS [SECONDS]] [ALLOCATOR...] [SCENARIO...]`. Each round runs each allocator once in each scenario, in an order
//! that turns; what is printed are medians over the rounds, and of the ratios within a round. The time is that of all of the
//! server's processes, of the kernel for them too; sipp, on the same machine, is not counted. A transaction is kept for five
//! seconds, so that calls are counted once as many end as begin: else the time would be that of touching new memory.

#[path = "../tests/common/mod.rs"]
mod common;

use common::server::{Server, Setup, Transport};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What the server is given, and what the library is told where it is loaded.
type Variant = (&'static str, &'static [&'static str], Option<&'static [(&'static str, &'static str)]>);

const ALLOCATORS: [Variant; 6] = [
    ("qm", &["-x", "qm", "-X", "qm"], None),
    ("fm", &["-x", "fm", "-X", "fm"], None),
    ("tlsf", &["-x", "tlsf", "-X", "tlsf"], None),
    ("hg", &["-x", "fm", "-X", "fm"], Some(&[])),
    ("hg-patch", &["-x", "fm", "-X", "fm"], Some(&[("HG_SIP_HOOK", "patch")])),
    ("hg-cpus", &["-x", "fm", "-X", "fm"], Some(&[("HG_CPUS", "auto")])),
];

/// Those that are compared where none is named.
const DEFAULT: [&str; 4] = ["qm", "fm", "tlsf", "hg"];

/// Seconds of calls before they are counted: until as many transactions end as begin.
const WARM_UP: usize = 10;

/// Calls, where they go, how, and how many a second.
const SCENARIOS: [(&str, bool, Transport, usize); 4] = [
    ("486-udp", false, Transport::Udp, 2000),
    ("486-tcp", false, Transport::Tcp, 2000),
    ("relayed-udp", true, Transport::Udp, 1000),
    ("relayed-tcp", true, Transport::Tcp, 1000),
];

/// CPU time of a server's processes so far.
fn cpu_time(server: &Server) -> Duration {
    let processes = server.processes();
    let of = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(processes.iter().map(of).sum())
}

/// Moves all threads of a process to one CPU.
fn place(pid: u32, cpu: usize) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()) {
        // SAFETY: all zero is an empty set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

/// One run.
struct Figures {
    /// Microseconds of CPU time per call.
    cpu: f64,
    /// Milliseconds in which 99 of 100 answers came.
    p99: f64,
    /// Whether no call failed.
    is_complete: bool,
}

fn run(setup: &Setup, scenario: (&str, bool, Transport, usize), seconds: usize) -> Figures {
    let (_, is_relayed, transport, rate) = scenario;
    let server = Server::start(setup).expect("kamailio, kamcmd and sipp");
    // Callers have a CPU of their own, or where each runs by chance is the largest part of what is measured.
    server.processes().into_iter().for_each(|pid| place(pid, 0));
    place(std::process::id(), 1);
    let (warm_up, window) = (Duration::from_secs(WARM_UP as u64), Duration::from_secs(seconds as u64));
    // One flow of calls, of which the middle is measured: while it begins and ends, memory comes and goes.
    let count = rate * (WARM_UP + seconds + 1);
    let (used, took, answers) = std::thread::scope(|scope| {
        let calls = scope.spawn(|| match is_relayed {
            true => server.relayed_calls(count, rate, transport),
            false => server.busy_calls(count, rate, transport),
        });
        std::thread::sleep(warm_up);
        let (before, start) = (cpu_time(&server), Instant::now());
        std::thread::sleep(window);
        (cpu_time(&server) - before, start.elapsed(), calls.join().expect("calls"))
    });
    assert!(server.end().is_clean);
    let cpu = used.as_secs_f64() * 1e6 / (rate as f64 * took.as_secs_f64());
    Figures { cpu, p99: answers.p99(), is_complete: answers.is_complete }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = arguments.iter().filter_map(|word| word.parse().ok()).collect();
    let (rounds, seconds) = (*numbers.first().unwrap_or(&9), *numbers.get(1).unwrap_or(&5));
    let is_named = |name: &str| arguments.iter().any(|word| word == name);
    let any = ALLOCATORS.iter().any(|(name, ..)| is_named(name));
    let wanted = |name: &str| if any { is_named(name) } else { DEFAULT.contains(&name) };
    let allocators: Vec<Variant> = ALLOCATORS.into_iter().filter(|(name, ..)| wanted(name)).collect();
    let any = SCENARIOS.iter().any(|(name, ..)| is_named(name));
    let scenarios: Vec<_> = SCENARIOS.into_iter().filter(|(name, ..)| !any || is_named(name)).collect();
    let mut found: BTreeMap<(usize, &str), Vec<Figures>> = BTreeMap::new();
    for round in 0..rounds {
        for (number, scenario) in scenarios.iter().copied().enumerate() {
            for place in 0..allocators.len() {
                let (name, arguments, library) = allocators[(place + round) % allocators.len()];
                let arguments = [&["-m", "1024"], arguments].concat();
                let (is_preloaded, environment) = (library.is_some(), library.unwrap_or_default());
                let setup = Setup { name, workers: 2, is_preloaded, environment, arguments: &arguments };
                let figures = run(&setup, scenario, seconds);
                eprintln!(
                    "round {}: {}: {name}: {:.1} us, p99 {:.1} ms",
                    round + 1,
                    scenario.0,
                    figures.cpu,
                    figures.p99
                );
                found.entry((number, name)).or_default().push(figures);
            }
        }
    }
    println!(
        "| calls | allocator | CPU us per call | min to max | hg / it | p99 ms | runs with failed calls |\n|---|---|---|---|---|---|---|"
    );
    for (number, scenario) in scenarios.iter().enumerate() {
        for (name, ..) in &allocators {
            let (it, hg) = (&found[&(number, *name)], found.get(&(number, "hg")).unwrap_or(&found[&(number, *name)]));
            let cpu = || it.iter().map(|run| run.cpu);
            let (least, most) = (cpu().fold(f64::MAX, f64::min), cpu().fold(0.0, f64::max));
            let ratio = median(hg.iter().zip(it).map(|(hg, it)| hg.cpu / it.cpu));
            let p99 = median(it.iter().map(|run| run.p99));
            let (calls, cpu) = (scenario.0, median(cpu()));
            let failed = it.iter().filter(|run| !run.is_complete).count();
            println!("| {calls} | {name} | {cpu:.1} | {least:.1} to {most:.1} | {ratio:.2} | {p99:.1} | {failed} |");
        }
    }
}
