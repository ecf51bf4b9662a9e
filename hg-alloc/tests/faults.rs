//! Every system call of the allocator made to fail in turn: no crash, no block changed, nothing in limbo, and the books agree
//! with the kernel's.
//!
//! Filters of the kernel do the failing (`common/seccomp.rs`), on a thread of their own, so that the test itself can look at
//! `/proc` afterwards. A call fails always, from the start or from the middle on; or only the Nth time, decided by another
//! thread that counts.

mod common;

use common::*;
use hg_alloc::raw;
use hg_probes::words::{FreePool, RunKind, Tier};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// The system calls of `sys`, but those that only read an id, and what each may be refused with.
const CALLS: &[(&str, i64, &[i32])] = &[
    ("mmap", libc::SYS_mmap, &[libc::ENOMEM, libc::EAGAIN, libc::EPERM]),
    ("munmap", libc::SYS_munmap, &[libc::ENOMEM, libc::EINVAL]),
    ("mprotect", libc::SYS_mprotect, &[libc::ENOMEM, libc::EAGAIN, libc::EPERM, libc::EACCES]),
    ("madvise", libc::SYS_madvise, &[libc::ENOMEM, libc::EAGAIN, libc::EPERM, libc::EINVAL]),
    ("mlock", libc::SYS_mlock, &[libc::ENOMEM, libc::EAGAIN, libc::EPERM]),
    ("mlock2", libc::SYS_mlock2, &[libc::ENOMEM, libc::ENOSYS]),
    ("munlock", libc::SYS_munlock, &[libc::ENOMEM, libc::EPERM]),
    ("mremap", libc::SYS_mremap, &[libc::ENOMEM, libc::EPERM]),
    ("mincore", libc::SYS_mincore, &[libc::ENOMEM, libc::EAGAIN]),
    ("ioctl", libc::SYS_ioctl, &[libc::ENOTTY, libc::EPERM]),
    ("membarrier", libc::SYS_membarrier, &[libc::ENOSYS, libc::EPERM, libc::EINVAL]),
    ("memfd_create", libc::SYS_memfd_create, &[libc::ENOMEM, libc::EMFILE, libc::ENOSYS]),
    ("ftruncate", libc::SYS_ftruncate, &[libc::ENOMEM, libc::EPERM]),
    ("openat", libc::SYS_openat, &[libc::EMFILE, libc::EACCES, libc::ENOENT]),
    ("read", libc::SYS_read, &[libc::EIO, libc::EAGAIN]),
    ("close", libc::SYS_close, &[libc::EIO]),
    ("prlimit64", libc::SYS_prlimit64, &[libc::EPERM]),
    ("fstat", libc::SYS_fstat, &[libc::EBADF]),
    ("poll", libc::SYS_poll, &[libc::ENOMEM]),
    ("write", libc::SYS_write, &[libc::EAGAIN, libc::EPIPE]),
    ("futex", libc::SYS_futex, &[libc::EAGAIN, libc::EPERM, libc::ENOSYS]),
];

/// Blocks that are live, with room for as many as a test ever has: the thread under a filter allocates from hg alone.
struct Live {
    blocks: Vec<(usize, usize)>,
    random: u64,
    failed: usize,
}

const MOST: usize = 6000;

impl Live {
    fn new() -> Live {
        Live { blocks: Vec::with_capacity(MOST), random: 0x9e37_79b9_7f4a_7c15, failed: 0 }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % below
    }

    fn size(&mut self) -> usize {
        match self.draw(20) {
            0 => 300_000 + self.draw(3 << 20),
            1..4 => 8_000 + self.draw(200_000),
            _ => 1 + self.draw(3000),
        }
    }

    /// First and last bytes of each page are a pattern of the address.
    fn each_mark(address: usize, size: usize, mut see: impl FnMut(*mut u8, u8)) {
        let value = (address >> 4) as u8 ^ 0x5a;
        for at in (0..size).step_by(4096).chain([size - 1]) {
            see((address + at) as *mut u8, value);
        }
    }

    fn put(&mut self, address: *mut u8, size: usize) {
        if address.is_null() {
            self.failed += 1;
            return;
        }
        // SAFETY: the block is live and has that many bytes.
        Self::each_mark(address as usize, size, |at, value| unsafe { at.write_volatile(value) });
        self.blocks.push((address as usize, size));
    }

    fn check(&(address, size): &(usize, usize)) {
        // SAFETY: as above.
        Self::each_mark(address, size, |at, value| assert!(unsafe { at.read_volatile() } == value, "a block changed"));
    }

    /// Allocates, frees, resizes and trims, about `steps` times.
    fn work(&mut self, steps: usize) {
        for step in 0..steps {
            match self.draw(10) {
                0..5 if self.blocks.len() < MOST => {
                    let size = self.size();
                    self.put(raw::malloc(size), size);
                }
                5 if !self.blocks.is_empty() => {
                    let index = self.draw(self.blocks.len());
                    let old = self.blocks.swap_remove(index);
                    Self::check(&old);
                    let size = self.size();
                    let new = raw::realloc(old.0 as *mut u8, size);
                    if new.is_null() {
                        self.failed += 1;
                        self.blocks.push(old);
                    } else {
                        self.put(new, size);
                    }
                }
                6..10 if !self.blocks.is_empty() => {
                    let index = self.draw(self.blocks.len());
                    let old = self.blocks.swap_remove(index);
                    Self::check(&old);
                    raw::free(old.0 as *mut u8);
                }
                _ => {}
            }
            if step % 500 == 499 {
                hg_alloc::trim();
            }
        }
    }

    fn free_all(&mut self) {
        for block in self.blocks.drain(..) {
            Self::check(&block);
            raw::free(block.0 as *mut u8);
        }
    }

    /// What must hold whenever nobody is inside the allocator, whatever failed before.
    fn books_agree(&self) {
        self.blocks.iter().for_each(Self::check);
        let Some(page) = hg_alloc::stats_page() else { return assert!(self.blocks.is_empty()) };
        let header = &page.header;
        let value = |word: &std::sync::atomic::AtomicU64| word.load(Relaxed);
        assert_eq!(value(&header.limbo_bytes), 0);
        assert_eq!(header.corruptions.iter().map(value).sum::<u64>(), 0);

        // Every slice below the top is in exactly one run, and the sums of the runs are the page's.
        let slice = value(&header.slice_bytes);
        let top = value(&header.top_slices);
        let (mut at, mut spans, mut large, mut free) = (0, 0, 0, [0u64; 3]);
        while at < top {
            // SAFETY: records below the top are readable, and nobody changes them now.
            let run = unsafe { *(value(&header.runs_address) as *const hg_probes::grid::RunRecord).add(at as usize) };
            let length = match RunKind::from_u64(u64::from(run.kind)) {
                Some(RunKind::Free) => {
                    free[run.pool as usize] += u64::from(run.length);
                    u64::from(run.length)
                }
                Some(RunKind::Large) => {
                    large += u64::from(run.length);
                    u64::from(run.length)
                }
                Some(RunKind::Span) => {
                    spans += u64::from(run.length);
                    u64::from(run.length)
                }
                kind => panic!("slice {at} begins with {kind:?}"),
            };
            assert!(length > 0, "slice {at}");
            at += length;
        }
        assert_eq!(at, top);
        assert_eq!(spans * slice, value(&header.span_bytes));
        assert_eq!(large * slice, value(&header.large_bytes));
        assert_eq!(free[FreePool::Dirty as usize] * slice, value(&header.free_dirty_bytes));
        assert_eq!(free[FreePool::Fresh as usize] * slice, value(&header.free_clean_bytes));
        let committed = (top - free[FreePool::Released as usize]) * slice;
        assert_eq!(committed, value(&header.committed_bytes));

        // The kernel's books: what is accessible is what lies below the top, and no more is resident than is committed.
        let (base, reserved) = (value(&header.base_address), value(&header.reserved_bytes));
        let (accessible, resident) = mapped(base, base + reserved);
        assert_eq!(accessible, top * slice, "accessible user memory");
        // A huge page brings back what was given back of it.
        if header.tier_wanted.load(Relaxed) == Tier::Base as u32 {
            assert!(resident <= committed, "{resident} bytes resident of {committed}");
        }
    }

    fn ends_clean(&mut self) {
        self.free_all();
        hg_alloc::trim();
        self.books_agree();
        let header = &page().header;
        assert_eq!(header.large_bytes.load(Relaxed), 0);
        let block = raw::malloc(40 * MIB);
        assert!(!block.is_null(), "the arena is as good as new");
        raw::free(block);
    }
}

/// Bytes of this process's memory between two addresses that may be written, and that are resident.
fn mapped(from: u64, to: u64) -> (u64, u64) {
    let (mut accessible, mut resident, mut inside) = (0, 0, false);
    for line in std::fs::read_to_string("/proc/self/smaps").expect("smaps").lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            inside = start < to && end > from;
            if inside && line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw")) {
                accessible += end.min(to) - start.max(from);
            }
        } else if let (true, Some(rest)) = (inside, line.strip_prefix("Rss:")) {
            resident += rest.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024;
        }
    }
    (accessible, resident)
}

/// Does `work` on a thread of its own, where a call fails. The thread tells nobody that it ends, which may take such a call:
/// the kernel does.
fn under(call: i64, errno: i32, mut live: Live, work: impl FnOnce(&mut Live) + Send + 'static) -> Live {
    let worker = std::thread::spawn(move || {
        seccomp::fail(call, errno);
        work(&mut live);
        live
    });
    worker.join().expect("the worker ends well")
}

/// What an arena is asked for besides base pages: locked ones, and huge ones by all means. (mremap moves pages of a hugetlb
/// pool: without one it is not made.)
const SETTINGS: &[&[(&str, &str)]] = &[&[("HG_PIN", "1")], &[("HG_TIER", "auto")]];

const CALL: &str = "HG_TEST_CALL";
const ERRNO: &str = "HG_TEST_ERRNO";

/// Runs a scenario in a child for each call and errno on base pages, and with the first errno for the settings given; in the
/// child returns call and errno.
fn each_call(name: &str, settings: &[&[(&str, &str)]]) -> Option<(i64, i32)> {
    if is_child(name) {
        let number = |variable| std::env::var(variable).ok().and_then(|text| text.parse::<i64>().ok());
        return number(CALL).zip(number(ERRNO).map(|errno| errno as i32));
    }
    for (call, number, errnos) in CALLS {
        let on_base_pages = errnos.iter().map(|errno| (errno, &[][..]));
        for (errno, settings) in on_base_pages.chain(settings.iter().map(|settings| (&errnos[0], *settings))) {
            let mut command = child(name);
            command.env(CALL, number.to_string()).env(ERRNO, errno.to_string()).envs(settings.iter().copied());
            let output = command.output().expect("the test program runs again");
            text_of(&format!("{name}: {call} fails with errno {errno}, {settings:?}"), &output);
        }
    }
    None
}

#[test]
fn a_call_that_fails_from_the_start() {
    let Some((call, errno)) = each_call("a_call_that_fails_from_the_start", &[]) else { return };
    let mut live = under(call, errno, Live::new(), |live| live.work(1500));
    live.books_agree();
    if hg_alloc::stats_page().is_none() || call == libc::SYS_mprotect {
        assert!(live.failed > 0 && live.blocks.is_empty(), "nothing can be had without this call");
    }
    // Another thread, whose calls do not fail, starts what this one could not.
    live.work(200);
    assert!(!live.blocks.is_empty());
    live.ends_clean();
}

#[test]
fn a_call_that_fails_from_the_middle_on() {
    let Some((call, errno)) = each_call("a_call_that_fails_from_the_middle_on", SETTINGS) else { return };
    let mut live = Live::new();
    live.work(1000);
    live.books_agree();
    let mut live = under(call, errno, live, |live| {
        live.work(1500);
        live.free_all();
        hg_alloc::trim();
        live.work(1000);
    });
    live.books_agree();
    live.ends_clean();
}

#[test]
fn a_call_that_fails_once_or_every_second_time() {
    const NAME: &str = "a_call_that_fails_once_or_every_second_time";
    const WATCHED: &[i64] =
        &[libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_madvise, libc::SYS_membarrier, libc::SYS_openat];
    if in_child(NAME, &[]).is_some() {
        return;
    }
    let mut live = Live::new();
    live.work(100);
    let (done, round) = (AtomicBool::new(false), AtomicU32::new(0));
    let (sender, receiver) = std::sync::mpsc::channel();
    // Rounds 0 to 11: the call numbered so fails, once. Then: every second one, every third one.
    const ROUNDS: u32 = 14;
    let fails = |round: u32, count: u32| match round {
        12 => count.is_multiple_of(2),
        13 => count.is_multiple_of(3),
        nth => count == nth,
    };
    let mut failed = [0u32; ROUNDS as usize];
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            sender.send(seccomp::watched(WATCHED)).expect("the receiver waits");
            for index in 0..ROUNDS {
                round.store(index, Relaxed);
                // Larger than all there is, so it takes new memory from the kernel.
                let bytes = (index as usize + 1) * 20 * MIB;
                live.put(raw::malloc(bytes), bytes);
                live.work(400);
                live.free_all();
                hg_alloc::trim();
            }
            done.store(true, Relaxed);
        });
        let Some(watch) = receiver.recv().expect("the worker sends") else { return };
        let mut counts = [[0u32; WATCHED.len()]; ROUNDS as usize];
        while !done.load(Relaxed) && !worker.is_finished() {
            watch.decide(|call| {
                let now = round.load(Relaxed);
                let place = WATCHED.iter().position(|watched| *watched == call)?;
                let count = &mut counts[now as usize][place];
                let fail = fails(now, *count);
                *count += 1;
                failed[now as usize] += u32::from(fail);
                fail.then_some(libc::ENOMEM)
            });
        }
    });
    if failed.iter().all(|count| *count == 0) {
        return skip("needs the kernel's user notification of seccomp");
    }
    assert!(failed.iter().filter(|count| **count > 0).count() > 6, "failed calls by round: {failed:?}");
    live.ends_clean();
}
