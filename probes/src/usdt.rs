//! The assembly of a USDT site, and what an argument of a probe may be.
//!
//! A site is a function of its own, written in assembly: `nop; ret`. So a probe has exactly one site however the compiler
//! inlines its callers, and the C calling convention itself pins the arguments to rdi, rsi, rdx, rcx, r8, r9, where a BPF
//! program reads them without decoding anything. The nop has one byte: kernels that optimise a 5-byte nop into a call
//! lose the trampoline on fork, and the child dies at its next hit (seen on 6.18).
//!
//! One 16-bit semaphore per probe name stands in `.probes`; the kernel raises it while a tracer is attached. The section
//! is writable and backed by the file, as the kernel's reference counter wants.
//!
//! Sites and `.stapsdt.base` are marked as retained. A linker sees no use of the base and drops it, and gdb then gives up on
//! all probes of the file; it drops the site of a probe that a program never fires, and leaves a note that points nowhere.
//!
//! The note is SystemTap's version 3: <https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>.

/// A value that fits an argument register of a probe.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code, reason = "no sites there"))]
pub(crate) trait Word: Copy {
    /// The value as the register holds it; signed values are sign-extended.
    fn word(self) -> u64;
}

impl Word for u64 {
    fn word(self) -> u64 {
        self
    }
}

impl Word for u32 {
    fn word(self) -> u64 {
        u64::from(self)
    }
}

impl Word for i32 {
    fn word(self) -> u64 {
        i64::from(self) as u64
    }
}

impl Word for usize {
    fn word(self) -> u64 {
        self as u64
    }
}

/// The argument string of a note for 1 to 6 arguments of 8 bytes.
#[cfg(target_arch = "x86_64")]
macro_rules! note_args {
    ($a:ident) => {
        "8@%rdi"
    };
    ($a:ident $b:ident) => {
        "8@%rdi 8@%rsi"
    };
    ($a:ident $b:ident $c:ident) => {
        "8@%rdi 8@%rsi 8@%rdx"
    };
    ($a:ident $b:ident $c:ident $d:ident) => {
        "8@%rdi 8@%rsi 8@%rdx 8@%rcx"
    };
    ($a:ident $b:ident $c:ident $d:ident $e:ident) => {
        "8@%rdi 8@%rsi 8@%rdx 8@%rcx 8@%r8"
    };
    ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident) => {
        "8@%rdi 8@%rsi 8@%rdx 8@%rcx 8@%r8 8@%r9"
    };
}

/// The argument string of a note for 1 to 6 arguments of 8 bytes.
#[cfg(target_arch = "aarch64")]
macro_rules! note_args {
    ($a:ident) => {
        "8@x0"
    };
    ($a:ident $b:ident) => {
        "8@x0 8@x1"
    };
    ($a:ident $b:ident $c:ident) => {
        "8@x0 8@x1 8@x2"
    };
    ($a:ident $b:ident $c:ident $d:ident) => {
        "8@x0 8@x1 8@x2 8@x3"
    };
    ($a:ident $b:ident $c:ident $d:ident $e:ident) => {
        "8@x0 8@x1 8@x2 8@x3 8@x4"
    };
    ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident) => {
        "8@x0 8@x1 8@x2 8@x3 8@x4 8@x5"
    };
}

/// Assembles the site `hg_probe_NAME`, its semaphore `hg_semaphore_NAME` and its note.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! site {
    ($name:ident $($arg:ident)*) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.hg_probe_", stringify!($name), ",\"axR\",%progbits"),
            concat!(".globl hg_probe_", stringify!($name)),
            concat!(".hidden hg_probe_", stringify!($name)),
            concat!(".type hg_probe_", stringify!($name), ",%function"),
            concat!("hg_probe_", stringify!($name), ":"),
            ".cfi_startproc",
            "990: nop",
            "ret",
            ".cfi_endproc",
            concat!(".size hg_probe_", stringify!($name), ", . - hg_probe_", stringify!($name)),
            ".popsection",
            ".pushsection .probes,\"aw\",%progbits",
            ".balign 2",
            concat!(".globl hg_semaphore_", stringify!($name)),
            concat!(".hidden hg_semaphore_", stringify!($name)),
            concat!(".type hg_semaphore_", stringify!($name), ",%object"),
            concat!(".size hg_semaphore_", stringify!($name), ", 2"),
            concat!("hg_semaphore_", stringify!($name), ": .2byte 0"),
            ".popsection",
            ".pushsection .note.stapsdt,\"\",%note",
            ".balign 4",
            ".4byte 992f-991f, 994f-993f, 3",
            "991: .asciz \"stapsdt\"",
            "992: .balign 4",
            "993: .8byte 990b",
            ".8byte _.stapsdt.base",
            concat!(".8byte hg_semaphore_", stringify!($name)),
            ".asciz \"hg\"",
            concat!(".asciz \"", stringify!($name), "\""),
            concat!(".asciz \"", crate::usdt::note_args!($($arg)*), "\""),
            "994: .balign 4",
            ".popsection",
            ".ifndef _.stapsdt.base",
            ".pushsection .stapsdt.base,\"aGR\",%progbits,.stapsdt.base,comdat",
            ".weak _.stapsdt.base",
            ".hidden _.stapsdt.base",
            "_.stapsdt.base: .space 1",
            ".size _.stapsdt.base, 1",
            ".popsection",
            ".endif",
        );
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use {note_args, site};
