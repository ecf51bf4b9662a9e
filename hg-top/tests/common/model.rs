//! A made-up server, with figures like those of a real one, for tests of the screens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hg_probes::words::{Cause, LockId, Reason, StallKind, Tier, TierReason, Verdict, Why};
use hg_probes::{ProbeId, maps};
use hg_top::app::App;
use hg_top::cli::Cli;
use hg_top::event::{Event, Who};
use hg_top::model::map::{Cells, Detail, Holds, Large, Page, PageMap, Slices};
use hg_top::model::member::{Counts, Stall};
use hg_top::model::{
    Arena, ArenaId, Class, Counters, Decision, EbpfState, Figures, FileId, Histogram, HoldWait, Identity, KernelMemory,
    Lock, Member, Part, Policy, Process, Shared, Snapshot,
};

/// A second on the clock of the targets.
const SECOND: u64 = 1_000_000_000;

/// When the made-up server was looked at last, on the clock of the targets.
pub(crate) const NOW: u64 = 90_012 * SECOND;

/// The moment of a sample, for people: 09:41:00 UTC and later.
fn time(sample: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_796_031_660 + sample)
}

fn histogram(count: u64, peak: usize, max_ns: u64, stalls: u64) -> Histogram {
    let mut histogram = Histogram {
        count,
        sum_ns: count << peak,
        max_ns,
        max_at_ns: NOW - 2 * SECOND,
        max_tid: 4250,
        stalls,
        ..Histogram::default()
    };
    histogram.buckets[peak] = count - count / 5 - count / 50;
    histogram.buckets[peak + 1] = count / 5;
    histogram.buckets[peak + 4] = count / 50;
    histogram.buckets[hg_probes::page::bucket(max_ns)] += 1;
    histogram
}

fn class(size: u32, sample: u64) -> (u32, Class) {
    let weight = u64::from(4096 / size.max(16)) + 1;
    let refills = weight * (900 + 13 * sample);
    let counters = Counters {
        refills,
        reused: refills * 30,
        carved: weight * (400 + 2 * sample),
        flushes: refills / 2,
        flushed: refills * 29,
        drained: 0,
    };
    let live = counters.out().saturating_sub(64);
    let cells = live + live / 6 + 64;
    let class = Class {
        total: Some(counters),
        traced: Some(Counters { refills: weight * 13 * sample, ..Counters::default() }),
        front_cells: Some(64),
        transfer_cells: 32,
        spans: cells * u64::from(size) / 32_768 + 1,
        cells,
        central_cells: cells - live,
        span_bytes: cells * u64::from(size),
        torn: false,
    };
    (size, class)
}

fn arena(sample: u64) -> Arena {
    let sizes = [16, 32, 48, 64, 80, 96, 128, 192, 256, 320, 512, 768, 1024, 2048, 4096, 8192, 16_384, 65_536, 262_144];
    let lock = |id, reason, count: u64, peak, hold_max, wait_max| {
        let stalls = u64::from(hold_max > 1_000_000);
        let hold = histogram(count + count / 50 * sample, peak, hold_max, stalls);
        let wait = histogram(count + count / 50 * sample, 0, wait_max, 0);
        ((id, reason), Lock { total: Some(HoldWait { hold, wait }), traced: None, torn: false })
    };
    let classes: BTreeMap<u32, Class> = sizes.into_iter().map(|size| class(size, sample)).collect();
    let spans = classes.values().map(|class| class.span_bytes).sum::<u64>();
    Arena {
        name: "malloc".into(),
        figures: Some(Figures {
            shared: Some(false),
            tier: Some(Tier::Thp),
            tier_wanted: Some(Tier::Hugetlb),
            tier_reason: Some(TierReason::PoolEmpty),
            reserved: 64 << 30,
            committed: spans + (120 << 20),
            committed_peak: spans + (180 << 20),
            free_dirty: 24 << 20,
            free_clean: 40 << 20,
            spans,
            large: 56 << 20,
            large_count: 7,
            large_allocs: 1234,
            large_frees: 1227,
            metadata: 6 << 20,
            grows: 31,
            shrinks: 4,
            corruptions: vec![0; 8],
            allocs_failed: vec![0; 16],
            grows_refused: vec![0, 0, 0, 0, 0, 0, 2, 0],
            page_bytes: 2 << 20,
            slice_bytes: 32 << 10,
            stall_us: 1000,
            fronts: (8, 12),
            by_mm_cid: true,
            created_at: NOW - 11_520 * SECOND,
            tier_bytes: vec![0, 96 << 20, 0, spans, 24 << 20],
            tier_reasons: vec![3, 0, 0, 0, 2, 19, 0, 0, 0, 4],
            floor: 16 << 20,
            ceiling: 4 << 30,
            used_peak: spans + (140 << 20),
            maintenance_tid: 4260,
            decay_ms: 10_000,
            pinned: 24 << 20,
            pin_wanted: true,
            pin_errno: 12,
            limbo: 0,
            blocked_cause: None,
            ..Figures::default()
        }),
        policy: Some(policy()),
        classes,
        locks: BTreeMap::from([
            lock(LockId::class(64), Reason::Refill, 130_000, 8, 4_200_000, 210_000),
            lock(LockId::class(64), Reason::Flush, 120_000, 8, 61_000, 90_000),
            lock(LockId::class(1024), Reason::Refill, 9_100, 9, 33_000, 1_400),
            lock(LockId::GRID, Reason::Grow, 31, 11, 44_000, 900),
            lock(LockId::GRID, Reason::Large, 2_461, 10, 120_000, 1_200_000),
        ]),
        torn: 0,
    }
}

fn policy() -> Policy {
    let decision = |ago: u64, times, verdict, why, bytes| Decision {
        at: NOW - ago * SECOND,
        times,
        verdict: Some(verdict),
        why: Some(why),
        bytes,
        page: 17,
        class: 4096,
        cells: 1,
        percent: (0, 0),
    };
    Policy {
        ticks: 11_519,
        last_tick_at: NOW - SECOND * 2 / 5,
        written: 214,
        decisions: vec![
            decision(2, 3, Verdict::Keep, Why::PinnedByCells, 0),
            decision(5, 1, Verdict::Shrink, Why::Idle, 4 << 20),
            decision(9, 1, Verdict::Drain, Why::Idle, 640 << 10),
            Decision { percent: (83, 80), ..decision(41, 1, Verdict::Grow, Why::Usage, 16 << 20) },
            decision(300, 120, Verdict::Keep, Why::Young, 2 << 20),
            decision(900, 4, Verdict::Keep, Why::AtFloor, 0),
        ],
    }
}

/// An arena's pages: fuller at the front, some that little keeps, some given back.
pub(crate) fn page_map() -> PageMap {
    let page = |index: u64| {
        let slices = match index % 23 {
            22 => Slices { dirty: 64, ..Slices::default() },
            21 if index > 100 => Slices { fresh: 64, ..Slices::default() },
            17..21 if index > 60 => Slices { released: 64, ..Slices::default() },
            13 => Slices { span: 12, large: 20, dirty: 32, ..Slices::default() },
            7 if index > 40 => Slices { span: 64, ..Slices::default() },
            _ => Slices { span: 64, ..Slices::default() },
        };
        let full = 64 - index * 7 % 64 * index.min(160) / 160;
        let used = match (index % 23, slices) {
            (7, _) if index > 40 => 4096 * (index % 5 + 1),
            (_, slices) => (slices.span * 32_768 * full / 64) + slices.large * 32_768,
        };
        let tier = if index % 11 == 3 { Tier::Base } else { Tier::Thp };
        let tier = if index < 12 { Tier::Hugetlb } else { tier };
        Page { slices, used, tier: Some(tier), pinned: index < 12, mixed: false, head: (index * 64) as u32 }
    };
    let mut pages: Vec<Page> = (0..300).map(page).collect();
    pages[211] = Page { slices: Slices { busy: 64, ..Slices::default() }, ..pages[211] };
    pages[299] = Page { slices: Slices { damaged: 2, fresh: 62, ..Slices::default() }, ..pages[299] };
    PageMap {
        read_at: NOW - SECOND * 2 / 5,
        took: Duration::from_millis(3),
        base: 0x7f12_3000_0000,
        page_bytes: 2 << 20,
        slice_bytes: 32 << 10,
        pages,
        left_out: 0,
    }
}

/// What keeps page 53: one cell of 4 KiB, and what is cached.
pub(crate) fn page_detail() -> Detail {
    let mut strip = vec![Holds::Released; 64];
    strip[..24].fill(Holds::Span(0));
    strip[24] = Holds::Span(12);
    strip[25..40].fill(Holds::Dirty);
    strip[40..44].fill(Holds::Fresh);
    let cells = |spans, live, cached, free| Cells { spans, live, cached, free, damaged: 0 };
    Detail {
        pages: 53..54,
        read_at: NOW - SECOND / 5,
        strip,
        classes: BTreeMap::from([(64, cells(1, 0, 31, 481)), (4096, cells(1, 1, 0, 7)), (8192, cells(2, 0, 0, 64))]),
        large: Vec::<Large>::new(),
        large_count: 0,
        unreadable: 0,
    }
}

fn process(pid: u32, comm: &str, role: &str, sample: u64) -> Process {
    let arena = arena(sample);
    let rss = arena.figures.as_ref().map_or(0, |f| f.spans + f.large + f.free_dirty + f.metadata) + (33 << 20);
    let identity = Identity {
        start_ticks: 77,
        exe: format!("/usr/bin/{comm}"),
        comm: comm.into(),
        role: role.into(),
        started: time(0) - Duration::from_secs(11_520),
        ..Identity::unknown(pid)
    };
    Process {
        read_at: NOW - (12 - sample) * SECOND - SECOND / 5,
        memory: Some(KernelMemory { rss, rss_file: 9 << 20, threads: 5, ..KernelMemory::default() }),
        arenas: BTreeMap::from([(1, arena)]),
        threads: BTreeMap::from([(4250, "io-2".into())]),
        traced: true,
        ..Process::new(identity)
    }
}

/// Options as from the command line.
pub(crate) fn app(arguments: &[&str]) -> App {
    let arguments = std::iter::once("hg-top").chain(arguments.iter().copied());
    App::new(<Cli as clap::Parser>::parse_from(arguments).options)
}

/// A server with two processes, watched for twelve seconds, with a lock stall and a corruption.
pub(crate) fn server(arguments: &[&str]) -> App {
    let mut app = app(arguments);
    for sample in 0..=12 {
        let processes = [
            process(4242, "redis-server", "redis-server *:6379", sample),
            process(4300, "redis-server", "redis-server *:6380", sample),
        ];
        let snapshot = Snapshot {
            at: NOW - (12 - sample) * SECOND,
            time: time(sample),
            processes: processes.into_iter().map(|process| (process.identity.pid, process)).collect(),
            ebpf: EbpfState::On { attached: 18, found: 18 },
            ..Snapshot::empty()
        };
        app.sample(Arc::new(snapshot), Vec::new(), Vec::new());
    }
    let event = |probe: ProbeId, tid, args, ago: u64, stack: &[&str]| {
        let raw = maps::Event { ns: NOW - ago * SECOND, probe: probe as u32, tgid: 4242, tid, stack: 17, args };
        let stack = stack.iter().map(|frame| (*frame).to_owned()).collect();
        Event::decode(&raw, time(12) - Duration::from_secs(ago), stack).expect("a known probe")
    };
    for event in [
        event(ProbeId::Grow, 4242, [1, 400 << 20, 416 << 20, 3, 0, 81_000], 11, &[]),
        event(ProbeId::Shrink, 4251, [1, 416 << 20, 412 << 20, 3, 40_000, 0], 7, &[]),
    ] {
        app.log.push(event);
    }
    app.events(vec![
        event(ProbeId::Corruption, 4242, [1, 0, 0x7f85_2dbb_8000, 64, 1, 0], 4, &["libhg_preload.so+0x1f2a0"]),
        event(
            ProbeId::LockStall,
            4250,
            [1, 64, Reason::Refill as u64, 4_200_000, StallKind::Hold as u64, 4250],
            2,
            &["libhg_preload.so+0x1f2d0", "redis-server+0x4c11a"],
        ),
    ]);
    app.now = time(12);
    app.map.of = Some(ArenaId::Private(4242, 1));
    app.map.map = Some(Arc::new(page_map()));
    app.map.detail = Some(page_detail());
    app.map.cursor = 53;
    app
}

/// The same where everything that can go wrong with an arena has.
pub(crate) fn troubled(arguments: &[&str]) -> App {
    let mut app = server(arguments);
    let mut snapshot = app.timeline().latest().cloned().expect("a sample");
    let arenas = snapshot.processes.values_mut().flat_map(|process| process.arenas.values_mut());
    for figures in arenas.filter_map(|arena| arena.figures.as_mut()) {
        figures.grow_blocked = true;
        figures.blocked_cause = Some(Cause::Cgroup);
        figures.blocked_since = NOW - 130 * SECOND;
        figures.limbo = 2 << 20;
        figures.maintenance_tid = 0;
        figures.grows_refused = vec![0; 20];
        figures.grows_refused[Cause::Cgroup as usize] = 214;
        figures.grows_refused[Cause::Cap as usize] = 2;
        figures.allocs_failed[Cause::Cap as usize] = 9;
    }
    for ago in [6, 0] {
        let at = NOW - ago * SECOND;
        app.sample(Arc::new(Snapshot { at, ..snapshot.clone() }), Vec::new(), Vec::new());
    }
    app
}

/// A pre-forked server: its processes share an arena, each has one of its own; one was killed, one is not watched, one was
/// stopped while it had the grid lock.
pub(crate) fn prefork(arguments: &[&str]) -> App {
    const ROLES: [&str; 5] = ["attendant", "udp receiver child=0 sock=127.0.0.1:5060", "", "timer", "tcp main process"];
    let mut app = app(arguments);
    let pids = 27_720..27_725;
    for sample in 0..=12 {
        let mut processes: BTreeMap<u32, Process> = BTreeMap::new();
        for pid in pids.clone() {
            let mut process = process(pid, "kamailio", "kamailio -f /etc/kamailio/kamailio.cfg", sample);
            let own = process.arenas.get_mut(&1).expect("its own");
            own.name = "pkg".into();
            own.classes.retain(|size, _| *size <= 64);
            if let Some(figures) = &mut own.figures {
                (figures.spans, figures.committed, figures.reserved) = (1 << 20, 8 << 20, 8 << 20);
                (figures.committed_peak, figures.used_peak) = (8 << 20, 4 << 20);
                (figures.pin_wanted, figures.tier_wanted) = (false, figures.tier);
                (figures.large, figures.metadata, figures.free_dirty, figures.free_clean) = (0, 1 << 18, 0, 6 << 20);
            }
            process.shared = [FileId::default()].into();
            let part = Part { resident: 180 << 20, file: 2 << 20, hugetlb_own: 0, hugetlb_shared: 0 };
            process.memory = process.memory.map(|memory| KernelMemory { part: Some(part), ..memory });
            processes.insert(pid, process);
        }
        let member = |place: usize, pid: u32| Member {
            inner_pid: pid,
            start_ticks: 77,
            pid: Some(pid),
            watched: true,
            role: ROLES[place].into(),
            counts: Counts {
                refills: 1_000 + sample * 130 * place as u64,
                flushes: 900 + sample * 120 * place as u64,
                large_allocs: 3,
                stalls: u64::from(place == 3),
                repairs: u64::from(place == 1),
                recovered: u64::from(place == 1) * 2,
                ..Counts::default()
            },
            stall: (place == 3).then_some(Stall { ns: 4_200_000, at: NOW - 2 * SECOND, lock: LockId::GRID }),
            cpus: place as u32 % 2,
            ..Member::default()
        };
        let mut members: Vec<Member> = pids.clone().enumerate().map(|(place, pid)| member(place, pid)).collect();
        let other =
            Member { start_ticks: 99, watched: false, role: "udp receiver child=1".into(), ..member(2, 27_731) };
        members.push(Member { pid: None, gone: true, ..other.clone() });
        members.push(Member { inner_pid: 27_750, pid: Some(27_750), role: "added by hand".into(), ..other });
        let mut arena = arena(sample);
        arena.name = "shm".into();
        if let Some(figures) = &mut arena.figures {
            (figures.shared, figures.creator, figures.number) = (Some(true), 27_720, 2);
            (figures.pin_wanted, figures.tier_wanted) = (false, figures.tier);
            (figures.owner_deaths, figures.recovered, figures.stranded) = (1, 2, 4096);
        }
        let shared = Shared {
            number: 2,
            arena,
            members: Some(members),
            reader: 27_720,
            read_at: NOW,
            processes: pids.clone().collect(),
            owner: 27_720,
        };
        let snapshot = Snapshot {
            at: NOW - (12 - sample) * SECOND,
            time: time(sample),
            processes,
            shared: BTreeMap::from([(FileId::default(), shared)]),
            ebpf: EbpfState::On { attached: 18, found: 18 },
            ..Snapshot::empty()
        };
        app.sample(Arc::new(snapshot), Vec::new(), Vec::new());
    }
    let event = |probe: ProbeId, tid, args, ago: u64, other: Who| {
        let raw = maps::Event { ns: NOW - ago * SECOND, probe: probe as u32, tgid: tid, tid, stack: -1, args };
        let event = Event::decode(&raw, time(12) - Duration::from_secs(ago), Vec::new()).expect("a known probe");
        Event { role: Some(ROLES[1].into()), owner: Some(27_720), other: Some(other), ..event }
    };
    let dead = Who { pid: 27_731, role: Some("udp receiver child=1".into()), ..Who::unknown(27_731, "dead") };
    let holder = Who { pid: 27_723, role: Some("timer".into()), ..Who::unknown(27_723, "stopped") };
    app.events(vec![
        event(ProbeId::OwnerDead, 27_721, [2, 64, 27_731, 2, 0, 0], 30, dead),
        event(ProbeId::LockStall, 27_721, [2, 0, Reason::Grow as u64, 1_200_000, 1, 27_723], 1, holder),
    ]);
    app.now = time(12);
    app
}
