//! The fast paths of malloc and free for the process's arena, from the first instruction to the `ret`.
//!
//! malloc is a look-up of the class's array by size, a pop, and a check of the state byte; free is the slice's descriptor, a
//! check of address and state, and a push. They are naked functions around one restartable sequence each (see
//! `front/rseq.rs` for its rules): no frame, no call, no branch but those of the checks. Whatever they cannot do they pass
//! on, by a jump, to `small.rs` (medium sizes), `refill.rs`, `flush.rs` or `safety/look_up.rs`.
//!
//! The bodies are macros, so that the preload library's `malloc` and `free` are these functions and not a jump to them.
//!
//! Before the arena is started `table_limit` and `limit` are 0, so the first compare of each leads to a slow path.

use crate::PROCESS;
use crate::arena::{Arena, Hot};
use crate::cell;
use crate::cell::Entry;
use crate::front;
use crate::grid::tables::Descriptor;
use crate::size_class;
use core::mem::offset_of;

pub use crate::small::ARRAYS;

const HOT: usize = offset_of!(Arena, hot);

/// The numbers that the bodies below are made of: where things lie in the arena and in a descriptor, states, shifts.
#[doc(hidden)]
pub mod part {
    use super::*;

    pub const TABLE_LIMIT: usize = HOT + offset_of!(Hot, table_limit);
    pub const FRONTS: usize = HOT + offset_of!(Hot, fronts);
    pub const ID: usize = HOT + offset_of!(Hot, id);
    pub const SEQUENCE: usize = HOT + offset_of!(Hot, sequence);
    pub const BASE: usize = HOT + offset_of!(Hot, base);
    pub const LIMIT: usize = HOT + offset_of!(Hot, limit);
    pub const DESCRIPTORS: usize = HOT + offset_of!(Hot, descriptors);
    pub const DESCRIPTOR_SHIFT: u32 = size_class::SLICE_SHIFT - size_of::<Descriptor>().trailing_zeros();
    pub const DESCRIPTOR_MASK: i32 = -(size_of::<Descriptor>() as i32);
    pub const RECIPROCAL: usize = offset_of!(Descriptor, reciprocal);
    pub const START: usize = offset_of!(Descriptor, start);
    pub const FIRST_STATE: usize = offset_of!(Descriptor, first_state);
    pub const ARRAY: usize = offset_of!(Descriptor, array);
    pub const BLOCK_SHIFT: u32 = front::BLOCK_SHIFT;
    pub const ENTRY: u32 = front::ENTRY;
    pub const STEP: u32 = front::COUNTDOWN_ONE + front::ENTRY;
    pub const CACHED: u8 = cell::CACHED;
    pub const LIVE: u8 = cell::LIVE;
}

/// malloc once r8 is the class's array in block 0, rdi the size, and rdx and rcx the offsets of the thread's id and sequence.
#[doc(hidden)]
#[macro_export]
macro_rules! pop_and_mark {
    ([$($before:literal),*], $($operands:tt)*) => {
        $crate::sequence!(
            before: [$($before),*], sequence: "rcx",
            steps: [
                "movsxd rax, dword ptr fs:[rdx]",
                "shl rax, {shift}",
                "add r8, rax",
                "mov ecx, dword ptr [r8]",
                "movzx eax, cx",
                "cmp eax, dword ptr [r8 + 4]",
                "jbe 75f",
                "sub ecx, {step}",
                "js 75f",
                "mov rdx, qword ptr [r8 + rax * 8 + 8]",
                "mov rax, qword ptr [r8 + rax * 8]",
                "mov dword ptr [r8], ecx"
            ],
            after: [
                "cmp byte ptr [rdx], {cached}",
                "jne 71f",
                "mov byte ptr [rdx], {live}",
                "ret",
                // Not what a front cache may hold: the slow path says so, and takes the next.
                "71:",
                "mov rsi, rax",
                "jmp {slow}"
            ],
            failed: ["xor esi, esi", "jmp {slow}"],
            shift = const $crate::fast::part::BLOCK_SHIFT, step = const $crate::fast::part::STEP,
            cached = const $crate::fast::part::CACHED, live = const $crate::fast::part::LIVE,
            slow = sym $crate::fast::malloc_slow, process = sym $crate::PROCESS,
            id = const $crate::fast::part::ID, sequence = const $crate::fast::part::SEQUENCE, $($operands)*
        )
    };
}

/// The body of `extern "sysv64" fn malloc(size: usize) -> *mut u8`.
// The table's index is in range: its limit is at most TABLE_MAX + 1. S5: all values are the started arena's.
#[doc(hidden)]
#[macro_export]
macro_rules! malloc_body {
    () => {
        $crate::pop_and_mark!(
            [
                "cmp rdi, qword ptr [rip + {process} + {table_limit}]",
                "jae {medium}",
                "lea rax, [rdi + 15]",
                "shr rax, 4",
                "lea rcx, [rip + {arrays}]",
                "mov r8d, dword ptr [rcx + rax * 4]",
                "add r8, qword ptr [rip + {process} + {fronts}]",
                "mov rdx, qword ptr [rip + {process} + {id}]",
                "mov rcx, qword ptr [rip + {process} + {sequence}]"
            ],
            table_limit = const $crate::fast::part::TABLE_LIMIT, fronts = const $crate::fast::part::FRONTS,
            arrays = sym $crate::fast::ARRAYS, medium = sym $crate::fast::malloc_medium,
        )
    };
}

/// The body of `extern "sysv64" fn free(address: *mut u8)`.
// S4: descriptors of accessible memory are accessible for ever, and so are the states that they name; a slice of no span
// has reciprocal 0, which no rest is below. S1: a cell that was live was the caller's alone.
#[doc(hidden)]
#[macro_export]
macro_rules! free_body {
    () => {
        $crate::sequence!(
            before: [
                "mov rax, rdi",
                "sub rax, qword ptr [rip + {process} + {base}]",
                "cmp rax, qword ptr [rip + {process} + {limit}]",
                "jae {slow}",
                "mov rcx, qword ptr [rip + {process} + {descriptors}]",
                // The descriptor's address is never in one register: an add before these loads costs 0.6 ns a pair.
                "mov r8, rax",
                "shr r8, {descriptor_shift}",
                "and r8, {descriptor_mask}",
                "mov r9, qword ptr [rcx + r8 + {reciprocal}]",
                "mov rdx, qword ptr [rcx + r8 + {start}]",
                "sub rax, rdx",
                "mul r9",
                "mov rsi, qword ptr [rcx + r8 + {first_state}]",
                "cmp r9, rax",
                "jbe {slow}",
                "movzx eax, byte ptr [rsi + rdx]",
                "cmp al, {live}",
                "jne {slow}",
                "add rdx, rsi",
                "mov byte ptr [rdx], {cached}",
                "mov r8, qword ptr [rcx + r8 + {array}]",
                "mov rcx, qword ptr [rip + {process} + {id}]",
                "mov r9, qword ptr [rip + {process} + {sequence}]"
            ],
            sequence: "r9",
            steps: [
                "movsxd rax, dword ptr fs:[rcx]",
                "shl rax, {shift}",
                "add r8, rax",
                "mov eax, dword ptr [r8]",
                "movzx ecx, ax",
                "cmp ecx, dword ptr [r8 + 8]",
                "jae 75f",
                "mov qword ptr [r8 + rcx * 8 + 16], rdi",
                "mov qword ptr [r8 + rcx * 8 + 24], rdx",
                "add eax, {entry}",
                "mov dword ptr [r8], eax"
            ],
            after: ["ret"],
            failed: ["mov rsi, rdx", "jmp {flush}"],
            process = sym $crate::PROCESS, base = const $crate::fast::part::BASE,
            limit = const $crate::fast::part::LIMIT, descriptors = const $crate::fast::part::DESCRIPTORS,
            id = const $crate::fast::part::ID, sequence = const $crate::fast::part::SEQUENCE,
            descriptor_shift = const $crate::fast::part::DESCRIPTOR_SHIFT,
            descriptor_mask = const $crate::fast::part::DESCRIPTOR_MASK,
            reciprocal = const $crate::fast::part::RECIPROCAL, start = const $crate::fast::part::START,
            first_state = const $crate::fast::part::FIRST_STATE, array = const $crate::fast::part::ARRAY,
            live = const $crate::fast::part::LIVE, cached = const $crate::fast::part::CACHED,
            shift = const $crate::fast::part::BLOCK_SHIFT, entry = const $crate::fast::part::ENTRY,
            slow = sym $crate::fast::free_slow, flush = sym $crate::fast::flush,
        )
    };
}

/// Allocates `size` bytes. Null with ENOMEM if there is no memory.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn malloc(size: usize) -> *mut u8 {
    malloc_body!()
}

/// Frees. A bad address is refused and counted.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn free(address: *mut u8) {
    free_body!()
}

/// Allocates `size` bytes from a class's array in block 0.
///
/// # Safety
/// S5: the arena is started, and `array` is that of the class of `size`.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn malloc_from(size: usize, array: usize) -> *mut u8 {
    pop_and_mark!([
        "mov r8, rsi",
        "mov rdx, qword ptr [rip + {process} + {id}]",
        "mov rcx, qword ptr [rip + {process} + {sequence}]"
    ],)
}

/// What a fast malloc jumps to: the size, and the entry that it popped and must not use, or none (`cell` 0).
#[doc(hidden)]
pub extern "sysv64" fn malloc_slow(size: usize, cell: usize, state: usize) -> *mut u8 {
    match PROCESS.malloc_in_slot(size) {
        Some(address) => address,
        None => PROCESS.malloc_slow(size, Entry { cell, state }),
    }
}

#[doc(hidden)]
pub extern "sysv64" fn malloc_medium(size: usize) -> *mut u8 {
    PROCESS.malloc_medium(size)
}

#[doc(hidden)]
pub extern "sysv64" fn free_slow(address: usize) {
    PROCESS.free_slow(address);
}

#[doc(hidden)]
pub extern "sysv64" fn flush(cell: usize, state: usize) {
    let entry = Entry { cell, state };
    if !PROCESS.free_in_slot(entry) {
        PROCESS.flush(entry);
    }
}
