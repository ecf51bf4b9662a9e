//! CPU time of a Kamailio per call, by allocator: its own three, and hg by way of `libhg_sip.so`. Of an OpenSIPS, if the variable
//! `OPENSIPS` names the folder where one was built.
//!
//! `cargo bench -p hg-sip -- [ROUNDS [SECONDS]] [ALLOCATOR...] [SCENARIO...] [free]`. In each round, for each scenario, one server for each
//! allocator runs, all at the same time: a machine that is slower for a while is so for all of them. Printed are medians over the
//! rounds, and of the ratios within a round. The time is that of all threads of all of the server's processes, of the kernel for
//! them too; servers have one CPU and callers another (but with `free`), and these are not counted. A transaction is kept for five seconds, so that
//! calls are counted once as many end as begin: else the time would be that of touching new memory.

#[path = "../tests/common/mod.rs"]
mod common;

use common::server::{Program, Server, Setup, Transport};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the server is given, and what the library is told where it is loaded.
type Variant = (&'static str, &'static [&'static str], Option<&'static [(&'static str, &'static str)]>);

const KAMAILIO: [Variant; 7] = [
    ("qm", &["-x", "qm", "-X", "qm"], None),
    ("fm", &["-x", "fm", "-X", "fm"], None),
    ("tlsf", &["-x", "tlsf", "-X", "tlsf"], None),
    ("hg", &["-x", "fm", "-X", "fm"], Some(&[])),
    ("hg-patch", &["-x", "fm", "-X", "fm"], Some(&[("HG_SIP_HOOK", "patch")])),
    ("hg-thp", &["-x", "fm", "-X", "fm"], Some(&[("HG_TIER", "thp")])),
    ("hg-cpus", &["-x", "fm", "-X", "fm"], Some(&[("HG_CPUS", "auto")])),
];

const OPENSIPS: [Variant; 5] = [
    ("Q_MALLOC", &["-a", "Q_MALLOC"], None),
    ("F_MALLOC", &["-a", "F_MALLOC"], None),
    ("hg", &["-a", "F_MALLOC"], Some(&[])),
    ("hg-thp", &["-a", "F_MALLOC"], Some(&[("HG_TIER", "thp")])),
    ("hg-patch", &["-a", "F_MALLOC"], Some(&[("HG_SIP_HOOK", "patch")])),
];

/// Those that are compared where none is named.
const DEFAULT: [&str; 6] = ["qm", "fm", "tlsf", "hg", "Q_MALLOC", "F_MALLOC"];

/// Where the OpenSIPS was built that is to be measured, if it is to be one.
fn built() -> Option<PathBuf> {
    std::env::var_os("OPENSIPS").map(PathBuf::from)
}

/// What can be compared in that server.
fn allocators() -> &'static [Variant] {
    if built().is_some() { &OPENSIPS } else { &KAMAILIO }
}

/// First argument of a process that runs one variant.
const ONE: &str = "one-variant";

/// An argument: processes run where the kernel puts them, which `hg-cpus` is for.
const FREE: &str = "free";

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
    let of = |thread: String| {
        let text = std::fs::read_to_string(thread + "/schedstat").unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
    };
    Duration::from_nanos(server.processes().into_iter().flat_map(threads).map(of).sum())
}

/// The folders of a process's threads.
fn threads(pid: u32) -> impl Iterator<Item = String> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/task"));
    folder.into_iter().flatten().flatten().filter_map(|thread| thread.path().into_os_string().into_string().ok())
}

/// Moves all threads of a process to one CPU.
fn place(pid: u32, cpu: usize) {
    for thread in threads(pid).filter_map(|thread| thread.rsplit('/').next()?.parse().ok()) {
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

fn run(setup: &Setup, scenario: (&str, bool, Transport, usize), seconds: usize, is_free: bool) -> Figures {
    let (_, is_relayed, transport, rate) = scenario;
    let server = Server::start(setup).expect("the server and sipp");
    if !is_free {
        // Where each runs by chance would be the largest part of what is measured.
        server.processes().into_iter().for_each(|pid| place(pid, 0));
        place(std::process::id(), 1);
    }
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

/// Runs one variant in this process, and prints its figures for the process that compares.
fn run_one(name: &str, scenario: &str, seconds: usize, is_free: bool) {
    let (name, arguments, library) =
        allocators().iter().copied().find(|(known, ..)| *known == name).expect("an allocator");
    let scenario = SCENARIOS.into_iter().find(|(known, ..)| *known == scenario).expect("a scenario");
    let arguments = [&["-m", "1024"], arguments].concat();
    let (is_preloaded, environment) = (library.is_some(), library.unwrap_or_default());
    let built = built();
    let program = built.as_deref().map_or(Program::Kamailio, Program::OpenSips);
    let setup = Setup { program, name, workers: 2, is_preloaded, environment, arguments: &arguments };
    let Figures { cpu, p99, is_complete } = run(&setup, scenario, seconds, is_free);
    println!("{cpu} {p99} {is_complete}");
}

/// Starts [`run_one`] in a process of its own.
fn start(name: &str, scenario: &str, seconds: usize, is_free: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command
        .args([ONE, name, scenario, &seconds.to_string(), if is_free { FREE } else { "" }])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn figures(child: Child) -> Figures {
    let output = child.wait_with_output().expect("figures");
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let [cpu, p99, is_complete] = words[..] else { panic!("a run failed: {text}") };
    let number = |word: &str| word.parse().expect("a number");
    Figures { cpu: number(cpu), p99: number(p99), is_complete: is_complete == "true" }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, name, scenario, seconds, free] = &arguments[..]
        && word == ONE
    {
        return run_one(name, scenario, seconds.parse().expect("seconds"), free == FREE);
    }
    let numbers: Vec<usize> = arguments.iter().filter_map(|word| word.parse().ok()).collect();
    let (rounds, seconds) = (*numbers.first().unwrap_or(&9), *numbers.get(1).unwrap_or(&5));
    let is_named = |name: &str| arguments.iter().any(|word| word == name);
    let any = allocators().iter().any(|(name, ..)| is_named(name));
    let wanted = |name: &str| if any { is_named(name) } else { DEFAULT.contains(&name) };
    let allocators: Vec<Variant> = allocators().iter().copied().filter(|(name, ..)| wanted(name)).collect();
    let any = SCENARIOS.iter().any(|(name, ..)| is_named(name));
    let scenarios: Vec<_> = SCENARIOS.into_iter().filter(|(name, ..)| !any || is_named(name)).collect();
    common::library();
    let mut found: BTreeMap<(usize, &str), Vec<Figures>> = BTreeMap::new();
    for round in 0..rounds {
        for (number, (scenario, ..)) in scenarios.iter().enumerate() {
            // Whoever starts first is another one each time.
            let order = (0..allocators.len()).map(|place| allocators[(place + round) % allocators.len()].0);
            let children: Vec<_> = order.map(|name| (name, start(name, scenario, seconds, is_named(FREE)))).collect();
            for (name, child) in children {
                let figures = figures(child);
                let Figures { cpu, p99, .. } = figures;
                eprintln!("round {}: {scenario}: {name}: {cpu:.1} us, p99 {p99:.1} ms", round + 1);
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
