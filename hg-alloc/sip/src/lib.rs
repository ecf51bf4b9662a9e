//! `libhg_sip.so`: the shared and private memory of an unmodified Kamailio or OpenSIPS, on hg.
//!
//! Used as `LD_PRELOAD=libhg_sip.so kamailio ...`. Both servers have one allocator for memory that all their processes share
//! (shm, of the size `-m`) and one for each process (pkg, `-M`), reached by pointers that their executables export. The library
//! builds arenas in their place and rewrites the pointers. In any other program it does nothing.
//!
//! | file | what |
//! |---|---|
//! | `hooks.rs` | functions of the C library that say when to look, and the library's start |
//! | `server.rs` | which server this is, and the moments of its start |
//! | `domain.rs`, `old.rs` | shm and pkg: an arena, and the server's own allocator behind it |
//! | `kamailio/`, `opensips/` | what each server exports, and the functions that it gets |
//! | `figures.rs`, `dump.rs` | statistics and dumps that servers ask for |
//! | `tend.rs`, `roles.rs` | a thread of the main process: maintenance, and the roles of processes |
//! | `cpus.rs` | where processes may run |
//! | `symbols.rs`, `patch.rs`, `settings.rs`, `report.rs`, `once.rs` | what these use |

// Without std the library needs libc.so.6 alone, has no thread-local storage but the core's, and no destructors.
#![cfg_attr(not(test), no_std)]

mod cpus;
mod domain;
mod dump;
mod figures;
pub mod hooks;
mod kamailio;
mod old;
mod once;
mod opensips;
mod patch;
mod report;
mod roles;
mod server;
mod settings;
mod symbols;
mod tend;

/// Nothing here panics on purpose; where the compiler cannot prove that, the process ends without a word: formatting one
/// could allocate.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

// The precompiled core names the personality of unwinding frames. Nothing unwinds here, so it is never called; a hidden
// symbol of that name keeps the loader from looking for one.
#[cfg(not(test))]
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality,\"ax\",%progbits",
    ".weak rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality,%function",
    "rust_eh_personality:",
    ".4byte 0",
    ".size rust_eh_personality, . - rust_eh_personality",
    ".popsection",
);
