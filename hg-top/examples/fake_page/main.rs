//! A process that shows a stats page of its own making: a live target for tests, honest or lying.
//!
//! `fake_page HOW` maps a memfd named `hg.stats`, fills it, prints `ready` and lives until its stdin is closed. What
//! HOW may be stands in [`main`]. It knows nothing of the allocator: the layout of hg-probes and libc are all it takes.

use std::io::Read;
use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use hg_probes::page::{self, GRID_LOCK, StatsPage};
use hg_probes::words::{Reason, Tier, TierReason};

mod map;
mod shared;
mod silent;

/// Sizes of the classes shown.
const SIZES: [u32; 3] = [16, 64, 4096];

/// Heads of front caches: two fronts with one head per class, each saying that 8 entries of 16 bytes are in.
static FRONTS: [[AtomicU64; SIZES.len()]; 2] =
    [const { [const { AtomicU64::new(8 * 16 / page::FRONT_UNIT as u64) }; SIZES.len()] }; 2];

fn main() {
    let how = std::env::args().nth(1).unwrap_or_default();
    let length = size_of::<StatsPage>();
    let of_several = how.starts_with("silent-page") || how.contains("shared") || how.ends_with("directory");
    let page = map(length, if of_several { libc::MAP_SHARED } else { libc::MAP_PRIVATE });
    if how != "blank" {
        honest(page);
    }
    let header = &page.header;
    match how.as_str() {
        "honest" | "blank" => {}
        "moving" => std::mem::drop(std::thread::spawn(move || moving(page))),
        "writing" => page.classes[1].seq.store(1, Relaxed),
        "newer" => header.version.store(page::VERSION + 1, Relaxed),
        "older" => header.version.store(0, Relaxed),
        "no-magic" => header.magic.store(0x1234, Relaxed),
        "huge-size" => header.size.store(u64::MAX, Relaxed),
        "small-size" => header.size.store(64, Relaxed),
        "many-classes" => header.class_count.store(u32::MAX, Relaxed),
        "lying-numbers" => lying(page),
        "map" => map::honest(page),
        "lying-map" => map::lying(page),
        "silent-map" => map::silent(page),
        "silent-page" => silent::at_once(page, FD.load(Relaxed) as i32),
        "silent-page-later" => silent::for_a_while(page, FD.load(Relaxed) as i32),
        "silent-fronts" => silent::fronts(page),
        "silent-arguments" => silent::arguments(),
        "shared" => shared::honest(page),
        "lying-directory" => shared::lying(page),
        "no-directory" => shared::elsewhere(page, 4096),
        "far-directory" => shared::elsewhere(page, u64::MAX - 100),
        "silent-directory" => shared::elsewhere(page, silent::memory()),
        "names" => {
            let hostile = *b"\x1b[2Jm\xffalloc\n\x1b]0;x\x07 0123456789abc";
            for (word, bytes) in header.name.iter().zip(hostile.chunks(8)) {
                let mut whole = [b'!'; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(whole), Relaxed);
            }
            rename(c"\x1b[31mred\x07");
        }
        "cut" => cut(length),
        other => {
            eprintln!("fake_page: no such way: {other}");
            std::process::exit(2);
        }
    }
    if how != "silent-page-later" {
        println!("ready");
    }
    // Ends with whoever holds the other end of the pipe.
    let _ = std::io::stdin().read(&mut [0]);
}

/// The page of an arena with three classes and two locks. Figures are small round numbers that tests know.
fn honest(page: &StatsPage) {
    let header = &page.header;
    let set = |word: &AtomicU64, value: u64| word.store(value, Relaxed);
    header.version.store(page::VERSION, Relaxed);
    header.header_size.store(size_of::<page::Header>() as u32, Relaxed);
    set(&header.size, size_of::<StatsPage>() as u64);
    header.pid.store(std::process::id(), Relaxed);
    header.arena.store(1, Relaxed);
    set(&header.name[0], u64::from_le_bytes(*b"fake\0\0\0\0"));
    header.class_count.store(SIZES.len() as u32, Relaxed);
    header.stall_us.store(1000, Relaxed);
    // Memory that was never written is left alone by who reads it.
    FRONTS.iter().flatten().for_each(|head| head.store(head.load(Relaxed), Relaxed));
    set(&header.fronts_address, FRONTS.as_ptr() as u64);
    set(&header.fronts_stride, size_of_val(&FRONTS[0]) as u64);
    header.fronts_count.store(FRONTS.len() as u32, Relaxed);
    header.fronts_rseq.store(FRONTS.len() as u32, Relaxed);
    set(&header.page_bytes, 2 << 20);
    set(&header.slice_bytes, 32 << 10);
    set(&header.reserved_bytes, 1 << 30);
    set(&header.committed_bytes, 64 << 20);
    set(&header.committed_peak_bytes, 96 << 20);
    set(&header.span_bytes, 16 << 20);
    set(&header.large_bytes, 8 << 20);
    set(&header.metadata_bytes, 1 << 20);
    header.tier.store(Tier::Base as u32, Relaxed);
    header.tier_wanted.store(Tier::Thp as u32, Relaxed);
    header.tier_reason.store(TierReason::SysfsNever as u32, Relaxed);
    set(&header.created_ns, monotonic_ns());
    set(&header.grows, 4);
    for (index, size) in SIZES.into_iter().enumerate() {
        let class = &page.classes[index];
        class.size.store(size, Relaxed);
        class.front_offset.store(8 * index as u32, Relaxed);
        class.entry_bytes.store(16, Relaxed);
        set(&class.refills, 10);
        set(&class.reused, 200);
        set(&class.carved, 120);
        set(&class.flushes, 3);
        set(&class.flushed, 100);
        set(&class.drained, 4);
        set(&class.transfer_cells, 20);
        set(&class.spans, 2);
        set(&class.cells, 512);
    }
    for (place, lock) in [(1, 64), (GRID_LOCK, 0)] {
        let stats = &page.locks[Reason::Refill as usize][place];
        stats.lock.store(lock, Relaxed);
        set(&stats.hold.count, 100);
        set(&stats.hold.max_ns, 5000);
        set(&stats.hold.buckets[8], 99);
        set(&stats.hold.buckets[12], 1);
        set(&stats.wait.count, 100);
        set(&stats.wait.buckets[0], 100);
    }
    set(&header.magic, page::MAGIC);
}

/// Every number as large as it can be, every address one that faults or overflows.
fn lying(page: &StatsPage) {
    let header = &page.header;
    header.kind.store(77, Relaxed);
    header.tier.store(u32::MAX, Relaxed);
    header.tier_reason.store(u32::MAX, Relaxed);
    header.fronts_address.store(u64::MAX - 8, Relaxed);
    header.fronts_stride.store(u64::MAX, Relaxed);
    header.fronts_count.store(u32::MAX, Relaxed);
    let figures = [&header.reserved_bytes, &header.committed_bytes, &header.large_bytes, &header.span_bytes];
    figures.iter().for_each(|figure| figure.store(u64::MAX, Relaxed));
    let lists = header.grows_refused.iter().chain(&header.allocs_failed).chain(&header.corruptions);
    lists.for_each(|count| count.store(u64::MAX, Relaxed));
    for class in &page.classes[..SIZES.len()] {
        class.size.store(u32::MAX, Relaxed);
        class.front_offset.store(u32::MAX, Relaxed);
        for figure in [&class.refills, &class.reused, &class.carved, &class.flushes, &class.cells, &class.span_bytes] {
            figure.store(u64::MAX, Relaxed);
        }
    }
    let lock = &page.locks[Reason::Refill as usize][1];
    lock.lock.store(u32::MAX, Relaxed);
    for histogram in [&lock.hold, &lock.wait] {
        histogram.count.store(u64::MAX, Relaxed);
        histogram.max_ns.store(u64::MAX, Relaxed);
        histogram.max_at_ns.store(u64::MAX, Relaxed);
        histogram.max_tid.store(u32::MAX, Relaxed);
        histogram.buckets.iter().for_each(|bucket| bucket.store(u64::MAX, Relaxed));
    }
}

/// Changes all blocks all the time, each under its sequence number, as a busy arena does.
fn moving(page: &StatsPage) {
    let write = |seq: &AtomicU32, change: &dyn Fn()| {
        seq.fetch_add(1, Relaxed);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        change();
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        seq.fetch_add(1, Relaxed);
    };
    loop {
        for class in &page.classes[..SIZES.len()] {
            // Whoever sees these two differ has a torn copy.
            write(&class.seq, &|| {
                class.refills.fetch_add(1, Relaxed);
                class.flushes.fetch_add(1, Relaxed);
            });
        }
        write(&page.header.seq, &|| {
            page.header.grows.fetch_add(1, Relaxed);
        });
        for _ in 0..1000 {
            std::hint::spin_loop();
        }
    }
}

fn map(length: usize, flags: i32) -> &'static StatsPage {
    // SAFETY: plain system calls on a descriptor of our own; the mapping is as long as the type, page-aligned, zero (which
    // is a valid value of every field), and never unmapped.
    unsafe {
        let fd = libc::memfd_create(page::NAME.as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, length as libc::off_t) == 0, "no memfd");
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(std::ptr::null_mut(), length, prot, flags, fd, 0);
        assert!(address != libc::MAP_FAILED, "no mapping");
        FD.store(fd as u32, Relaxed);
        &*address.cast::<StatsPage>()
    }
}

/// The descriptor of the memfd.
static FD: AtomicU32 = AtomicU32::new(0);

/// Takes the file away from under the end of the mapping: reads there fail from now on.
fn cut(length: usize) {
    let keep = offset_of!(StatsPage, classes);
    assert!(keep < length);
    // SAFETY: this process does not touch the page any more.
    unsafe { libc::ftruncate(FD.load(Relaxed) as i32, 0) };
}

fn rename(name: &std::ffi::CStr) {
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// The clock of stats pages.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, to which the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
