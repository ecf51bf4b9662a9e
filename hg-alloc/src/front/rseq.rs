//! Pop and push as restartable sequences (linux/Documentation: rseq(2)).
//!
//! Between labels 73 and 74 the kernel moves a thread that was preempted, migrated or interrupted by a signal to label 75;
//! so everything the sequence read still holds when its last instruction, the one store to `top`, commits. Nothing but the
//! commit may follow the last read, and nothing at all may follow the commit before label 74.
//!
//! An interrupted sequence (one in 10^5 to 10^6) ends like one that found the array empty or full: in the caller's slow path,
//! which tries again a bounded number of times and then does without. So single steps under a debugger, each of which
//! interrupts the sequence, still get somewhere.
//!
//! No breakpoint, uprobe or USDT site may stand inside: the kernel would run that instruction out of line and drop the
//! protection.

use super::BLOCK_SHIFT;
use crate::cell::Entry;
use core::arch::asm;

/// A byte that says CENTRAL: the state of the entry that a failed pop returns.
static NOT_CACHED: u8 = crate::cell::CENTRAL;

/// Takes the topmost entry of an array of the current CPU. Its `cell` is 0, and its state not CACHED, if the array is empty
/// or stopped, if the sequence was interrupted, or if there are no restartable sequences here.
///
/// `array` is the class's array in block 0; `id` and `sequence` are those of [`Area`](crate::sys::rseq::Area).
///
/// # Safety
/// S5: the three values belong to one started arena.
#[inline(always)]
pub(crate) unsafe fn pop(array: usize, id: isize, sequence: isize) -> Entry {
    let (cell, state): (usize, usize);
    // SAFETY: S5. The descriptor lies in this object, which is never unloaded.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"", ".balign 32",
            "77:", ".long 0, 0", ".quad 73f, 74f - 73f, 75f", ".popsection",
            "lea {head}, [rip + 77b]",
            "mov qword ptr fs:[{sequence}], {head}",
            "73:", "movsxd {head}, dword ptr fs:[{id}]",
            "shl {head}, {shift}",
            "add {head}, {array}",
            "mov {cell:e}, dword ptr [{head}]",
            "cmp {cell:e}, dword ptr [{head} + 4]",
            "jbe 75f",
            "lea {top:e}, [{cell} - 16]",
            "mov {state}, qword ptr [{head} + {cell} + 8]",
            "mov {cell}, qword ptr [{head} + {cell}]",
            "mov dword ptr [{head}], {top:e}",
            "74:", "76:",
            // The signature before the abort label, dressed as an instruction for disassemblers.
            ".pushsection .text.rseq_abort, \"ax\"", ".byte 0x0f, 0xb9, 0x3d", ".long 0x53053053",
            "75:", "xor {cell:e}, {cell:e}", "lea {state}, [rip + {not_cached}]", "jmp 76b", ".popsection",
            head = out(reg) _, top = out(reg) _,
            cell = out(reg) cell, state = out(reg) state,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            shift = const BLOCK_SHIFT, not_cached = sym NOT_CACHED,
            options(nostack),
        );
    }
    Entry { cell, state }
}

/// Puts an entry on top of an array of the current CPU. False if the array is full or stopped, if the sequence was
/// interrupted, or if there are no restartable sequences here.
///
/// # Safety
/// As for [`pop`]; and S1: the entry's cell is CACHED and in no other place.
#[inline(always)]
pub(crate) unsafe fn push(array: usize, id: isize, sequence: isize, entry: Entry) -> bool {
    let top: usize;
    // SAFETY: as in `pop`.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"", ".balign 32",
            "77:", ".long 0, 0", ".quad 73f, 74f - 73f, 75f", ".popsection",
            "lea {head}, [rip + 77b]",
            "mov qword ptr fs:[{sequence}], {head}",
            "73:", "movsxd {head}, dword ptr fs:[{id}]",
            "shl {head}, {shift}",
            "add {head}, {array}",
            "mov {top:e}, dword ptr [{head}]",
            "cmp {top:e}, dword ptr [{head} + 8]",
            "jae 75f",
            "mov qword ptr [{head} + {top} + 16], {cell}",
            "mov qword ptr [{head} + {top} + 24], {state}",
            "add {top:e}, 16",
            "mov dword ptr [{head}], {top:e}",
            "74:", "76:",
            ".pushsection .text.rseq_abort, \"ax\"", ".byte 0x0f, 0xb9, 0x3d", ".long 0x53053053",
            "75:", "xor {top:e}, {top:e}", "jmp 76b", ".popsection",
            head = out(reg) _, top = out(reg) top,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            cell = in(reg) entry.cell, state = in(reg) entry.state,
            shift = const BLOCK_SHIFT,
            options(nostack),
        );
    }
    top != 0
}
