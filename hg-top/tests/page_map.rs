//! The page map of a real process: its sums are the header's figures, and the cells counted by their states are the live
//! ones of the stats page.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use hg_top::model::map::{Detail, PageMap, Slices};
use hg_top::model::{Arena, Figures};
use hg_top::source::stats::{Found, StatsSource, keeps, map};

/// This program runs on hg, so that it can be its own target.
#[global_allocator]
static ALLOCATOR: hg_alloc::HgAlloc = hg_alloc::HgAlloc::new();

/// Set in the process that is watched.
const WORKER: &str = "HG_TEST_MAP_WORKER";

/// A size of cells that nothing else in the process has.
const LONELY: usize = 28 << 10;

/// The watched process: builds up memory, frees most of it, says so, and sleeps. Does nothing in a run of the tests.
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    let mut size = 17;
    let mut blocks: Vec<Vec<u8>> = (0..12_000)
        .map(|_| {
            size = (size * 31 + 7) % 9_000;
            vec![1; 1 + size]
        })
        .collect();
    let large: Vec<Vec<u8>> = (1..6).map(|megabytes| vec![1; megabytes << 20]).collect();
    let lonely = vec![1u8; LONELY];
    let mut kept = 0;
    blocks.retain(|_| {
        kept += 1;
        kept % 3 == 0
    });
    // Buffers exist before anybody counts.
    let mut input = std::io::stdin().lock();
    let mut line = String::with_capacity(64);
    eprintln!("ready {:x} {:x}", lonely.as_ptr() as usize, large[3].as_ptr() as usize);
    let _ = input.read_line(&mut line);
    drop((blocks, large, lonely));
}

/// The watched process, and the addresses it told of.
struct Worker {
    child: Child,
    lonely: u64,
    large: u64,
}

impl Worker {
    fn start() -> Worker {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
            .env(WORKER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the worker");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("ready ") {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).expect("its state"), 0, "the worker ended before it was ready");
        }
        let mut addresses =
            line.split_whitespace().skip(1).map(|hex| u64::from_str_radix(hex, 16).expect("hexadecimal"));
        let (lonely, large) = (addresses.next().expect("one"), addresses.next().expect("two"));
        Worker { child, lonely, large }
    }

    /// The arena and its map at a moment when nothing changed: a thread of the allocator may still be giving back.
    fn look(&self) -> (Arena, Figures, PageMap) {
        let pid = self.child.id();
        let mut source = StatsSource::open(pid).expect("a page");
        let mut read = || source.read(&Found::default(), &Default::default()).expect("figures").private;
        let mut arena = || read().remove(&1).expect("the arena");
        for _ in 0..50 {
            let before = arena();
            let figures = before.figures.clone().expect("figures");
            let map = map::read(pid, &figures).expect("readable").expect("records");
            let after = arena();
            let same =
                |a: &Arena| a.figures.as_ref().map(|f| (f.spans, f.large, f.free_dirty, f.free_clean, f.records.top));
            if same(&before) == same(&after) && before.torn + after.torn == 0 && before.classes == after.classes {
                return (before, figures, map);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("the worker never comes to rest");
    }

    /// What keeps the page at an address.
    fn keeps(&self, figures: &Figures, map: &PageMap, address: u64) -> Detail {
        let page = ((address - map.base) / map.page_bytes) as usize;
        keeps::look(self.child.id(), figures, map, page..page + 1).expect("readable").expect("such a page")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = writeln!(self.child.stdin.as_mut().expect("piped"));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sums_of_the_map_are_the_figures_of_the_header() {
    let worker = Worker::start();
    let (arena, figures, map) = worker.look();
    let bytes = |slices: u64| slices * map.slice_bytes;
    let Slices { span, large, dirty, fresh, released, busy, damaged } = map.total().slices;
    assert_eq!((damaged, busy, map.left_out), (0, 0, 0));
    assert_eq!(bytes(span), figures.spans);
    assert_eq!(bytes(large), figures.large);
    assert_eq!(bytes(dirty), figures.free_dirty);
    assert_eq!(bytes(fresh), figures.free_clean);
    assert_eq!(bytes(span + large + dirty + fresh), figures.committed);
    assert_eq!(span + large + dirty + fresh + released, figures.records.top);
    assert!(figures.large > 15 << 20 && map.pages.len() > 20, "the worker is no worker");
    // What is used: all cells out of their spans, and the large objects.
    let out: u64 =
        arena.classes.iter().map(|(size, class)| class.total.expect("totals").out() * u64::from(*size)).sum();
    let transfer: u64 = arena.classes.iter().map(|(size, class)| class.transfer_cells * u64::from(*size)).sum();
    let used = map.total().used;
    let wanted = figures.large + out + transfer;
    // A page's share of a span is rounded.
    let close = map.pages.len() as u64 * map.page_bytes / 100;
    assert!(used.abs_diff(wanted) < close, "{used} used by the map, {wanted} by the header");
}

#[test]
fn cells_counted_by_their_states_are_the_live_ones() {
    let worker = Worker::start();
    let (arena, figures, map) = worker.look();
    let pid = worker.child.id();
    let mut cells = std::collections::BTreeMap::<u32, (u64, u64)>::new();
    // All pages together, as far as one look reaches: no cell is counted on two pages.
    let pages = map.pages.len().min(keeps::MAX_PAGES);
    assert_eq!(pages, map.pages.len(), "the worker needs more pages than one look covers");
    let all = keeps::look(pid, &figures, &map, 0..pages).expect("readable").expect("pages");
    for (size, found) in &all.classes {
        cells.insert(*size, (found.live, found.cached));
        assert_eq!(found.damaged, 0);
    }
    assert_eq!(all.unreadable, 0);
    assert_eq!(all.large_count, figures.large_count);
    for (size, class) in arena.classes.iter().filter(|(_, class)| class.spans > 0) {
        let (live, cached) = cells.get(size).copied().unwrap_or_default();
        assert_eq!(live, class.live().expect("known"), "live cells of class {size}");
        assert_eq!(cached, class.cached(), "cached cells of class {size}");
    }
    let total: u64 = cells.values().map(|(live, _)| live).sum();
    assert!(total > 3_000, "{total} live cells");
}

#[test]
fn it_says_what_keeps_a_page() {
    let worker = Worker::start();
    let (_, figures, map) = worker.look();
    let lonely = worker.keeps(&figures, &map, worker.lonely);
    let class = lonely.classes.get(&(LONELY as u32)).expect("its class has cells there");
    assert_eq!((class.spans, class.live), (1, 1), "{lonely:?}");
    assert!(lonely.meaning().contains("kept by"), "{}", lonely.meaning());
    let large = worker.keeps(&figures, &map, worker.large + (1 << 20));
    let address = large.large.iter().find(|found| found.bytes == 4 << 20 || found.address == worker.large);
    assert_eq!(address.map(|found| found.address), Some(worker.large), "{large:?}");
    assert!(large.meaning().contains("a large object of 4.0"), "{}", large.meaning());
}
