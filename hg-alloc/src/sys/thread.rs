//! The calling thread: its id, and the thread-local words of the allocator.
//!
//! All thread-local storage of hg is under the initial-exec model, constant-initialised, without a destructor. A block of 64
//! bytes: the thread's id, the rank of its locks, and a stand-in for the restartable-sequences area whose CPU ids are -1 for
//! ever. Then 128 bytes of records: where the thread has its record in each arena made by handle; their section is their own,
//! so the linker leaves them out of a library that makes no such arena. The compiler has no stable way to ask for that model,
//! hence the assembly; a dynamic model would call `__tls_get_addr`, which may allocate.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

global_asm!(
    ".pushsection .tdata,\"awT\",@progbits",
    ".balign 32",
    ".globl hg_thread_block",
    ".hidden hg_thread_block",
    ".type hg_thread_block,@object",
    ".size hg_thread_block, 64",
    "hg_thread_block:",
    ".4byte -1, -1", // the stand-in area: cpu_id_start, cpu_id
    ".8byte 0",      // rseq_cs, written and never read
    ".4byte 0",      // flags, which are 0 for ever, and the id in arenas that one thread uses
    ".4byte -1, -1", // node_id, mm_cid
    ".4byte 0",
    ".4byte 0, 0", // at 32: the thread's id; the highest rank of a lock it holds
    ".8byte 0, 0, 0",
    ".popsection",
    ".pushsection .tbss.hg_thread_records,\"awT\",@nobits",
    ".balign 32",
    ".globl hg_thread_records",
    ".hidden hg_thread_records",
    ".type hg_thread_records,@object",
    ".size hg_thread_records, 128",
    "hg_thread_records:",
    ".zero 128", // an address for each handle
    ".popsection",
);

const TID: usize = 32;
const RANK: usize = 36;

/// Records that a thread can have.
const MOST_RECORDS: usize = 16;

/// Offset of the thread block from the thread pointer, the same in every thread.
pub(crate) fn block_offset() -> isize {
    let offset: isize;
    // SAFETY: reads a constant of the global offset table, or an immediate after relaxation.
    unsafe {
        asm!("mov {0}, qword ptr [rip + hg_thread_block@gottpoff]", out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    offset
}

fn block() -> usize {
    let thread_pointer: usize;
    // SAFETY: the first word of the thread control block is its own address (x86-64 ABI).
    unsafe {
        asm!("mov {0}, qword ptr fs:[0]", out(reg) thread_pointer, options(nostack, pure, readonly, preserves_flags));
    }
    thread_pointer.wrapping_add_signed(block_offset())
}

fn word(offset: usize) -> &'static AtomicU32 {
    // SAFETY: the word lives as long as the thread and nobody else's reference outlives a call in it.
    unsafe { &*((block() + offset) as *const AtomicU32) }
}

/// Id of the calling thread in its pid namespace. One system call in a thread's life.
#[inline]
pub(crate) fn tid() -> u32 {
    match word(TID).load(Relaxed) {
        0 => ask_tid(),
        tid => tid,
    }
}

#[cold]
fn ask_tid() -> u32 {
    // SAFETY: S9, no arguments.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    word(TID).store(tid, Relaxed);
    tid
}

/// Forgets the id: the calling thread is the only one of a forked child.
pub(crate) fn forget_tid() {
    word(TID).store(0, Relaxed);
}

/// The highest rank of the locks that the calling thread holds or is taking, 0 for none.
pub(crate) fn rank() -> u32 {
    word(RANK).load(Relaxed)
}

/// Sets that rank. Signal handlers look at it, so it is raised before a lock is taken and lowered after its release.
pub(crate) fn set_rank(rank: u32) {
    word(RANK).store(rank, Relaxed);
}

/// Where a thread has its record in the arena of a handle, from the thread pointer.
pub(crate) fn record_offset(handle: usize) -> isize {
    let offset: isize;
    // SAFETY: reads a constant of the global offset table, or an immediate after relaxation.
    unsafe {
        asm!("mov {0}, qword ptr [rip + hg_thread_records@gottpoff]", out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    offset.wrapping_add_unsigned(handle.min(MOST_RECORDS - 1) * 8)
}

/// Address of the calling thread's record in the arena of a handle, 0 for none yet.
pub(crate) fn record(handle: usize) -> usize {
    word_at(record_offset(handle))
}

/// A word of the calling thread's storage.
#[inline(always)]
pub(crate) fn word_at(offset: isize) -> usize {
    let address: usize;
    // SAFETY: reads a word of the calling thread's storage.
    unsafe {
        asm!("mov {0}, qword ptr fs:[{1}]", out(reg) address, in(reg) offset, options(nostack, readonly, preserves_flags))
    };
    address
}

/// Remembers that record.
pub(crate) fn set_record(handle: usize, address: usize) {
    let offset = record_offset(handle);
    // SAFETY: writes one of the calling thread's records, which nothing refers to.
    unsafe { asm!("mov qword ptr fs:[{1}], {0}", in(reg) address, in(reg) offset, options(nostack, preserves_flags)) };
}

/// Forgets all records: they are another process's.
pub(crate) fn forget_records() {
    (0..MOST_RECORDS).for_each(|handle| set_record(handle, 0));
}

/// CPUs: a bit each.
pub(crate) type Cpus = [u64; 128];

/// The CPUs that the calling thread may run on.
pub(crate) fn affinity() -> Option<Cpus> {
    let mut cpus = [0; 128];
    // SAFETY: S9, the kernel writes at most the bytes of the local array.
    let got = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of::<Cpus>(), cpus.as_mut_ptr()) };
    (got > 0).then_some(cpus)
}

/// Sets the CPUs that the calling thread may run on. False if the system refuses.
pub(crate) fn set_affinity(cpus: &Cpus) -> bool {
    // SAFETY: S9, the kernel reads the array.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of::<Cpus>(), cpus.as_ptr()) == 0 }
}

/// Whether a CPU is among them.
pub(crate) fn contains(cpus: &Cpus, cpu: usize) -> bool {
    cpus.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 != 0)
}

/// Moves the calling thread to a CPU. False if it may not run there.
pub(crate) fn run_on(cpu: usize) -> bool {
    let mut cpus = [0; 128];
    let Some(word) = cpus.get_mut(cpu / 64) else { return false };
    *word = 1 << (cpu % 64);
    set_affinity(&cpus)
}

/// Sleeps for so many ns, or less.
pub(crate) fn pause(ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // SAFETY: S9, the structure outlives the call.
    unsafe { libc::syscall(libc::SYS_nanosleep, &time, core::ptr::null_mut::<libc::timespec>()) };
}

/// A number that nobody can foretell; of the clock where the kernel has none yet.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: S9, the kernel writes at most eight bytes.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), libc::GRND_NONBLOCK) };
    if got == 8 { u64::from_ne_bytes(bytes) } else { super::clock::now_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

/// Lets another thread run.
pub(crate) fn yield_now() {
    // SAFETY: S9, no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Id of the process in its pid namespace.
pub(crate) fn pid() -> u32 {
    // SAFETY: S9, no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}
