//! Pop and push as restartable sequences (linux/Documentation: rseq(2)).
//!
//! Between labels 73 and 74 the kernel moves a thread that was preempted, migrated or interrupted by a signal to label 75;
//! so everything the sequence read still holds when its last instruction, the one store to the head, commits. Nothing but
//! the commit may follow the last read, and nothing at all may follow the commit before label 74.
//!
//! An interrupted sequence (one in 10^5 to 10^6) ends like one that found the array empty or full: in the caller's slow path,
//! which tries again a bounded number of times and then does without. So single steps under a debugger, each of which
//! interrupts the sequence, still get somewhere.
//!
//! No breakpoint, uprobe or USDT site may stand inside: the kernel would run that instruction out of line and drop the
//! protection. The functions are naked, so that what follows an interruption stands behind their `ret`, in the same
//! function and under the same unwind table: debuggers and profilers never meet an address that belongs to nobody.
//!
//! Places in an array count in units of 8 bytes from its head, see [`Head`](super::Head). The malloc and free of
//! `fast.rs` have a pop and a push of their own, made of the same pieces.

use super::{BLOCK_SHIFT, COUNTDOWN_ONE, ENTRY, SMALL_MAX};
use crate::cell::Entry;

/// A byte that says CENTRAL: the state of the entry that a failed pop returns.
static NOT_CACHED: u8 = crate::cell::CENTRAL;

/// A naked function's body around one sequence: `before` and `after` it, its steps with the commit as the last one, and what to
/// do when it did not come to that. Jumps to `75f` give up. The macro's own pieces use rax as scratch before the steps.
#[doc(hidden)]
#[macro_export]
macro_rules! sequence {
    (
        before: [$($before:literal),*], sequence: $sequence:literal,
        steps: [$($step:literal),*], after: [$($after:literal),*], failed: [$($failed:literal),*],
        $($operands:tt)*
    ) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            $($before,)*
            ".pushsection __rseq_cs, \"aw\"", ".balign 32",
            "77:", ".long 0, 0", ".quad 73f, 74f - 73f, 75f", ".popsection",
            "lea rax, [rip + 77b]",
            concat!("mov qword ptr fs:[", $sequence, "], rax"),
            "73:",
            $($step,)*
            "74:",
            $($after,)*
            // The signature before the abort label, dressed as an instruction for disassemblers.
            ".byte 0x0f, 0xb9, 0x3d", ".long 0x53053053",
            "75:",
            $($failed,)*
            ".cfi_endproc",
            $($operands)*
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
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn pop(array: usize, id: isize, sequence: isize) -> Entry {
    sequence!(
        before: [], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov ecx, dword ptr [rdi]",
            "movzx eax, cx",
            "cmp eax, dword ptr [rdi + 4]",
            "jbe 75f",
            "sub ecx, {step}",
            "js 75f",
            "mov rdx, qword ptr [rdi + rax * 8 + 8]",
            "mov rax, qword ptr [rdi + rax * 8]",
            "mov dword ptr [rdi], ecx"
        ],
        after: ["ret"],
        failed: ["xor eax, eax", "lea rdx, [rip + {not_cached}]", "ret"],
        shift = const BLOCK_SHIFT, step = const COUNTDOWN_ONE + ENTRY, not_cached = sym NOT_CACHED,
    )
}

/// Puts an entry on top of an array of the current CPU. False if the array is full or stopped, if the sequence was
/// interrupted, or if there are no restartable sequences here.
///
/// # Safety
/// As for [`pop`]; and S1: the entry's cell is CACHED and in no other place.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn push(array: usize, id: isize, sequence: isize, entry: Entry) -> bool {
    // The entry comes in rcx (cell) and r8 (state).
    sequence!(
        before: [], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov eax, dword ptr [rdi]",
            "movzx edx, ax",
            "cmp edx, dword ptr [rdi + 8]",
            "jae 75f",
            "mov qword ptr [rdi + rdx * 8 + 16], rcx",
            "mov qword ptr [rdi + rdx * 8 + 24], r8",
            "add eax, {entry}",
            "mov dword ptr [rdi], eax"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT, entry = const ENTRY,
    )
}

/// Puts a batch on top of an array of the current CPU, the last entry topmost. False, having put nothing, for the reasons of
/// [`push`], or if there is no room for all.
///
/// # Safety
/// As for [`push`], for each entry.
pub(crate) unsafe fn push_batch(array: usize, id: isize, sequence: isize, batch: &[Entry]) -> bool {
    // SAFETY: the caller's promise.
    batch.is_empty() || unsafe { push_entries(array, id, sequence, batch.as_ptr(), size_of_val(batch)) }
}

/// [`push_batch`] of a batch that has `bytes` bytes, not 0. An interrupted copy lies above the top, where nobody looks.
#[unsafe(naked)]
unsafe extern "sysv64" fn push_entries(
    array: usize,
    id: isize,
    sequence: isize,
    from: *const Entry,
    bytes: usize,
) -> bool {
    sequence!(
        before: ["mov r9, r8", "shr r9, 3"], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov eax, dword ptr [rdi]",
            "movzx edx, ax",
            "lea r10d, [rdx + r9]",
            "cmp r10d, dword ptr [rdi + 8]",
            "ja 75f",
            "lea rdx, [rdi + rdx * 8 + 16]",
            "xor r10d, r10d",
            "72:",
            "movups xmm0, xmmword ptr [rcx + r10]",
            "movups xmmword ptr [rdx + r10], xmm0",
            "add r10, 16",
            "cmp r10, r8",
            "jb 72b",
            "add eax, r9d",
            "mov dword ptr [rdi], eax"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT,
    )
}

/// Takes a batch off the top of an array of the current CPU, the topmost entry last. False, the batch then being rubbish,
/// for the reasons of [`pop`], or if the array holds fewer. The countdown does not count this.
///
/// # Safety
/// As for [`pop`].
pub(crate) unsafe fn pop_batch(array: usize, id: isize, sequence: isize, batch: &mut [Entry]) -> bool {
    // SAFETY: the caller's promise.
    batch.is_empty() || unsafe { pop_entries(array, id, sequence, batch.as_mut_ptr(), size_of_val(batch)) }
}

/// [`pop_batch`] of `bytes` bytes, not 0. An interrupted copy is rubbish in a buffer of the caller.
#[unsafe(naked)]
unsafe extern "sysv64" fn pop_entries(array: usize, id: isize, sequence: isize, to: *mut Entry, bytes: usize) -> bool {
    sequence!(
        before: ["mov r9, r8", "shr r9, 3"], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov eax, dword ptr [rdi]",
            "movzx edx, ax",
            "sub edx, r9d",
            "jb 75f",
            "cmp edx, dword ptr [rdi + 4]",
            "jb 75f",
            "lea rdx, [rdi + rdx * 8 + 16]",
            "xor r10d, r10d",
            "72:",
            "movups xmm0, xmmword ptr [rdx + r10]",
            "movups xmmword ptr [rcx + r10], xmm0",
            "add r10, 16",
            "cmp r10, r8",
            "jb 72b",
            "sub eax, r9d",
            "mov dword ptr [rdi], eax"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT,
    )
}

/// Moves the entries of a small array of the current CPU to its large zone, whose entries begin behind place `zone`. Floor and
/// top change in one store. False, having changed nothing, if the array is not that at `head`, or is no small one.
///
/// # Safety
/// As for [`pop`]; and the class's lock is held, so that nobody else makes the array large, or stops it.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn enlarge(array: usize, id: isize, sequence: isize, head: usize, zone: u32) -> bool {
    sequence!(
        before: ["mov r9d, r8d", "shl r9, 32"], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "cmp rdi, rcx",
            "jne 75f",
            "cmp dword ptr [rdi + 4], 0",
            "jne 75f",
            "mov eax, dword ptr [rdi]",
            "movzx edx, ax",
            "cmp edx, {small_max}",
            "ja 75f",
            "movups xmm0, xmmword ptr [rdi + 16]",
            "movups xmm1, xmmword ptr [rdi + 32]",
            "movups xmm2, xmmword ptr [rdi + 48]",
            "movups xmmword ptr [rdi + r8 * 8 + 16], xmm0",
            "movups xmmword ptr [rdi + r8 * 8 + 32], xmm1",
            "movups xmmword ptr [rdi + r8 * 8 + 48], xmm2",
            "add eax, r8d",
            "or rax, r9",
            "mov qword ptr [rdi], rax"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT, small_max = const SMALL_MAX,
    )
}

/// Sets the countdown of an array of the current CPU. False if the array is stopped or the sequence was interrupted.
///
/// # Safety
/// As for [`pop`]; and the calling thread has restartable sequences: this writes where `pop` and `push` would not.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn arm(array: usize, id: isize, sequence: isize, countdown: u16) -> bool {
    sequence!(
        before: ["shl ecx, 16"], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            // A drain takes a stopped array with plain code: nobody else may write its word.
            "cmp dword ptr [rdi + 4], -1",
            "je 75f",
            "movzx eax, word ptr [rdi]",
            "or eax, ecx",
            "mov dword ptr [rdi], eax"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT,
    )
}
