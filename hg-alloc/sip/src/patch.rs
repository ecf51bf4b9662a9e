//! Replaces a function of the executable by one of ours: its first bytes become a jump.
//!
//! For the optional way of taking over, and for servers that leave no other. It happens when the library is loaded, before the
//! program runs, so nobody is inside. The text page is writable for that moment; where a policy forbids that, nothing is changed.

use crate::symbols::Symbol;

/// `mov r11, target; jmp r11`.
const JUMP: usize = 13;

/// Whether a function is long enough for that.
pub(crate) fn can_replace(function: &Symbol) -> bool {
    function.size >= JUMP
}

/// Replaces a function. Returns whether that was possible; `errno` says why not.
///
/// # Safety
/// `target` has the signature of the function, and no thread is inside it.
pub(crate) unsafe fn replace(function: Symbol, target: usize) -> bool {
    if !can_replace(&function) {
        return false;
    }
    let mut code = [0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3];
    code[2..10].copy_from_slice(&target.to_le_bytes());
    let start = function.pointer::<u8>();
    // SAFETY: no memory is passed.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let first = start as usize & !(page - 1);
    let bytes = (start as usize + JUMP).next_multiple_of(page) - first;
    let protect = |protection| {
        // SAFETY: pages of the executable's text, which stay executable.
        unsafe { libc::mprotect(first as *mut _, bytes, protection) == 0 }
    };
    if !protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
        return false;
    }
    // SAFETY: the function has that many bytes, they are writable now, and nobody runs them.
    unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), start, JUMP) };
    protect(libc::PROT_READ | libc::PROT_EXEC);
    true
}
