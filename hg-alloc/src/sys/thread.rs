//! The calling thread: its id, and the thread-local words of the allocator.
//!
//! All thread-local storage of hg is one block of 64 bytes under the initial-exec model, constant-initialised, without a
//! destructor: the thread's id, the rank of its locks, and a stand-in for the restartable-sequences area whose CPU ids are -1 for ever. The
//! compiler has no stable way to ask for that model, hence the assembly; a dynamic model would call `__tls_get_addr`,
//! which may allocate.

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
    ".4byte 0",      // flags
    ".4byte -1, -1", // node_id, mm_cid
    ".4byte 0",
    ".4byte 0, 0", // at 32: the thread's id; the highest rank of a lock it holds
    ".8byte 0, 0, 0",
    ".popsection",
);

const TID: usize = 32;
const RANK: usize = 36;

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
