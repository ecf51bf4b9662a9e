//! Samples are an honest picture: their weights add up to what was allocated, whatever the pattern, and each is freed once.
//!
//! bpftrace listens, since only a listener switches sampling on. Skipped, with a line that says so, without it or without
//! root.

mod common;

use hg_alloc::raw;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCENARIO: &str = "HG_TEST_SCENARIO";

/// Allocations in turns with their frees: never a refill, which is where a cheaper sampler would look. Then some that stay.
const PAIRS: usize = 3_000_000;
const PAIR_BYTES: usize = 200;
const HELD: usize = 4000;
const HELD_BYTES: usize = 30_000;
const LARGE: usize = 300;
const LARGE_BYTES: usize = 1 << 20;

fn workload() {
    for _ in 0..PAIRS {
        raw::free(std::hint::black_box(raw::malloc(PAIR_BYTES)));
    }
    let held: Vec<_> = (0..HELD).map(|_| raw::malloc(HELD_BYTES)).collect();
    for _ in 0..LARGE {
        raw::free(std::hint::black_box(raw::malloc(LARGE_BYTES)));
    }
    held.into_iter().for_each(raw::free);
}

/// The figure behind `@name: ` in what bpftrace printed.
fn figure(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("@{name}: ")));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no @{name} in:\n{text}"))
}

#[test]
fn weights_add_up_and_every_sample_is_freed() {
    if std::env::var_os(SCENARIO).is_some() {
        return workload();
    }
    if !common::capability::may_trace() || Command::new("bpftrace").arg("--version").output().is_err() {
        eprintln!("skipped: needs CAP_SYS_ADMIN and bpftrace");
        return;
    }
    let program = std::env::current_exe().expect("own path");
    let at = format!("usdt:{}:hg", program.display());
    let script = format!(
        "{at}:sample_alloc /arg2 == {PAIR_BYTES}/ {{ @pairs = sum(arg3); }}
         {at}:sample_alloc /arg2 == {HELD_BYTES}/ {{ @held = sum(arg3); }}
         {at}:sample_alloc /arg2 == {LARGE_BYTES}/ {{ @large = sum(arg3); }}
         {at}:sample_alloc {{ @allocs = count(); }}
         {at}:sample_free {{ @frees = count(); }}"
    );
    let mut tracer = Command::new("bpftrace")
        .args(["-e", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bpftrace starts");
    let mut lines = BufReader::new(tracer.stdout.take().expect("piped"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("bpftrace says that it attaches");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !listened_to(&program) {
        if Instant::now() >= deadline {
            stop(&mut tracer);
            panic!("bpftrace never attached: {first}");
        }
    }
    let status = Command::new(&program)
        .args(["--exact", "weights_add_up_and_every_sample_is_freed"])
        .env(SCENARIO, "workload")
        .status()
        .expect("the test program runs again");
    assert!(status.success());
    stop(&mut tracer);
    let mut text = String::new();
    lines.read_to_string(&mut text).expect("bpftrace prints its maps");

    // The cells of 200 bytes have 224: weights are in bytes of cells. an even draw deviates by 0.6 of its mean, so 1200
    // samples by 2%, and 250 by 4%.
    let close = |name, truth: usize, part: f64| {
        let sum = figure(&text, name);
        assert!((sum / truth as f64 - 1.0).abs() < part, "@{name} is {sum}, truth {truth}");
    };
    close("pairs", PAIRS * 224, 0.15);
    close("held", HELD * 32768, 0.25);
    close("large", LARGE * LARGE_BYTES, 0.05);
    assert_eq!(figure(&text, "allocs"), figure(&text, "frees"), "{text}");
}

/// Asks bpftrace to end until it does: one that is just starting forgets the first signal.
fn stop(tracer: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while tracer.try_wait().expect("our own child").is_none() {
        let signal = if Instant::now() < deadline { libc::SIGINT } else { libc::SIGKILL };
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(tracer.id() as i32, signal) };
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a process started now finds a listener: a scenario too small to be sampled tells by its semaphore's word.
fn listened_to(program: &std::path::Path) -> bool {
    let output =
        Command::new(program).args(["--exact", "semaphore_is_up", "--nocapture"]).env(SCENARIO, "semaphore").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("listening: true"))
}

#[test]
fn semaphore_is_up() {
    println!("listening: {}", hg_probes::listening::sample_alloc() && hg_probes::listening::sample_free());
}
