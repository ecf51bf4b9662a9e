//! The replaceable allocation functions of C++ (\[new.delete\] of the standard), under their mangled names.
//!
//! A throwing form must not return null: it asks the program's new-handler for memory until there is none to ask, then
//! lets the runtime throw `std::bad_alloc`. Handler and runtime may unwind, which no Rust frame may see; so these forms
//! are assembly with unwind tables, around one Rust function that never unwinds. Both runtime functions are weak: a
//! program without a C++ runtime is aborted instead.

use core::arch::naked_asm;
use core::ffi::c_void;
use hg_alloc::raw;

/// What the throwing forms call. Null: no memory.
extern "C" fn attempt(size: usize, align: usize) -> *mut c_void {
    if size > raw::MAX_REQUEST || !align.is_power_of_two() {
        return core::ptr::null_mut();
    }
    raw::aligned(align, size).cast()
}

/// The loop of the throwing forms.
#[unsafe(naked)]
unsafe extern "C-unwind" fn operator_new(size: usize, align: usize) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "push rbx",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbx, -16",
        "push r12",
        ".cfi_def_cfa_offset 24",
        ".cfi_offset r12, -24",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 32",
        "mov rbx, rdi",
        "mov r12, rsi",
        "2:",
        "mov rdi, rbx",
        "mov rsi, r12",
        "call {attempt}",
        "test rax, rax",
        "jz 3f",
        "add rsp, 8",
        ".cfi_remember_state",
        ".cfi_def_cfa_offset 24",
        "pop r12",
        ".cfi_def_cfa_offset 16",
        "pop rbx",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_restore_state",
        "3:",
        ".weak _ZSt15get_new_handlerv",
        "mov rax, qword ptr [rip + _ZSt15get_new_handlerv@GOTPCREL]",
        "test rax, rax",
        "jz 4f",
        "call rax",
        "test rax, rax",
        "jz 4f",
        "call rax",
        "jmp 2b",
        "4:",
        ".weak _ZSt17__throw_bad_allocv",
        "mov rax, qword ptr [rip + _ZSt17__throw_bad_allocv@GOTPCREL]",
        "test rax, rax",
        "jz 5f",
        "call rax",
        "5:",
        "call {abort}",
        "ud2",
        ".cfi_endproc",
        attempt = sym attempt,
        abort = sym libc::abort,
    )
}

macro_rules! throwing {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident),*) { $set_align:literal })*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        /// As the standard says of this operator.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        pub unsafe extern "C-unwind" fn $name($($arg: usize),*) -> *mut c_void {
            naked_asm!($set_align, "jmp {0}", sym operator_new)
        }
    )* };
}

throwing! {
    /// `operator new(size_t)`.
    fn _Znwm(size) { "mov esi, 16" }
    /// `operator new[](size_t)`.
    fn _Znam(size) { "mov esi, 16" }
    /// `operator new(size_t, align_val_t)`.
    fn _ZnwmSt11align_val_t(size, align) { "" }
    /// `operator new[](size_t, align_val_t)`.
    fn _ZnamSt11align_val_t(size, align) { "" }
}

macro_rules! operators {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $body:expr })*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        /// As the standard says of this operator.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret { $body }
    )* };
}

operators! {
    /// `operator new(size_t, nothrow_t const&)`.
    fn _ZnwmRKSt9nothrow_t(size: usize, _tag: usize) -> *mut c_void { attempt(size, raw::MIN_ALIGN) }
    /// `operator new[](size_t, nothrow_t const&)`.
    fn _ZnamRKSt9nothrow_t(size: usize, _tag: usize) -> *mut c_void { attempt(size, raw::MIN_ALIGN) }
    /// `operator new(size_t, align_val_t, nothrow_t const&)`.
    fn _ZnwmSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, _tag: usize) -> *mut c_void { attempt(size, align) }
    /// `operator new[](size_t, align_val_t, nothrow_t const&)`.
    fn _ZnamSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, _tag: usize) -> *mut c_void { attempt(size, align) }
    /// `operator delete(void*)`.
    fn _ZdlPv(address: *mut c_void) -> () { raw::free(address.cast()) }
    /// `operator delete[](void*)`.
    fn _ZdaPv(address: *mut c_void) -> () { raw::free(address.cast()) }
    /// `operator delete(void*, nothrow_t const&)`.
    fn _ZdlPvRKSt9nothrow_t(address: *mut c_void, _tag: usize) -> () { raw::free(address.cast()) }
    /// `operator delete[](void*, nothrow_t const&)`.
    fn _ZdaPvRKSt9nothrow_t(address: *mut c_void, _tag: usize) -> () { raw::free(address.cast()) }
    /// `operator delete(void*, size_t)`.
    fn _ZdlPvm(address: *mut c_void, _size: usize) -> () { raw::free(address.cast()) }
    /// `operator delete[](void*, size_t)`.
    fn _ZdaPvm(address: *mut c_void, _size: usize) -> () { raw::free(address.cast()) }
    /// `operator delete(void*, align_val_t)`.
    fn _ZdlPvSt11align_val_t(address: *mut c_void, _align: usize) -> () { raw::free(address.cast()) }
    /// `operator delete[](void*, align_val_t)`.
    fn _ZdaPvSt11align_val_t(address: *mut c_void, _align: usize) -> () { raw::free(address.cast()) }
    /// `operator delete(void*, size_t, align_val_t)`.
    fn _ZdlPvmSt11align_val_t(address: *mut c_void, _size: usize, _align: usize) -> () { raw::free(address.cast()) }
    /// `operator delete[](void*, size_t, align_val_t)`.
    fn _ZdaPvmSt11align_val_t(address: *mut c_void, _size: usize, _align: usize) -> () { raw::free(address.cast()) }
    /// `operator delete(void*, align_val_t, nothrow_t const&)`.
    fn _ZdlPvSt11align_val_tRKSt9nothrow_t(address: *mut c_void, _align: usize, _tag: usize) -> () { raw::free(address.cast()) }
    /// `operator delete[](void*, align_val_t, nothrow_t const&)`.
    fn _ZdaPvSt11align_val_tRKSt9nothrow_t(address: *mut c_void, _align: usize, _tag: usize) -> () { raw::free(address.cast()) }
}
