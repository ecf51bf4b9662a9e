//! What a child does and times: loops over `malloc` and `free` as every program calls them, through the loader's symbols.
//!
//! An operation is one malloc and one free. The first byte of each block is written, since a block nobody touches tells
//! nothing. Sizes and orders come from tables filled before the clock starts. A child repeats its loop and prints the
//! median time of an operation, ns.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::*};

use clap::ValueEnum;
use libc::{c_void, free, malloc};

/// Repetitions in one child.
const REPETITIONS: usize = 5;

/// Entries of the tables of sizes and slots.
const TABLE: usize = 1 << 16;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// malloc(64) and free, again and again.
    Pair,
    /// 200 blocks of 64 bytes, freed last first.
    BatchLifo,
    /// 200 blocks of 64 bytes, freed in a shuffled order.
    BatchShuffled,
    /// A random one of 4096 blocks is replaced by one of 16 to 1024 bytes.
    Random,
    /// A random one of 256 blocks is replaced by one of 8 to 64 KiB.
    Medium,
    /// One thread allocates 64 bytes, another frees, in batches of 64.
    Pipeline,
    /// Two threads replace random ones of 4096 blocks that they share.
    Swap,
}

impl Pattern {
    /// Its name on the command line and in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Pair => "pair",
            Pattern::BatchLifo => "batch-lifo",
            Pattern::BatchShuffled => "batch-shuffled",
            Pattern::Random => "random",
            Pattern::Medium => "medium",
            Pattern::Pipeline => "pipeline",
            Pattern::Swap => "swap",
        }
    }

    /// Operations timed at once: some tens of milliseconds.
    fn operations(self) -> usize {
        match self {
            Pattern::Pair => 8_000_000,
            Pattern::BatchLifo | Pattern::BatchShuffled => 4_000_000,
            Pattern::Random => 3_000_000,
            Pattern::Medium => 500_000,
            Pattern::Pipeline | Pattern::Swap => 2_000_000,
        }
    }

    /// Threads that run.
    fn threads(self) -> usize {
        if matches!(self, Pattern::Pipeline | Pattern::Swap) { 2 } else { 1 }
    }
}

/// The child's side: measures the pattern named first in `words` and prints one number.
pub(crate) fn child(mut words: impl Iterator<Item = String>) -> ExitCode {
    let Some(pattern) = words.next().and_then(|word| Pattern::from_str(&word, false).ok()) else {
        return ExitCode::from(2);
    };
    if pattern.threads() == 1 {
        pin(0);
    }
    let tables = Tables::new(pattern);
    let operations = pattern.operations();
    time(pattern, &tables, operations / 8);
    let mut times: Vec<f64> = (0..REPETITIONS).map(|_| time(pattern, &tables, operations)).collect();
    times.sort_by(f64::total_cmp);
    println!("{:.4}", times[REPETITIONS / 2]);
    ExitCode::SUCCESS
}

/// Time of one operation, ns.
fn time(pattern: Pattern, tables: &Tables, operations: usize) -> f64 {
    let begin = now_ns(pattern);
    match pattern {
        Pattern::Pair => pair(operations),
        Pattern::BatchLifo | Pattern::BatchShuffled => batch(operations, &tables.order),
        Pattern::Random | Pattern::Medium => random(operations, tables),
        Pattern::Pipeline => pipeline(operations),
        Pattern::Swap => swap(operations, tables),
    }
    (now_ns(pattern) - begin) as f64 / operations as f64
}

/// The clock of a pattern: the thread's CPU time, which other programs on the machine do not lengthen, where one thread
/// does all the work; else the time on the wall.
fn now_ns(pattern: Pattern) -> i64 {
    let clock = if pattern.threads() == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Random choices, made before the clock starts.
struct Tables {
    sizes: Vec<usize>,
    slots: Vec<usize>,
    slot_count: usize,
    order: Vec<usize>,
}

impl Tables {
    fn new(pattern: Pattern) -> Tables {
        let mut state = 88_172_645_463_325_252u64;
        let mut draw = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % bound
        };
        let (low, high, slot_count) = if pattern == Pattern::Medium { (8192, 65_536, 256) } else { (16, 1024, 4096) };
        let sizes = (0..TABLE).map(|_| low + draw(high - low + 1)).collect();
        let slots = (0..TABLE).map(|_| draw(slot_count)).collect();
        let mut order: Vec<usize> = (0..200).rev().collect();
        if pattern == Pattern::BatchShuffled {
            (1..order.len()).rev().for_each(|i| order.swap(i, draw(i + 1)));
        }
        Tables { sizes, slots, slot_count, order }
    }

    /// Size and slot of an operation. The two walk at different strides, so that they do not repeat together.
    fn at(&self, operation: usize) -> (usize, usize) {
        (self.sizes[(operation * 7 + (operation >> 16)) % TABLE], self.slots[operation % TABLE])
    }
}

/// Keeps the compiler from pairing, dropping or merging the calls. Unlike `black_box` it leaves the pointer in a register,
/// so the loop costs what it costs in C.
#[inline(always)]
fn opaque(mut block: *mut c_void) -> *mut c_void {
    // SAFETY: the assembly is empty; it may be thought to read and write all memory.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) block, options(nostack, preserves_flags)) };
    block
}

#[inline(always)]
fn take(size: usize) -> *mut c_void {
    // SAFETY: malloc has no preconditions; the byte written is the block's first.
    unsafe {
        let block = opaque(malloc(size));
        if block.is_null() {
            libc::abort();
        }
        block.cast::<u8>().write_volatile(1);
        block
    }
}

#[inline(always)]
fn give(block: *mut c_void) {
    // SAFETY: every block passed here comes from `take` and is passed once; null is allowed.
    unsafe { free(block) }
}

fn pair(operations: usize) {
    for _ in 0..operations {
        give(take(64));
    }
}

fn batch(operations: usize, order: &[usize]) {
    let mut blocks = vec![std::ptr::null_mut(); order.len()];
    for _ in 0..operations / order.len() {
        blocks.iter_mut().for_each(|block| *block = take(64));
        order.iter().for_each(|&index| give(blocks[index]));
    }
}

fn random(operations: usize, tables: &Tables) {
    let mut blocks = vec![std::ptr::null_mut(); tables.slot_count];
    for operation in 0..operations {
        let (size, slot) = tables.at(operation);
        give(blocks[slot]);
        blocks[slot] = take(size);
    }
    blocks.into_iter().for_each(give);
}

/// Addresses on their way from one thread to another, as numbers: the blocks are not shared, they are handed over.
fn pipeline(operations: usize) {
    const BATCH: usize = 64;
    const DEPTH: usize = 64;
    let ring: Vec<Vec<AtomicUsize>> = (0..DEPTH).map(|_| (0..BATCH).map(|_| AtomicUsize::new(0)).collect()).collect();
    let (head, tail) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let batches = operations / BATCH;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for number in 0..batches {
                spin_while(|| head.load(Acquire) == number);
                ring[number % DEPTH].iter().for_each(|slot| give(slot.load(Relaxed) as *mut c_void));
                tail.store(number + 1, Release);
            }
        });
        scope.spawn(|| {
            pin(0);
            for number in 0..batches {
                spin_while(|| number - tail.load(Acquire) == DEPTH);
                ring[number % DEPTH].iter().for_each(|slot| slot.store(take(64) as usize, Relaxed));
                head.store(number + 1, Release);
            }
        });
    });
}

/// Waits for the other thread; gives the CPU away when that takes long, or one CPU alone would never get there.
fn spin_while(waiting: impl Fn() -> bool) {
    let mut spins = 0u32;
    while waiting() {
        spins += 1;
        if spins.is_multiple_of(2000) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

fn swap(operations: usize, tables: &Tables) {
    let slots: Vec<AtomicUsize> = (0..tables.slot_count).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let slots = &slots;
            scope.spawn(move || {
                pin(thread);
                for operation in 0..operations / 2 {
                    let (size, slot) = tables.at(operation + thread * 12_345);
                    give(slots[slot].swap(take(size) as usize, AcqRel) as *mut c_void);
                }
            });
        }
    });
    slots.into_iter().for_each(|slot| give(slot.into_inner() as *mut c_void));
}

/// Keeps this thread on the `nth` of the CPUs it may use, so that a migration does not fall into one peer's rounds. A
/// machine with fewer CPUs leaves the thread where it is.
fn pin(nth: usize) {
    // SAFETY: both calls get a set of the size they are told; a zeroed cpu_set_t is an empty one.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
            return;
        }
        let mut cpus = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        if let Some(cpu) = cpus.nth(nth) {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut one);
            libc::sched_setaffinity(0, size, &one);
        }
    }
}
