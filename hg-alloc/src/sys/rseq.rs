//! Restartable sequences: where the kernel's per-thread area lies, which of its ids index front caches, and the fence that
//! drains need.
//!
//! glibc (2.35 and later) registers an area for every thread. Its CPU id is negative in a thread that is not registered;
//! the concurrency id, which newer kernels offer, reads 0 there. So the choice which word to index by is made once, at
//! start: the concurrency id if the C library registers and the kernel fills it, else the CPU id if the C library
//! registers, else the stand-in area of [`thread`](super::thread), whose ids are -1 for ever.

use super::thread;
use core::arch::asm;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Offsets in `struct rseq` (linux/rseq.h).
const CPU_ID: isize = 4;
const RSEQ_CS: isize = 8;
const FLAGS: isize = 16;
const MM_CID: isize = 24;

/// The kernel fills `mm_cid` if AT_RSEQ_FEATURE_SIZE is at least this. `__rseq_size` does not tell: glibc 2.36 says 20.
const MM_CID_FEATURE_SIZE: u64 = 28;
const AT_RSEQ_FEATURE_SIZE: u64 = 27;

/// Where a thread's area is, as offsets from the thread pointer.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    /// Of the id that indexes front caches.
    pub(crate) id: isize,
    /// Of the pointer to the current sequence.
    pub(crate) sequence: isize,
    /// Whether there are restartable sequences at all.
    pub(crate) registered: bool,
    /// Whether the id is the concurrency id.
    pub(crate) mm_cid: bool,
}

/// Chooses the area. `allowed` is false where the configuration forbids restartable sequences.
pub(crate) fn choose(allowed: bool) -> Area {
    choose_for(allowed, false)
}

/// As [`choose`], for memory that other processes use too if `shared`: there only the CPU id is one that nobody else has.
pub(crate) fn choose_for(allowed: bool, shared: bool) -> Area {
    match glibc_area() {
        Some(offset) if allowed => {
            // SAFETY: S9, reads the auxiliary vector.
            let mm_cid = !shared && unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } >= MM_CID_FEATURE_SIZE;
            let id = offset + if mm_cid { MM_CID } else { CPU_ID };
            Area { id, sequence: offset + RSEQ_CS, registered: true, mm_cid }
        }
        _ => {
            let offset = thread::block_offset();
            Area { id: offset + CPU_ID, sequence: offset + RSEQ_CS, registered: false, mm_cid: false }
        }
    }
}

/// The area for an arena that one thread uses: its id is 0, and the sequences need not be restartable.
pub(crate) fn single() -> Area {
    let offset = thread::block_offset();
    Area { id: offset + FLAGS, sequence: offset + RSEQ_CS, registered: false, mm_cid: false }
}

/// Offset of the area that glibc registered for every thread, if this glibc knows of it and did register.
fn glibc_area() -> Option<isize> {
    let size: *const u32;
    let offset: *const isize;
    // SAFETY: the symbols are weak, so an older glibc leaves their entries of the global offset table 0.
    unsafe {
        asm!(
            ".weak __rseq_size", ".weak __rseq_offset",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            size = out(reg) size, offset = out(reg) offset, options(nostack, pure, readonly, preserves_flags),
        );
        if size.is_null() || offset.is_null() || *size == 0 { None } else { Some(*offset) }
    }
}

/// The id of the calling thread now: an index, or negative if the thread has no registered area.
pub(crate) fn current_id(offset: isize) -> i32 {
    let id: i32;
    // SAFETY: reads a word of the calling thread's area or of its stand-in.
    unsafe { asm!("mov {0:e}, dword ptr fs:[{1}]", out(reg) id, in(reg) offset, options(nostack, readonly)) };
    id
}

const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

static FENCE: AtomicI32 = AtomicI32::new(0);

fn membarrier(command: i32) -> bool {
    // SAFETY: S9, no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Prepares [`fence`]; cheapest before the process has threads. Returns whether the kernel offers it.
pub(crate) fn register_fence() -> bool {
    let offered = membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ);
    FENCE.store(i32::from(offered), Relaxed);
    offered
}

/// Restarts every sequence that runs on any CPU in this process. After it, nobody acts on a head word read before it.
/// Returns false, having done nothing, where the kernel does not offer it.
pub(crate) fn fence() -> bool {
    FENCE.load(Relaxed) != 0 && membarrier(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ)
}
