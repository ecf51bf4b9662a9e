//! A process that dies between any two instructions of the allocator leaves an arena that is sound.
//!
//! A child is traced through calls that take each path, one instruction after the other, and every instruction that it came by is
//! noted. Then, for each of them, another child does the same on another arena, until a breakpoint stops it there; it is killed,
//! the arena is recovered, and every cell has to be in its place. An instruction that came by several times is tried at its first, at
//! its last, and at one time in between.
//!
//! A restartable sequence begins anew when a tracer stops it. The tracer keeps that from happening: it takes away the pointer to
//! the sequence while the child stands in it. Nobody else uses the arena, so nothing can come in between.
//!
//! A run tries those in restartable sequences, and a part of the others, each time another one; `HG_ALL_INSTRUCTIONS=1` tries
//! all of them.

use hg_alloc::shared::{Arena, Audit, Cell, Options, create};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::*};

const MIB: usize = 1 << 20;

/// Arenas that one process makes: it can make 16.
const ARENAS: usize = 12;

/// Instructions of each scenario that an ordinary run tries.
const TRIES: usize = 260;

/// The most instructions that a scenario may have.
const LONGEST: usize = 2_000_000;

/// Words in the arena with a block each.
const SLOTS: usize = 512;

/// Blocks that are allocated and freed at a time.
const MANY: usize = 200;

/// What the traced child does, and what is done before.
struct Scenario {
    name: &'static str,
    /// Blocks that a malloc without a slot takes along, if it is just returning.
    strays: usize,
    prepare: fn(&Arena, &[AtomicU64]),
    act: fn(&Arena, &[AtomicU64]),
}

const CELL: usize = 1000;

fn fill(arena: &Arena, slots: &[AtomicU64], size: usize) {
    for slot in slots {
        arena.malloc_into(size, slot);
    }
}

fn empty(arena: &Arena, slots: &[AtomicU64]) {
    for slot in slots {
        arena.free_from(slot);
    }
}

const SCENARIOS: [Scenario; 10] = [
    Scenario {
        name: "a first cell: grow, a span, carve",
        strays: 1,
        prepare: |_, _| {},
        act: |arena, slots| fill(arena, &slots[..1], CELL),
    },
    Scenario {
        name: "pop and push",
        strays: 1,
        prepare: |arena, slots| {
            fill(arena, &slots[..4], CELL);
            empty(arena, &slots[..2]);
        },
        act: |arena, slots| {
            fill(arena, &slots[..1], CELL);
            empty(arena, &slots[..1]);
            arena.free(arena.malloc(CELL));
        },
    },
    Scenario {
        name: "refills of what was used before",
        strays: 1,
        prepare: |arena, slots| {
            fill(arena, slots, CELL);
            empty(arena, slots);
        },
        act: |arena, slots| fill(arena, &slots[..200], CELL),
    },
    Scenario {
        name: "flushes",
        strays: 1,
        prepare: |arena, slots| fill(arena, &slots[..300], CELL),
        act: |arena, slots| empty(arena, &slots[..300]),
    },
    Scenario {
        name: "spans that go back to the grid",
        strays: 1,
        prepare: |arena, slots| {
            fill(arena, &slots[..40], 64 << 10);
            empty(arena, &slots[..20]);
        },
        act: |arena, slots| empty(arena, &slots[20..40]),
    },
    Scenario {
        name: "large objects, grow and shrink",
        strays: 1,
        prepare: |arena, slots| fill(arena, &slots[..3], 5 * MIB),
        act: |arena, slots| {
            fill(arena, &slots[3..4], 3 * MIB);
            empty(arena, &slots[..4]);
        },
    },
    Scenario {
        name: "many at a time",
        strays: MANY,
        prepare: |arena, slots| {
            fill(arena, &slots[..100], CELL);
            empty(arena, &slots[..90]);
        },
        act: |arena, _| {
            let mut blocks = [std::ptr::null_mut(); MANY];
            let count = arena.malloc_many(CELL, &mut blocks);
            arena.free_many(&blocks[..count]);
        },
    },
    Scenario {
        name: "trim",
        strays: 1,
        prepare: |arena, slots| {
            fill(arena, &slots[..40], CELL);
            empty(arena, &slots[..30]);
        },
        act: |arena, _| {
            arena.trim();
        },
    },
    Scenario {
        name: "recovery of a process that ended",
        strays: 1,
        prepare: |arena, slots| {
            fill(arena, &slots[..10], CELL);
            // SAFETY: the child calls the arena and ends.
            unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    empty(arena, &slots[..5]);
                    libc::_exit(0);
                }
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        },
        act: |arena, _| {
            arena.recover();
        },
    },
    Scenario {
        name: "a full arena",
        strays: 1,
        prepare: |arena, slots| fill(arena, &slots[..14], 4 * MIB),
        act: |arena, slots| {
            fill(arena, &slots[14..18], 200 << 10);
            empty(arena, &slots[14..15]);
        },
    },
];

unsafe extern "C" {
    /// The descriptors of all sequences, from the linker.
    static __start___rseq_cs: [Sequence; 0];
    static __stop___rseq_cs: [Sequence; 0];
}

/// `struct rseq_cs` of linux/rseq.h.
#[repr(C, align(32))]
struct Sequence {
    version: u32,
    flags: u32,
    start: u64,
    length: u64,
    abort: u64,
}

/// Whether an instruction stands in a restartable sequence of this program.
fn is_in_sequence(ip: u64) -> bool {
    let (start, end) = (&raw const __start___rseq_cs, &raw const __stop___rseq_cs);
    let count = (end as usize - start as usize) / size_of::<Sequence>();
    // SAFETY: the linker's section of so many descriptors.
    let sequences = unsafe { std::slice::from_raw_parts(start.cast::<Sequence>(), count) };
    sequences.iter().any(|sequence| ip.wrapping_sub(sequence.start) < sequence.length)
}

/// A child that is traced. All calls are between its two breakpoints of its own.
struct Child(i32);

/// Why it stopped.
#[derive(PartialEq, Debug)]
enum Stop {
    Step,
    Breakpoint,
    Ended,
}

impl Child {
    /// Forks one that acts between two breakpoints; it stands at the first. `None` if it may not be traced.
    fn start(scenario: &Scenario, arena: &Arena, slots: &[AtomicU64]) -> Option<Child> {
        // SAFETY: the child calls the arena and the kernel only.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                        libc::_exit(77);
                    }
                    core::arch::asm!("int3");
                    (scenario.act)(arena, slots);
                    core::arch::asm!("int3");
                    libc::_exit(0);
                }
                pid => Child(pid),
            }
        };
        (child.wait() == Stop::Breakpoint).then_some(child)
    }

    fn wait(&self) -> Stop {
        // Of a breakpoint; a step has other codes.
        const SI_KERNEL: i32 = 0x80;
        let mut status = 0;
        // SAFETY: waits for a child, and asks why it stopped.
        unsafe {
            assert_eq!(libc::waitpid(self.0, &raw mut status, 0), self.0);
            if !libc::WIFSTOPPED(status) {
                return Stop::Ended;
            }
            assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP, "an unexpected signal");
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETSIGINFO, self.0, 0, &raw mut info);
            if info.si_code == SI_KERNEL { Stop::Breakpoint } else { Stop::Step }
        }
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: a stopped child; all zero is a value of the structure.
        unsafe {
            let mut registers = std::mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, self.0, 0, &raw mut registers), 0);
            registers
        }
    }

    fn peek(&self, address: u64) -> i64 {
        // SAFETY: a stopped child.
        unsafe { libc::ptrace(libc::PTRACE_PEEKDATA, self.0, address, 0) }
    }

    fn poke(&self, address: u64, word: i64) {
        // SAFETY: a stopped child.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.0, address, word) }, 0);
    }

    /// If it stands in a sequence, lets that go on instead of beginning anew.
    fn keep_sequence(&self, registers: &libc::user_regs_struct) {
        const POINTER: i64 = 8;
        if is_in_sequence(registers.rip)
            && let Some(offset) = rseq_offset()
        {
            self.poke(registers.fs_base.wrapping_add_signed(offset as i64 + POINTER), 0);
        }
    }

    fn go(&self, request: libc::c_uint) -> Stop {
        // SAFETY: a stopped child.
        assert_eq!(unsafe { libc::ptrace(request, self.0, 0, 0) }, 0);
        self.wait()
    }

    /// All instructions up to the second breakpoint.
    fn trace(&self) -> Vec<u64> {
        let mut trace = Vec::new();
        while trace.len() < LONGEST {
            let registers = self.registers();
            trace.push(registers.rip);
            self.keep_sequence(&registers);
            if self.go(libc::PTRACE_SINGLESTEP) != Stop::Step {
                break;
            }
        }
        assert!(trace.len() < LONGEST, "the scenario is too long");
        trace
    }

    /// Runs until it is about to execute an instruction for the `times`-th time. False if it does not come there so often.
    fn run_to(&self, ip: u64, times: usize) -> bool {
        const BREAKPOINT: i64 = 0xcc;
        let code = self.peek(ip);
        let broken = (code & !0xff) | BREAKPOINT;
        let mut left = times;
        if self.registers().rip == ip {
            left -= 1;
            if left == 0 {
                return true;
            }
            self.go(libc::PTRACE_SINGLESTEP);
        }
        loop {
            self.poke(ip, broken);
            let stop = self.go(libc::PTRACE_CONT);
            let mut registers = self.registers_if(&stop);
            if stop == Stop::Ended || registers.rip != ip + 1 {
                return false;
            }
            self.poke(ip, code);
            registers.rip = ip;
            // SAFETY: a stopped child.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.0, 0, &raw const registers) }, 0);
            left -= 1;
            if left == 0 {
                return true;
            }
            self.keep_sequence(&registers);
            if self.go(libc::PTRACE_SINGLESTEP) == Stop::Ended {
                return false;
            }
            let registers = self.registers();
            self.keep_sequence(&registers);
        }
    }

    fn registers_if(&self, stop: &Stop) -> libc::user_regs_struct {
        match stop {
            // SAFETY: all zero is a value of the structure.
            Stop::Ended => unsafe { std::mem::zeroed() },
            _ => self.registers(),
        }
    }

    fn kill(self) {
        // SAFETY: a child, which may be a zombie already waited for: then nothing has this id yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Where glibc's area for sequences lies from the thread pointer, if it registered one.
fn rseq_offset() -> Option<isize> {
    // SAFETY: looks for names; what they name are constants of the C library.
    unsafe {
        let find = |name: &std::ffi::CStr| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        let (size, offset) = (find(c"__rseq_size").cast::<u32>(), find(c"__rseq_offset").cast::<isize>());
        (!size.is_null() && !offset.is_null() && *size != 0).then(|| *offset)
    }
}

/// An arena for one child, prepared.
fn prepare(scenario: &Scenario) -> (&'static Arena, &'static [AtomicU64]) {
    let arena = create(&Options::shared("instructions", 0, 64 << 20)).expect("an arena");
    let slots = arena.calloc(SLOTS * 8);
    assert!(!slots.is_null());
    // SAFETY: so many words of zeros, never freed.
    let slots = unsafe { std::slice::from_raw_parts(slots.cast(), SLOTS) };
    (scenario.prepare)(arena, slots);
    (arena, slots)
}

/// Everything is in its place, and the slots say what is live. `strays` blocks may be that nobody has.
fn check(arena: &Arena, slots: &[AtomicU64], strays: usize) -> Result<(), String> {
    let audit = arena.audit();
    let wrong = (audit.lost_slices, audit.wrong_counters, audit.wrong_entries, audit.busy_pages) != (0, 0, 0, 0);
    if wrong || audit.cached != audit.entries {
        return Err(format!("{audit:?}"));
    }
    let mut live: HashMap<usize, i32> = HashMap::new();
    let mut cached: HashMap<usize, i32> = HashMap::new();
    arena.for_each(|cell| match cell {
        Cell::Live(address, _) => *live.entry(address).or_default() += 1,
        Cell::Cached(address) => *cached.entry(address).or_default() += 1,
        Cell::InCache(address) => *cached.entry(address).or_default() += 10,
        Cell::InHands(address) => *cached.entry(address).or_default() += 100,
    });
    if let Some((address, places)) = cached.iter().find(|(_, places)| **places != 11) {
        return Err(format!("cell {address:x} has places {places}"));
    }
    let blocks = slots.iter().map(|slot| slot.load(Acquire) as usize).filter(|block| *block != 0);
    for block in blocks.chain([slots.as_ptr() as usize]) {
        if live.remove(&block).is_none() {
            return Err(format!("{block:x} is in a slot, and not live"));
        }
    }
    if live.len() > strays {
        return Err(format!("live, and in no slot: {live:x?}"));
    }
    Ok(())
}

/// The file and the offset of an instruction, for addr2line.
fn place(ip: u64) -> String {
    // SAFETY: a zeroed structure, filled by the call.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(ip as *const _, &raw mut info) == 0 || info.dli_fname.is_null() {
            return format!("{ip:x}");
        }
        let file = std::ffi::CStr::from_ptr(info.dli_fname).to_string_lossy();
        format!("{file} {:#x}", ip - info.dli_fbase as u64)
    }
}

/// The arena is sound after a death, goes on being used, and gives everything back.
fn judge(arena: &Arena, slots: &[AtomicU64], strays: usize) -> Result<(), String> {
    if !(0..100).any(|_| arena.recover().kept == 0) {
        return Err("a record could not be recovered".into());
    }
    check(arena, slots, strays)?;
    for size in [CELL, 64 << 10, MIB] {
        let blocks: Vec<_> = (0..30).map(|_| arena.malloc(size)).collect();
        blocks.into_iter().for_each(|block| arena.free(block));
    }
    check(arena, slots, strays)?;
    empty(arena, slots);
    arena.trim();
    check(arena, slots, strays)?;
    let Audit { cached, live, large, .. } = arena.audit();
    if cached != 0 || live + large > 1 + strays as u64 {
        return Err(format!("{cached} cells in caches, {live} live, {large} large"));
    }
    Ok(())
}

/// Runs something in a process with one thread on one CPU, which ends within seconds. What it returns is its exit status.
fn alone(run: impl FnOnce() -> i32) -> i32 {
    let mut status = 0;
    // SAFETY: the child ends without running the parent's code; the set is large enough for every CPU.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(120);
            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut cpus);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus);
            libc::_exit(run());
        }
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    assert!(libc::WIFEXITED(status), "ended by signal {}: stuck, or worse", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

/// Words that processes share: a count, then numbers.
fn shared_words(count: usize) -> &'static [AtomicU64] {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping of zeros, for ever.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), count * 8, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        std::slice::from_raw_parts(at.cast(), count)
    }
}

/// The instructions that a scenario comes by, in order. `None` where nobody may be traced.
fn instructions(scenario: &Scenario) -> Option<Vec<u64>> {
    let words = shared_words(LONGEST + 1);
    let status = alone(|| {
        let (arena, slots) = prepare(scenario);
        let Some(child) = Child::start(scenario, arena, slots) else { return 77 };
        let trace = child.trace();
        child.kill();
        trace.iter().zip(&words[1..]).for_each(|(ip, word)| word.store(*ip, Relaxed));
        words[0].store(trace.len() as u64, Relaxed);
        0
    });
    match status {
        77 => None,
        _ => Some(words[1..=words[0].load(Relaxed) as usize].iter().map(|word| word.load(Relaxed)).collect()),
    }
}

/// Instructions, and at which time to die: the first, the last, and one in between.
fn points(trace: &[u64]) -> Vec<(u64, usize)> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    trace.iter().for_each(|ip| *counts.entry(*ip).or_default() += 1);
    let mut order: Vec<u64> = trace.to_vec();
    order.sort_unstable();
    order.dedup();
    let mut points = Vec::new();
    for ip in order {
        let count = counts[&ip];
        points.push((ip, 1));
        points.extend([count / 2, count].into_iter().filter(|times| *times > 1).map(|times| (ip, times)));
    }
    points.dedup();
    points
}

#[test]
fn a_death_at_any_instruction_is_harmless() {
    let all = std::env::var_os("HG_ALL_INSTRUCTIONS").is_some();
    for scenario in &SCENARIOS {
        let Some(trace) = instructions(scenario) else {
            println!("skipped: no child may be traced here");
            return;
        };
        let points = points(&trace);
        // Each run begins elsewhere, so that in time all are tried.
        let step = if all { 1 } else { points.len().div_ceil(TRIES) };
        let first = std::process::id() as usize % step;
        let is_chosen = |(index, point): &(usize, &(u64, usize))| index % step == first || is_in_sequence(point.0);
        let chosen: Vec<_> = points.iter().enumerate().filter(is_chosen).map(|(_, point)| point).collect();
        let reached = shared_words(3);
        for chunk in chosen.chunks(ARENAS) {
            let status = alone(|| {
                for (ip, times) in chunk {
                    let (arena, slots) = prepare(scenario);
                    let Some(child) = Child::start(scenario, arena, slots) else { return 1 };
                    let there = child.run_to(*ip, *times);
                    reached[0].fetch_add(u64::from(there), Relaxed);
                    reached[1].fetch_add(u64::from(there && is_in_sequence(*ip)), Relaxed);
                    child.kill();
                    if let Err(what) = judge(arena, slots, scenario.strays) {
                        eprintln!("{}: killed at {}, time {times}: {what}", scenario.name, place(*ip));
                        return 1;
                    }
                }
                0
            });
            assert_eq!(status, 0, "{}", scenario.name);
        }
        let (killed, in_sequences) = (reached[0].load(Relaxed), reached[1].load(Relaxed));
        println!(
            "{}: {} instructions, {killed} deaths at {} places, {in_sequences} in restartable sequences",
            scenario.name,
            trace.len(),
            chosen.len()
        );
        // Not all are: how long the kernel's files are, and what a clock says, differs from one child to the next.
        assert!(killed * 2 >= chosen.len() as u64, "only {killed} of {} places were reached", chosen.len());
    }
}
