//! Sizes and profiles in a real arena, each in a process of its own: what is committed follows the load by the rules, the
//! ring of the stats page says why, and a bad setting costs one line and changes nothing.
//!
//! The test is the host that ticks, but where it says so; cycles are 10 ms long.

mod common;

use common::{in_child, page};
use hg_alloc::raw;
use hg_probes::page::DECISIONS;
use hg_probes::words::{Cause, Verdict, Why};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn committed() -> u64 {
    page().header.committed_bytes.load(Relaxed)
}

/// The decisions in the ring, the oldest first: verdict, reason, times.
fn decisions() -> Vec<(Verdict, Why, u64)> {
    let ring = &page().policy;
    assert_eq!(ring.seq.load(Relaxed) % 2, 0, "nobody is writing");
    let written = ring.written.load(Relaxed);
    (written.saturating_sub(DECISIONS as u64)..written)
        .map(|number| {
            let entry = &ring.decisions[number as usize % DECISIONS];
            let verdict = Verdict::from_u64(entry.verdict.load(Relaxed).into()).expect("a verdict");
            let why = Why::from_u64(entry.why.load(Relaxed).into()).expect("a reason");
            (verdict, why, entry.times.load(Relaxed))
        })
        .collect()
}

fn was_said(verdict: Verdict, why: Why) -> bool {
    decisions().iter().any(|decision| (decision.0, decision.1) == (verdict, why))
}

/// Ticks until something is so, for at most ten seconds.
fn tick_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "not {what}: {} committed, {:?}", committed(), decisions());
        hg_alloc::tick();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number of the last decision, and how often it was said.
fn last_said() -> (u64, u64) {
    let ring = &page().policy;
    let written = ring.written.load(Relaxed);
    let last = written.checked_sub(1).map(|last| &ring.decisions[last as usize % DECISIONS]);
    (written, last.map_or(0, |last| last.times.load(Relaxed)))
}

/// So many MiB in blocks of a quarter.
fn hold(mib: usize) -> Vec<*mut u8> {
    let blocks: Vec<_> = (0..mib * 4).map(|_| raw::malloc(256 << 10)).collect();
    assert!(blocks.iter().all(|block| !block.is_null()));
    blocks
}

const CYCLE: (&str, &str) = ("HG_PROFILE_CYCLE_MS", "10");
const NO_THREAD: (&str, &str) = ("HG_THREAD", "0");

#[test]
fn a_profile_grows_ahead_of_demand_and_shrinks_again() {
    let profile = "scale up to 512m on 70% for 3 cycles within 5 / scale down to 64m on 30% for 3 cycles";
    let variables = [("HG_SIZE", "96m:1g"), ("HG_PROFILE", profile), CYCLE, NO_THREAD];
    if in_child("a_profile_grows_ahead_of_demand_and_shrinks_again", &variables).is_some() {
        return;
    }
    raw::free(raw::malloc(1));
    let header = &page().header;
    assert_eq!(committed(), 96 * MIB, "INIT");
    assert_eq!((header.floor_bytes.load(Relaxed), header.ceiling_bytes.load(Relaxed)), (64 * MIB, 512 * MIB));
    let blocks = hold(100);
    let before = committed();
    tick_until("grown ahead", || committed() > before);
    assert!(was_said(Verdict::Grow, Why::Usage), "{:?}", decisions());
    assert!(
        committed() * 70 > 100 * MIB * 100 && committed() < 180 * MIB,
        "to below 70%: {before} {} {:?}",
        committed(),
        decisions()
    );
    tick_until("content", || decisions().last().is_some_and(|last| last.0 == Verdict::Keep && last.2 > 5));

    // A profile decides: what is free stays, however much it is, until the cool-off and the cycles are over.
    let before = committed();
    blocks.into_iter().for_each(raw::free);
    assert_eq!(committed(), before);
    tick_until("cooling off", || was_said(Verdict::Keep, Why::CoolOff));
    tick_until("shrunk", || committed() == 64 * MIB);
    assert!(was_said(Verdict::Shrink, Why::Usage), "{:?}", decisions());
    tick_until("at the floor", || was_said(Verdict::Keep, Why::AtFloor));
    assert_eq!(committed(), 64 * MIB);
    assert!(decisions().iter().any(|decision| decision.2 > 1), "equal decisions in a row are one");

    hg_alloc::trim();
    assert_eq!(committed(), 64 * MIB, "a trim leaves the floor");
}

#[test]
fn a_profile_brings_the_thread_that_it_needs() {
    let name = "a_profile_brings_the_thread_that_it_needs";
    let profile = "scale up to 512m on 70% for 3 cycles within 5 / scale down to 64m on 30% for 3 cycles";
    if in_child(name, &[("HG_PROFILE", profile), CYCLE]).is_some() {
        return;
    }
    let wait_until = |what: &str, done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(10), "not {what}: {} committed", committed());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let blocks = hold(100);
    wait_until("maintained", &|| page().header.maintenance_tid.load(Relaxed) != 0);
    wait_until("grown ahead", &|| committed() * 70 > 100 * MIB * 100);
    blocks.into_iter().for_each(raw::free);
    wait_until("shrunk", &|| committed() == 64 * MIB);
}

#[test]
fn a_ceiling_is_kept_and_a_profile_without_scale_down_never_shrinks() {
    let variables = [("HG_CAP", "1g"), ("HG_PROFILE", "scale up to 128m on 50% for 1 cycles"), CYCLE, NO_THREAD];
    if in_child("a_ceiling_is_kept_and_a_profile_without_scale_down_never_shrinks", &variables).is_some() {
        return;
    }
    let blocks = hold(90);
    tick_until("at the ceiling", || was_said(Verdict::Keep, Why::Ceiling));
    assert_eq!(committed(), 128 * MIB);
    // A request that finds nothing is bound by it too.
    assert!(raw::malloc(60 << 20).is_null());
    assert!(page().header.grows_refused[Cause::Ceiling as usize].load(Relaxed) > 0);
    blocks.into_iter().for_each(raw::free);
    let before = committed();
    tick_until("saying so", || was_said(Verdict::Keep, Why::NoScaleDown));
    tick_until("sure", || decisions().last().is_some_and(|last| last.2 > 50));
    assert_eq!(committed(), before);
}

#[test]
fn a_dry_run_only_tells() {
    let profile = "scale up to 512m on 50% for 2 cycles / scale down to 16m on 30% for 2 cycles";
    let variables = [("HG_SIZE", "64m:1g"), ("HG_PROFILE", profile), ("HG_PROFILE_DRY_RUN", "1"), CYCLE, NO_THREAD];
    if in_child("a_dry_run_only_tells", &variables).is_some() {
        return;
    }
    let blocks = hold(60);
    let header = &page().header;
    assert_eq!((header.floor_bytes.load(Relaxed), header.ceiling_bytes.load(Relaxed)), (64 * MIB, 1024 * MIB));
    let before = (committed(), header.grows.load(Relaxed));
    tick_until("saying it would grow", || was_said(Verdict::Grow, Why::DryRun));
    assert_eq!((committed(), header.grows.load(Relaxed)), before);
    assert!(!was_said(Verdict::Grow, Why::Usage));
    blocks.into_iter().for_each(raw::free);
}

#[test]
fn what_keeps_a_page_is_named() {
    let profile = "scale up to 512m on 99% for 9 cycles / scale down to 1m on 98% for 1 cycles";
    if in_child("what_keeps_a_page_is_named", &[("HG_PROFILE", profile), CYCLE, NO_THREAD]).is_some() {
        return;
    }
    // Every span keeps some cells, one page fewer than the others; what is free besides goes.
    let mut cells: Vec<_> = (0..16 << 10).map(|_| raw::malloc(4096) as usize).collect();
    cells.sort_unstable();
    let span = |cell: usize| cell >> 15;
    let base = page().header.base_address.load(Relaxed) as usize;
    let chosen = (cells[cells.len() / 2] - base) >> 21;
    let mut kept = 0;
    let mut last = 0;
    for cell in cells {
        let on_chosen = (cell - base) >> 21 == chosen;
        let first = span(cell) != span(last);
        if first && !(on_chosen && kept > 0) {
            kept += usize::from(on_chosen);
        } else {
            raw::free(cell as *mut u8);
        }
        last = cell;
    }
    hg_alloc::trim();
    tick_until("naming it", || was_said(Verdict::Keep, Why::PinnedByCells));
    tick_until("having looked at every page", || {
        let ring = &page().policy;
        let last = &ring.decisions[(ring.written.load(Relaxed) - 1) as usize % DECISIONS];
        last.why.load(Relaxed) == Why::PinnedByCells as u32 && last.page.load(Relaxed) as usize == chosen
    });
    let ring = &page().policy;
    let last = &ring.decisions[(ring.written.load(Relaxed) - 1) as usize % DECISIONS];
    assert_eq!((last.class.load(Relaxed), last.cells.load(Relaxed)), (4096, 1));
}

#[test]
fn sizes_and_profiles_that_cannot_be_get_one_line_each() {
    let good = "scale up to 256m on 70% for 3 cycles";
    let cases: [(&[(&str, &str)], &str); 7] = [
        (&[("HG_SIZE", "64m:8x")], "hg: HG_SIZE: column 6: want the unit k, m, g or t; using HG_CAP or its default"),
        (
            &[("HG_SIZE", "64m:1g"), ("HG_CAP", "2g")],
            "hg: HG_SIZE and HG_CAP name different caps; using that of HG_SIZE",
        ),
        (
            &[("HG_PROFILE", "scale up to 2g on 130%")],
            "hg: HG_PROFILE: column 19: want a percentage from 1 to 100; using none",
        ),
        (
            &[("HG_PROFILE", "scale up to 2g on 70% for 3 cycles\nscale down to 3g on 30% for 9 cycles")],
            "hg: HG_PROFILE: line 2 column 15: want a size below that of `scale up`; using none",
        ),
        (
            &[("HG_SIZE", "256m:1g"), ("HG_PROFILE", good)],
            "hg: HG_PROFILE: `scale up` ends at or below the initial size of HG_SIZE; using none",
        ),
        (
            &[("HG_CAP", "128m"), ("HG_PROFILE", good)],
            "hg: HG_PROFILE: `scale up` ends above the cap, which stays the limit",
        ),
        (
            &[("HG_PROFILE", good), ("HG_PROFILE_CYCLE_MS", "1")],
            "hg: HG_PROFILE_CYCLE_MS=1: want milliseconds from 10 to 3600000; using the default",
        ),
    ];
    let name = "sizes_and_profiles_that_cannot_be_get_one_line_each";
    for (variables, line) in cases {
        let Some(text) = in_child(name, variables) else {
            raw::free(raw::malloc(1));
            return;
        };
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("hg: ")).collect();
        assert_eq!(lines, [line], "with {variables:?}");
    }
}

#[test]
fn the_initial_size_is_there_from_the_start_and_stays() {
    if in_child("the_initial_size_is_there_from_the_start_and_stays", &[("HG_SIZE", "100m:200m")]).is_some() {
        return;
    }
    raw::free(raw::malloc(1));
    let header = &page().header;
    assert_eq!(header.reserved_bytes.load(Relaxed), 200 * MIB);
    let first = committed();
    assert!((100 * MIB..=112 * MIB).contains(&first), "{first}");
    for _ in 0..3 {
        hold(150).into_iter().for_each(raw::free);
        hg_alloc::trim();
        assert_eq!(committed(), 100 * MIB);
        hg_alloc::tick();
    }
    assert!(was_said(Verdict::Keep, Why::AtFloor), "{:?}", decisions());
    assert!(raw::malloc(201 << 20).is_null());
    // A request that fails had all free memory joined, and yet what is to stay committed is.
    let scattered = hold(150);
    let (kept, freed): (Vec<_>, Vec<_>) = scattered.into_iter().enumerate().partition(|(index, _)| index % 32 == 0);
    freed.into_iter().for_each(|(_, block)| raw::free(block));
    assert!(raw::malloc(150 << 20).is_null());
    assert!((100 * MIB..=200 * MIB).contains(&committed()), "{}", committed());
    kept.into_iter().for_each(|(_, block)| raw::free(block));
}

#[test]
fn a_fork_in_the_middle_of_a_step_leaves_no_half_of_it() {
    let variables = [("HG_PROFILE", "scale up to 1g on 70% for 3 cycles"), CYCLE, NO_THREAD];
    if in_child("a_fork_in_the_middle_of_a_step_leaves_no_half_of_it", &variables).is_some() {
        return;
    }
    use std::sync::atomic::{AtomicBool, Ordering};
    static DONE: AtomicBool = AtomicBool::new(false);
    raw::free(raw::malloc(1));
    let ticker = std::thread::spawn(|| {
        while !DONE.load(Ordering::Relaxed) {
            hg_alloc::tick();
        }
    });
    for _ in 0..200 {
        // SAFETY: the child only ticks, looks at its page and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = last_said();
            let whole = page().policy.seq.load(Relaxed).is_multiple_of(2);
            let start = Instant::now();
            let mut said = false;
            while !said && start.elapsed() < Duration::from_secs(5) {
                hg_alloc::tick();
                said = last_said() != before;
            }
            // SAFETY: nothing is to be cleaned up.
            unsafe { libc::_exit(i32::from(!(whole && said))) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
    }
    DONE.store(true, Ordering::Relaxed);
    ticker.join().expect("the thread that ticks");
}
