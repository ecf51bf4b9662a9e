//! Pop and push as restartable sequences (linux/Documentation: rseq(2)).
//!
//! Between labels 73 and 74 the kernel moves a thread that was preempted, migrated or interrupted by a signal to label 75,
//! which starts over; so everything the sequence read still holds when its last instruction, the one store to `top`,
//! commits. Nothing but the commit may follow the last read, and nothing at all may follow the commit before label 74.
//! A sequence is restarted 16 times at most: under a debugger's single steps it would be restarted for ever. Then, as for
//! an empty or full array, the caller takes its slow path, which needs no sequence.
//!
//! No breakpoint, uprobe or USDT site may stand inside: the kernel would run that instruction out of line and drop the
//! protection.

use super::BLOCK_SHIFT;
use crate::cell::Entry;
use core::arch::asm;

/// Takes the topmost entry of an array of the current CPU. `None`: empty, stopped, or no restartable sequences here.
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
            "mov {tries:e}, 16",
            "70:", "lea {head}, [rip + 77b]",
            "mov qword ptr fs:[{sequence}], {head}",
            "73:", "movsxd {head}, dword ptr fs:[{id}]",
            "shl {head}, {shift}",
            "add {head}, {array}",
            "mov {cell:e}, dword ptr [{head}]",
            "cmp {cell:e}, dword ptr [{head} + 4]",
            "jbe 78f",
            "lea {top:e}, [{cell} - 16]",
            "mov {state}, qword ptr [{head} + {cell} + 8]",
            "mov {cell}, qword ptr [{head} + {cell}]",
            "mov dword ptr [{head}], {top:e}",
            "74:", "76:",
            // The signature before the abort label, dressed as an instruction for disassemblers.
            ".pushsection .text.rseq_abort, \"ax\"", ".byte 0x0f, 0xb9, 0x3d", ".long 0x53053053",
            "75:", "dec {tries:e}", "jnz 70b",
            "78:", "xor {cell:e}, {cell:e}", "jmp 76b", ".popsection",
            head = out(reg) _, top = out(reg) _, tries = out(reg) _,
            cell = out(reg) cell, state = out(reg) state,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            shift = const BLOCK_SHIFT,
            options(nostack),
        );
    }
    Entry { cell, state }
}

/// Puts an entry on top of an array of the current CPU. False: full, stopped, or no restartable sequences here.
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
            "mov {tries:e}, 16",
            "70:", "lea {head}, [rip + 77b]",
            "mov qword ptr fs:[{sequence}], {head}",
            "73:", "movsxd {head}, dword ptr fs:[{id}]",
            "shl {head}, {shift}",
            "add {head}, {array}",
            "mov {top:e}, dword ptr [{head}]",
            "cmp {top:e}, dword ptr [{head} + 8]",
            "jae 78f",
            "mov qword ptr [{head} + {top} + 16], {cell}",
            "mov qword ptr [{head} + {top} + 24], {state}",
            "add {top:e}, 16",
            "mov dword ptr [{head}], {top:e}",
            "74:", "76:",
            ".pushsection .text.rseq_abort, \"ax\"", ".byte 0x0f, 0xb9, 0x3d", ".long 0x53053053",
            "75:", "dec {tries:e}", "jnz 70b",
            "78:", "xor {top:e}, {top:e}", "jmp 76b", ".popsection",
            head = out(reg) _, tries = out(reg) _, top = out(reg) top,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            cell = in(reg) entry.cell, state = in(reg) entry.state,
            shift = const BLOCK_SHIFT,
            options(nostack),
        );
    }
    top != 0
}
