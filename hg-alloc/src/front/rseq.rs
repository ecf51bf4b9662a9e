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

use super::{BLOCK_SHIFT, COUNTDOWN_ONE, ENTRY};
use crate::cell::Entry;
use core::arch::asm;

/// A byte that says CENTRAL: the state of the entry that a failed pop returns.
static NOT_CACHED: u8 = crate::cell::CENTRAL;

/// One sequence: what to do with `head`, the array of the current CPU, down to the commit; and what to do if it did not
/// come to that. `commit` is the last instruction; it may jump nowhere but to 75.
macro_rules! sequence {
    (steps: [$($step:literal),*], commit: $commit:literal, failed: [$($failed:literal),*], $($operands:tt)*) => {
        asm!(
            ".pushsection __rseq_cs, \"aw\"", ".balign 32",
            "77:", ".long 0, 0", ".quad 73f, 74f - 73f, 75f", ".popsection",
            "lea {head}, [rip + 77b]",
            "mov qword ptr fs:[{sequence}], {head}",
            "73:",
            "movsxd {head}, dword ptr fs:[{id}]",
            "shl {head}, {shift}",
            "add {head}, {array}",
            $($step,)*
            $commit,
            "74:", "76:",
            // The signature before the abort label, dressed as an instruction for disassemblers.
            ".pushsection .text.rseq_abort, \"ax\"", ".byte 0x0f, 0xb9, 0x3d", ".long 0x53053053",
            "75:", $($failed,)* "jmp 76b", ".popsection",
            head = out(reg) _, shift = const BLOCK_SHIFT, $($operands)*
            options(nostack),
        )
    };
}

/// Takes the topmost entry of an array of the current CPU. Its `cell` is 0, and its state not CACHED, if the array is empty
/// or stopped, if its countdown is over, if the sequence was interrupted, or if there are no restartable sequences here.
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
        sequence!(
            steps: [
                "mov {word:e}, dword ptr [{head}]",
                "movzx {cell:e}, {word:x}",
                "cmp {cell:e}, dword ptr [{head} + 4]",
                "jbe 75f",
                "sub {word:e}, {step}",
                "js 75f",
                "mov {state}, qword ptr [{head} + {cell} + 8]",
                "mov {cell}, qword ptr [{head} + {cell}]"
            ],
            commit: "mov dword ptr [{head}], {word:e}",
            failed: ["xor {cell:e}, {cell:e}", "lea {state}, [rip + {not_cached}]"],
            word = out(reg) _, cell = out(reg) cell, state = out(reg) state,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            step = const COUNTDOWN_ONE + ENTRY, not_cached = sym NOT_CACHED,
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
    let word: u32;
    // SAFETY: as in `pop`.
    unsafe {
        sequence!(
            steps: [
                "mov {word:e}, dword ptr [{head}]",
                "movzx {top:e}, {word:x}",
                "cmp {top:e}, dword ptr [{head} + 8]",
                "jae 75f",
                "mov qword ptr [{head} + {top} + 16], {cell}",
                "mov qword ptr [{head} + {top} + 24], {state}",
                "add {word:e}, {entry}"
            ],
            commit: "mov dword ptr [{head}], {word:e}",
            failed: ["xor {word:e}, {word:e}"],
            top = out(reg) _, word = out(reg) word,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            cell = in(reg) entry.cell, state = in(reg) entry.state, entry = const ENTRY,
        );
    }
    word != 0
}

/// Puts a batch on top of an array of the current CPU, the last entry topmost. False, having put nothing, for the reasons of
/// [`push`], or if there is no room for all.
///
/// # Safety
/// As for [`push`], for each entry.
pub(crate) unsafe fn push_batch(array: usize, id: isize, sequence: isize, batch: &[Entry]) -> bool {
    if batch.is_empty() {
        return true;
    }
    let word: u32;
    // SAFETY: as in `pop`; an interrupted copy lies above `top`, where nobody looks.
    unsafe {
        sequence!(
            steps: [
                "mov {word:e}, dword ptr [{head}]",
                "movzx {top:e}, {word:x}",
                "lea {at:e}, [{top} + {bytes}]",
                "cmp {at:e}, dword ptr [{head} + 8]",
                "ja 75f",
                "lea {top}, [{head} + {top} + 16]",
                "xor {at:e}, {at:e}",
                "72:",
                "movups {entry}, xmmword ptr [{from} + {at}]",
                "movups xmmword ptr [{top} + {at}], {entry}",
                "add {at}, 16",
                "cmp {at}, {bytes}",
                "jb 72b",
                "add {word:e}, {bytes:e}"
            ],
            commit: "mov dword ptr [{head}], {word:e}",
            failed: ["xor {word:e}, {word:e}"],
            top = out(reg) _, at = out(reg) _, entry = out(xmm_reg) _, word = out(reg) word,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            from = in(reg) batch.as_ptr(), bytes = in(reg) size_of_val(batch),
        );
    }
    word != 0
}

/// Takes a batch off the top of an array of the current CPU, the topmost entry last. False, the batch then being rubbish,
/// for the reasons of [`pop`], or if the array holds fewer. The countdown does not count this.
///
/// # Safety
/// As for [`pop`].
pub(crate) unsafe fn pop_batch(array: usize, id: isize, sequence: isize, batch: &mut [Entry]) -> bool {
    let done: u64;
    // SAFETY: as in `pop`; an interrupted copy is rubbish in a buffer of the caller.
    unsafe {
        sequence!(
            steps: [
                "mov {word:e}, dword ptr [{head}]",
                "movzx {rest:e}, {word:x}",
                "sub {rest:e}, {bytes:e}",
                "jb 75f",
                "cmp {rest:e}, dword ptr [{head} + 4]",
                "jb 75f",
                "lea {rest}, [{head} + {rest} + 16]",
                "xor {at:e}, {at:e}",
                "72:",
                "movups {entry}, xmmword ptr [{rest} + {at}]",
                "movups xmmword ptr [{to} + {at}], {entry}",
                "add {at}, 16",
                "cmp {at}, {bytes}",
                "jb 72b",
                "sub {word:e}, {bytes:e}",
                "mov {at:e}, 1"
            ],
            commit: "mov dword ptr [{head}], {word:e}",
            failed: ["xor {at:e}, {at:e}"],
            rest = out(reg) _, at = out(reg) done, entry = out(xmm_reg) _, word = out(reg) _,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            to = in(reg) batch.as_mut_ptr(), bytes = in(reg) size_of_val(batch),
        );
    }
    done != 0
}

/// Sets the countdown of an array of the current CPU. False if the array is stopped or the sequence was interrupted.
///
/// # Safety
/// As for [`pop`]; and the calling thread has restartable sequences: this writes where `pop` and `push` would not.
pub(crate) unsafe fn arm(array: usize, id: isize, sequence: isize, countdown: u16) -> bool {
    let done: u32;
    // SAFETY: as in `pop`.
    unsafe {
        sequence!(
            steps: [
                // A drain takes a stopped array with plain code: nobody else may write its word.
                "cmp dword ptr [{head} + 4], 0",
                "jne 75f",
                "movzx {word:e}, word ptr [{head}]",
                "or {word:e}, {countdown:e}",
                "mov {done:e}, 1"
            ],
            commit: "mov dword ptr [{head}], {word:e}",
            failed: ["xor {done:e}, {done:e}"],
            word = out(reg) _, done = out(reg) done,
            array = in(reg) array, id = in(reg) id, sequence = in(reg) sequence,
            countdown = in(reg) u32::from(countdown) * COUNTDOWN_ONE,
        );
    }
    done != 0
}
