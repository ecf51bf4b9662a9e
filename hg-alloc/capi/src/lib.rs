//! `libhg.so` and `libhg.a`: arenas by handle for C and C++, declared in `include/hg.h`.
//!
//! Everything here is the C side of the interface: pointers, texts, structures that may grow, `errno`. What an arena does
//! is `hg_alloc::shared`. No symbol of the malloc family is exported: a program keeps the malloc that it has. The header is
//! made from these sources by cbindgen; `tests/header.rs` fails when the two differ, and rewrites it when asked to.
//!
//! | file | what |
//! |---|---|
//! | `status.rs` | error codes and their texts |
//! | `options.rs` | how an arena is to be made |
//! | `arena.rs` | make, open, pass on |
//! | `memory.rs`, `many.rs`, `sites.rs` | malloc and free: one by one, in batches, with the place of the call |
//! | `figures.rs` | usage, statistics, extents |
//! | `upkeep.rs` | roles, maintenance, recovery after a death |
//! | `callbacks.rs` | telling the program what happened |
//! | `labels.rs` | words for the numbers of all of these |
//!
//! # What C promises
//! No compiler checks what C passes, so `// SAFETY:` comments name it:
//!
//! * C1: an arena is null or a handle of this library; a pointer is null or to as many bytes as the header says; a text ends with
//!   a zero.
//! * C2: a callback is a function of the type that the header gives it, for as long as it is set.
#![allow(clippy::missing_safety_doc, reason = "the header says what callers promise, once for all functions")]

/// Gives functions of the calling module the version of the interface, in the words of the assembler: the linker script that
/// rustc writes for exports knows none. `hg.map` declares it.
macro_rules! versioned {
    ($($name:literal)*) => {
        core::arch::global_asm!($(concat!(".symver ", $name, ", ", $name, "@@@HG_0")),*);
    };
}
use versioned;

pub mod arena;
pub mod callbacks;
pub mod figures;
pub mod handle;
pub mod labels;
pub mod many;
pub mod memory;
pub mod options;
pub mod sites;
pub mod status;
mod text;
pub mod upkeep;
