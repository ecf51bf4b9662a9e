//! vfork, so that its child is a registered thread.
//!
//! A vfork child runs on its parent's memory and thread-local storage, but the kernel does not know it as restartable: its
//! area keeps the parent's last ids, and a child that allocates would use a front cache of a CPU it does not run on, without
//! protection. So the child registers the parent's area for itself. The parent sleeps meanwhile, so the area has one user;
//! when the parent returns, the kernel writes its ids anew. Where the kernel refuses, the child is as unprotected as it would
//! be without us; POSIX allows it nothing but exec and _exit anyway.
//!
//! The return address is kept in a register: the child's use of the shared stack would overwrite it.

use core::arch::naked_asm;
use core::ffi::c_int;

/// `vfork(2)`.
///
/// # Safety
/// As for `vfork(2)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "pop r8",
        ".cfi_def_cfa_offset 0",
        ".cfi_register rip, r8",
        "mov eax, 58", // SYS_vfork
        "syscall",
        "test rax, rax",
        "js 3f",
        "jnz 2f",
        // The child: the C library's area, of 32 bytes, with its signature. SYS_rseq = 334.
        ".weak __rseq_offset",
        "mov rdi, qword ptr [rip + __rseq_offset@GOTPCREL]",
        "test rdi, rdi",
        "jz 1f",
        "mov rdi, qword ptr [rdi]",
        "add rdi, qword ptr fs:[0]",
        "mov esi, 32",
        "xor edx, edx",
        "mov r10d, 0x53053053",
        "mov eax, 334",
        "syscall",
        "1:",
        "xor eax, eax",
        "2:",
        "push r8",
        ".cfi_def_cfa_offset 8",
        "ret",
        "3:",
        "push r8",
        "neg eax",
        "push rax",
        "sub rsp, 8",
        "call __errno_location@PLT",
        "add rsp, 8",
        "pop rcx",
        "mov dword ptr [rax], ecx",
        "mov rax, -1",
        "ret",
        ".cfi_endproc",
    )
}
