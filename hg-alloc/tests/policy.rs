//! What a policy decides in the course of a load, cycle by cycle: no arena, no clock.

use hg_alloc::policy::{Decision, Event, Input, Policy, Rules, Sample, Summary, what_if};
use hg_alloc::profile::Profile;
use hg_probes::words::{Verdict, Why};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn rules(profile: &str) -> Rules {
    Rules {
        profile: (!profile.is_empty()).then(|| Profile::parse(profile).expect("a good profile")),
        cycle_ns: SECOND,
        granule_bytes: 16 * MIB,
        page_bytes: 2 * MIB,
        dry_run: false,
    }
}

/// An arena that does what its policy says.
struct Arena {
    policy: Policy,
    now_ns: u64,
    live: u64,
    committed: u64,
    blocked: bool,
    /// Free memory that lies in parts of pages in use.
    scattered: u64,
}

impl Arena {
    fn new(rules: Rules, live: u64, committed: u64) -> Arena {
        Arena { policy: Policy::new(rules), now_ns: 0, live, committed, blocked: false, scattered: 0 }
    }

    /// One cycle with so much live, in MiB.
    fn cycle(&mut self, live: u64) -> Decision {
        self.live = live * MIB;
        self.now_ns += SECOND;
        let (floor_bytes, ceiling_bytes) = self.policy.rules().bounds(0, 1 << 40);
        let input = Input {
            now_ns: self.now_ns,
            live_bytes: self.live,
            committed_bytes: self.committed,
            free_bytes: self.committed - self.live - self.scattered,
            floor_bytes,
            ceiling_bytes,
            blocked: self.blocked,
        };
        let decision = self.policy.step(&input).expect("a decision a cycle");
        if decision.why != Why::DryRun {
            match decision.verdict {
                Verdict::Grow => self.committed += decision.bytes,
                Verdict::Shrink => self.committed -= decision.bytes,
                _ => assert_eq!(decision.verdict, Verdict::Keep),
            }
        }
        assert!(self.committed <= ceiling_bytes.max(self.live));
        decision
    }

    /// So many cycles in which the same is decided.
    fn cycles(&mut self, count: u32, live: u64, verdict: Verdict, why: Why) {
        for cycle in 0..count {
            let decision = self.cycle(live);
            assert_eq!((decision.verdict, decision.why), (verdict, why), "cycle {cycle} of {count}: {decision:?}");
        }
    }
}

const PROFILE: &str = "scale up to 1g on 70% for 3 cycles within 10 / scale down to 64m on 30% for 4 cycles";

#[test]
fn a_ramp_is_grown_ahead_of_in_whole_granules() {
    let mut arena = Arena::new(rules(PROFILE), 0, 64 * MIB);
    arena.cycles(2, 45, Verdict::Keep, Why::Cycles);
    let decision = arena.cycle(45);
    let expected = Decision { usage: 70, limit: 70, ..Decision::new(Verdict::Grow, Why::Usage, 16 * MIB) };
    assert_eq!(decision, expected);
    // Usage fell below the threshold at once, and the window starts anew.
    arena.cycles(5, 50, Verdict::Keep, Why::Usage);
    arena.cycles(2, 60, Verdict::Keep, Why::Cycles);
    let decision = arena.cycle(75);
    assert_eq!((decision.verdict, decision.bytes), (Verdict::Grow, 32 * MIB), "75 MiB are less than 70% of 112 MiB");
}

#[test]
fn cycles_count_within_a_window_that_slides() {
    let mut arena = Arena::new(rules("scale up to 1g on 70% for 3 cycles within 5"), 0, 100 * MIB);
    // Two of any five: never.
    for _ in 0..5 {
        arena.cycles(2, 80, Verdict::Keep, Why::Cycles);
        arena.cycles(3, 40, Verdict::Keep, Why::NoScaleDown);
    }
    // Three of five, though a window that tumbles every five cycles would see two and one.
    arena.cycles(2, 40, Verdict::Keep, Why::NoScaleDown);
    arena.cycles(2, 80, Verdict::Keep, Why::Cycles);
    arena.cycles(2, 40, Verdict::Keep, Why::NoScaleDown);
    arena.cycles(1, 80, Verdict::Grow, Why::Usage);
}

#[test]
fn growth_stops_at_the_ceiling_and_says_so() {
    let mut arena =
        Arena::new(rules("scale up to 100m on 50% for 1 cycles / scale down to 16m on 9% for 2 cycles"), 0, 80 * MIB);
    let decision = arena.cycle(60);
    assert_eq!((decision.verdict, decision.bytes), (Verdict::Grow, 20 * MIB), "what is left below the ceiling");
    arena.cycles(3, 60, Verdict::Keep, Why::Ceiling);
    arena.cycles(1, 40, Verdict::Keep, Why::Usage);
}

#[test]
fn a_blocked_arena_neither_grows_nor_shrinks() {
    let mut arena = Arena::new(rules(PROFILE), 0, 256 * MIB);
    arena.cycles(40, 20, Verdict::Keep, Why::CoolOff);
    arena.blocked = true;
    arena.cycles(3, 20, Verdict::Keep, Why::Cycles);
    arena.cycles(2, 20, Verdict::Keep, Why::Blocked);
    arena.cycles(2, 250, Verdict::Keep, Why::Cycles);
    arena.cycles(5, 250, Verdict::Keep, Why::Blocked);
    arena.blocked = false;
    arena.cycles(1, 250, Verdict::Grow, Why::Usage);
}

#[test]
fn after_a_growth_low_usage_does_not_count_for_a_while() {
    let mut arena = Arena::new(rules(PROFILE), 0, 512 * MIB);
    arena.cycles(40, 100, Verdict::Keep, Why::CoolOff);
    arena.cycles(3, 100, Verdict::Keep, Why::Cycles);
    let decision = arena.cycle(100);
    assert_eq!((decision.verdict, decision.bytes), (Verdict::Shrink, 64 * MIB));
    assert_eq!((decision.usage, decision.limit), (19, 30));
    // Each cycle goes on while usage stays low, down to the threshold: 100 MiB are 30% of 333.
    arena.cycles(1, 100, Verdict::Shrink, Why::Usage);
    assert_eq!(arena.cycle(100).bytes, 50 * MIB);
    assert_eq!(arena.committed, 334 * MIB);
    arena.cycles(3, 100, Verdict::Keep, Why::Usage);
    // Somebody grows, as a request that finds nothing does: the wait begins again.
    arena.committed += 16 * MIB;
    arena.cycles(40, 50, Verdict::Keep, Why::CoolOff);
    arena.cycles(3, 50, Verdict::Keep, Why::Cycles);
    arena.cycles(1, 50, Verdict::Shrink, Why::Usage);
}

#[test]
fn shrinking_ends_at_the_floor() {
    let mut arena = Arena::new(rules(PROFILE), 0, 1024 * MIB);
    arena.cycles(40, 1, Verdict::Keep, Why::CoolOff);
    arena.cycles(3, 1, Verdict::Keep, Why::Cycles);
    let mut cycles = 0;
    while arena.cycle(1).verdict == Verdict::Shrink {
        cycles += 1;
        assert!(cycles < 20);
    }
    assert_eq!(arena.committed, 64 * MIB);
    assert!(cycles >= 5, "a quarter of the excess a cycle: {cycles}");
    arena.cycles(10, 1, Verdict::Keep, Why::AtFloor);
}

#[test]
fn what_is_not_free_cannot_be_given_back() {
    let mut arena = Arena::new(rules(PROFILE), 0, 256 * MIB);
    arena.cycles(40, 20, Verdict::Keep, Why::CoolOff);
    arena.scattered = 235 * MIB;
    arena.cycles(3, 20, Verdict::Keep, Why::Cycles);
    let decision = arena.cycle(20);
    assert_eq!((decision.verdict, decision.why, decision.bytes), (Verdict::Keep, Why::NothingFree, 188 * MIB));
    arena.scattered -= 4 * MIB;
    assert_eq!(arena.cycle(20).bytes, 4 * MIB);
}

#[test]
fn a_load_that_flaps_between_the_thresholds_moves_nothing() {
    let mut arena = Arena::new(rules(PROFILE), 0, 256 * MIB);
    arena.cycles(41, 100, Verdict::Keep, Why::Usage);
    for _ in 0..50 {
        // High too rarely, low never for long.
        arena.cycles(1, 200, Verdict::Keep, Why::Cycles);
        arena.cycles(3, 50, Verdict::Keep, Why::Cycles);
        arena.cycles(1, 100, Verdict::Keep, Why::Usage);
    }
    assert_eq!(arena.committed, 256 * MIB);
}

#[test]
fn without_scale_down_it_never_shrinks_and_says_so() {
    let mut arena = Arena::new(rules("scale up to 1g on 70% for 3 cycles"), 0, 256 * MIB);
    arena.cycles(1000, 0, Verdict::Keep, Why::NoScaleDown);
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let dry = Rules { dry_run: true, ..rules(PROFILE) };
    assert_eq!(dry.bounds(32 * MIB, 4 << 30), (32 * MIB, 4 << 30));
    let mut arena = Arena::new(dry, 0, 256 * MIB);
    arena.cycles(2, 200, Verdict::Keep, Why::Cycles);
    let decision = arena.cycle(200);
    assert_eq!((decision.verdict, decision.why, decision.bytes), (Verdict::Grow, Why::DryRun, 32 * MIB));
    arena.cycles(2, 200, Verdict::Keep, Why::Cycles);
    arena.cycles(1, 200, Verdict::Grow, Why::DryRun);
    assert_eq!(arena.committed, 256 * MIB);
}

#[test]
fn a_profile_bounds_the_arena() {
    let page = 2 * MIB;
    assert_eq!(rules(PROFILE).bounds(128 * MIB, 4 << 30), (64 * MIB, 1 << 30));
    assert_eq!(rules(PROFILE).bounds(128 * MIB, 512 * MIB), (64 * MIB, 512 * MIB), "no profile raises the cap");
    assert_eq!(rules("scale up to 1g on 70% for 3 cycles").bounds(128 * MIB, 4 << 30), (128 * MIB, 1 << 30));
    assert_eq!(rules("").bounds(128 * MIB + 1, 4 << 30), (128 * MIB + page, 4 << 30));
    let odd = rules("scale up to 99999k on 70% for 3 cycles / scale down to 11111k on 7% for 3 cycles");
    assert_eq!(odd.bounds(0, 4 << 30), (12 * MIB, 96 * MIB), "a floor is rounded up, a ceiling down");
}

#[test]
fn what_a_failing_request_took_from_the_floor_comes_back() {
    let floor_bytes = 100 * MIB;
    let input = Input {
        now_ns: 0,
        live_bytes: MIB,
        committed_bytes: 92 * MIB,
        free_bytes: 91 * MIB,
        floor_bytes,
        ceiling_bytes: 1 << 40,
        blocked: false,
    };
    for text in ["", PROFILE] {
        let mut policy = Policy::new(rules(text));
        let back = Some(Decision::new(Verdict::Grow, Why::AtFloor, 8 * MIB));
        assert_eq!(policy.step(&input), back);
        assert_eq!(policy.step(&input), back);
        assert_ne!(policy.step(&Input { blocked: true, ..input }), back);
        assert_ne!(policy.step(&Input { committed_bytes: floor_bytes, ..input }), back);
    }
}

#[test]
fn demand_is_met_before_it_comes() {
    let mut policy = Policy::new(rules(""));
    let mut step = |used: u64, committed: u64| {
        policy.step(&Input {
            now_ns: 0,
            live_bytes: used * MIB,
            committed_bytes: committed * MIB,
            free_bytes: (committed - used) * MIB,
            floor_bytes: 0,
            ceiling_bytes: 200 * MIB,
            blocked: false,
        })
    };
    assert_eq!(step(60, 64), None, "nothing is known of the load yet");
    assert_eq!(step(60, 64), None);
    assert_eq!(step(62, 64), None, "what came once fits once more");
    let grow = |mib, usage| Some(Decision { usage, ..Decision::new(Verdict::Grow, Why::Usage, mib * MIB) });
    assert_eq!(step(75, 80), grow(16, 93));
    assert_eq!(step(75, 96), None);
    assert_eq!(step(180, 184), grow(16, 97), "an eighth of what there is, or a granule");
    assert_eq!(step(200, 200), None, "as far as the ceiling lets it");
    assert_eq!(step(140, 200), None);
    assert_eq!(step(190, 192), grow(8, 98));
    assert_eq!(step(200, 200), None);
    assert_eq!(step(10, 200), None);
}

fn day(committed: u64) -> impl Iterator<Item = Sample> {
    // A quiet hour at 100 MiB, a busy one at 800, a quiet one; a sample a second.
    (0..10_800u64).map(move |second| {
        let used = match second {
            0..3600 => 100,
            3600..3700 => 100 + (second - 3600) * 7,
            3700..7200 => 800,
            _ => 100,
        };
        Sample { at_ns: second * SECOND, used_bytes: used * MIB, committed_bytes: committed * MIB }
    })
}

#[test]
fn what_a_profile_would_have_made_of_a_day() {
    let mut events = Vec::new();
    let profile = rules("scale up to 2g on 80% for 3 cycles within 5 / scale down to 128m on 40% for 60 cycles");
    let summary = what_if(profile, 128 * MIB, 4 << 30, day(1024), |sample, event, committed| {
        assert!(sample.used_bytes <= committed && committed <= 2 << 30);
        if !matches!(event, Event::Decided(Decision { verdict: Verdict::Keep, .. })) {
            events.push((sample.at_ns / SECOND, event));
        }
    });
    assert_eq!(summary.samples, 10_800);
    assert_eq!(summary.used_peak_bytes, 800 * MIB);
    assert_eq!((summary.grows_exhausted, summary.refusals), (0, 0), "{events:?}");
    assert!(summary.grows_ahead > 0 && summary.shrinks > 0);
    assert_eq!(summary.recorded_mean_bytes, 1024 * MIB);
    assert!((950 * MIB..1100 * MIB).contains(&summary.committed_peak_bytes), "{summary:?}");
    assert!((400 * MIB..600 * MIB).contains(&summary.committed_mean_bytes), "{summary:?}");
    let first_shrink =
        events.iter().find(|(_, event)| matches!(event, Event::Decided(d) if d.verdict == Verdict::Shrink));
    assert!(first_shrink.is_some_and(|(second, _)| (7259..7262).contains(second)), "{first_shrink:?}");
}

#[test]
fn a_ceiling_too_low_is_seen_in_the_trace() {
    let mut missing = 0;
    let low = rules("scale up to 512m on 80% for 3 cycles");
    let summary = what_if(low, 128 * MIB, 4 << 30, day(1024), |_, event, _| {
        if let Event::Refused(bytes) = event {
            missing = missing.max(bytes);
        }
    });
    assert_eq!(missing, 288 * MIB);
    assert!(summary.refusals > 3400);
    assert_eq!(summary.committed_peak_bytes, 512 * MIB);
    assert_eq!(what_if(low, 0, 1 << 30, [], |_, _, _| panic!("nothing happens")), Summary::default());
}

#[test]
fn the_most_extreme_figures_do_no_harm() {
    for bytes in [0, 1, u64::MAX / 2, u64::MAX] {
        for page_bytes in [0, 1, u64::MAX] {
            let extreme = Rules { granule_bytes: page_bytes, page_bytes, ..rules(PROFILE) };
            let samples =
                (0..200).map(|at_ns| Sample { at_ns: at_ns << 56, used_bytes: bytes, committed_bytes: bytes });
            what_if(extreme, bytes, bytes, samples, |_, _, _| {});
        }
    }
}
