//! What the processes of a measurement do: malloc and free pairs, of their own blocks or of a neighbour's, until they are told.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use hg_alloc::shared::Arena;

use super::tags::Tags;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 64;

/// Blocks on their way from one process to the next.
const RING: usize = 256;

/// Blocks that a process allocates before it looks whether it may free some.
const TURN: usize = 32;

/// Blocks that are allocated and freed at a time where many are.
const MANY: usize = 256;

/// Pairs between two looks at the time.
const PAIRS: u64 = 1024;

/// Whose blocks a process frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Free {
    Own,
    /// Those of the process before it, which come through a ring.
    Cross,
    /// Its own, [`MANY`] allocated at a time and freed at a time.
    Many,
}

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) enum Heap {
    Hg(&'static Arena),
    Tags(Tags),
}

impl Heap {
    #[inline(always)]
    fn malloc(&self) -> *mut u8 {
        match self {
            Heap::Hg(arena) => arena.malloc(BLOCK),
            Heap::Tags(tags) => tags.malloc(BLOCK),
        }
    }

    fn malloc_many(&self, blocks: &mut [*mut u8]) {
        match self {
            Heap::Hg(arena) => assert_eq!(arena.malloc_many(BLOCK, blocks), blocks.len()),
            Heap::Tags(tags) => blocks.iter_mut().for_each(|block| *block = tags.malloc(BLOCK)),
        }
    }

    fn free_many(&self, blocks: &[*mut u8]) {
        match self {
            Heap::Hg(arena) => arena.free_many(blocks),
            // SAFETY: as below.
            Heap::Tags(tags) => blocks.iter().for_each(|block| unsafe { tags.free(*block) }),
        }
    }

    #[inline(always)]
    fn free(&self, block: *mut u8) {
        match self {
            Heap::Hg(arena) => arena.free(block),
            // SAFETY: a load frees what it allocated, once.
            Heap::Tags(tags) => unsafe { tags.free(block) },
        }
    }
}

/// What one process counts, and the blocks that come to it.
#[repr(C, align(128))]
struct Seat {
    pairs: AtomicU64,
    cpu_ns: AtomicU64,
    head: Line,
    tail: Line,
    ring: [AtomicU64; RING],
}

#[repr(C, align(128))]
struct Line(AtomicU64);

/// What all share.
#[repr(C)]
struct Table {
    ready: AtomicU32,
    stage: AtomicU32,
    seats: [Seat; PROCESSES],
}

/// The most processes.
pub(crate) const PROCESSES: usize = 64;

const WAIT: u32 = 0;
const RUN: u32 = 1;
const STOP: u32 = 2;

/// What a measurement came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) pairs: u64,
    /// CPU time of all processes, ns.
    pub(crate) cpu_ns: u64,
    /// Time on the clock, ns.
    pub(crate) wall_ns: u64,
}

/// Runs so many processes for so long.
pub(crate) fn run(heap: Heap, free: Free, processes: usize, time: Duration) -> Result<Measured, String> {
    let table = table()?;
    let mut pids = Vec::new();
    for seat in 0..processes {
        // SAFETY: this process has one thread; the child never returns to its code.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the child dies with its parent.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                work(heap, free, table, seat, processes);
                // SAFETY: a child that is done.
                unsafe { libc::_exit(0) };
            }
            pid if pid < 0 => return Err(std::io::Error::last_os_error().to_string()),
            pid => pids.push(pid),
        }
    }
    while table.ready.load(Acquire) < processes as u32 {
        std::thread::sleep(Duration::from_millis(1));
        if let Some(status) = pids.iter().find_map(|pid| ended(*pid)) {
            return Err(format!("a process ended with status {status:#x} before it was ready"));
        }
    }
    let start = std::time::Instant::now();
    table.stage.store(RUN, Release);
    std::thread::sleep(time);
    table.stage.store(STOP, Release);
    let wall_ns = start.elapsed().as_nanos() as u64;
    for pid in pids {
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if status != 0 {
            return Err(format!("a process ended with status {status:#x}"));
        }
    }
    let seats = &table.seats[..processes];
    let sum = |count: fn(&Seat) -> &AtomicU64| seats.iter().map(|seat| count(seat).load(Relaxed)).sum();
    let measured = Measured { pairs: sum(|seat| &seat.pairs), cpu_ns: sum(|seat| &seat.cpu_ns), wall_ns };
    // SAFETY: nobody uses the table any more.
    unsafe { libc::munmap(std::ptr::from_ref(table).cast_mut().cast(), size_of::<Table>()) };
    Ok(measured)
}

/// The status of a child that ended, without a wait; the child is left to be waited for.
fn ended(pid: i32) -> Option<i32> {
    // SAFETY: all zero is a value of the structure, which the call fills if the child has ended.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let done = libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, flags);
        (done == 0 && info.si_pid() == pid).then(|| info.si_status())
    }
}

fn table() -> Result<&'static Table, String> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping of zeros, which are a table.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), size_of::<Table>(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().to_string());
        }
        Ok(&*at.cast())
    }
}

fn work(heap: Heap, free: Free, table: &Table, seat: usize, processes: usize) {
    let own = &table.seats[seat];
    let next = &table.seats[(seat + 1) % processes];
    let pairs = |count: u64| match free {
        Free::Own => own_pairs(heap, count),
        Free::Cross => crossed_pairs(heap, own, next),
        Free::Many => many_pairs(heap, count),
    };
    for _ in 0..50 {
        pairs(PAIRS);
    }
    table.ready.fetch_add(1, AcqRel);
    while table.stage.load(Acquire) == WAIT {
        std::thread::sleep(Duration::from_micros(100));
    }
    let start = cpu_ns();
    let mut count = 0;
    while table.stage.load(Relaxed) == RUN {
        count += pairs(PAIRS);
    }
    own.cpu_ns.store(cpu_ns() - start, Relaxed);
    own.pairs.store(count, Relaxed);
    // What is still on its way.
    while let Some(block) = take(own) {
        heap.free(block);
    }
}

fn own_pairs(heap: Heap, count: u64) -> u64 {
    for _ in 0..count {
        let block = std::hint::black_box(heap.malloc());
        // SAFETY: a live block of that size.
        unsafe { block.cast::<u64>().write_volatile(count) };
        heap.free(std::hint::black_box(block));
    }
    count
}

fn many_pairs(heap: Heap, count: u64) -> u64 {
    let mut blocks = [std::ptr::null_mut(); MANY];
    for _ in 0..count as usize / MANY {
        heap.malloc_many(std::hint::black_box(&mut blocks));
        // SAFETY: live blocks of that size.
        blocks.iter().for_each(|block| unsafe { block.cast::<u64>().write_volatile(count) });
        heap.free_many(&blocks);
    }
    count
}

/// Allocates for the next process, and frees what came from the one before.
fn crossed_pairs(heap: Heap, own: &Seat, next: &Seat) -> u64 {
    let mut freed = 0;
    let mut sent = 0;
    for _ in 0..TURN {
        if next.tail.0.load(Relaxed) - next.head.0.load(Acquire) >= RING as u64 {
            break;
        }
        let block = heap.malloc();
        // SAFETY: a live block of that size.
        unsafe { block.cast::<u64>().write_volatile(1) };
        let tail = next.tail.0.load(Relaxed);
        next.ring[tail as usize % RING].store(block as u64, Relaxed);
        next.tail.0.store(tail + 1, Release);
        sent += 1;
    }
    while let Some(block) = take(own) {
        heap.free(block);
        freed += 1;
    }
    if freed + sent == 0 {
        std::thread::yield_now();
    }
    freed
}

fn take(own: &Seat) -> Option<*mut u8> {
    let head = own.head.0.load(Relaxed);
    (head < own.tail.0.load(Acquire)).then(|| {
        let block = own.ring[head as usize % RING].load(Relaxed);
        own.head.0.store(head + 1, Release);
        block as *mut u8
    })
}

fn cpu_ns() -> u64 {
    // SAFETY: all zero is a value of the structure, which the call fills.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}
