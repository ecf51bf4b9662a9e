//! What the server's executable exports: addresses and sizes of its variables and functions.
//!
//! Servers export all their globals, as their modules need them. Only the executable itself counts: a symbol of the same name
//! in some library is not the server's.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;

/// Asks `dladdr1` for the entry of the symbol table.
const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// A symbol of the executable.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    address: *mut c_void,
    /// Bytes of the variable or the function.
    pub(crate) size: usize,
}

/// The symbol of that name, if the executable itself has it.
pub(crate) fn find(name: &CStr) -> Option<Symbol> {
    // SAFETY: the name is a C string; looking a name up runs no code of the server.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return None;
    }
    let (object, size) = home(address)?;
    // SAFETY: reads the auxiliary vector.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void;
    (home(headers)?.0 == object).then_some(Symbol { address, size })
}

/// Base of the object that has an address, and the size of the symbol there, 0 if there is none.
fn home(address: *const c_void) -> Option<(*mut c_void, usize)> {
    // SAFETY: an all-zero `Dl_info` is a valid one.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    let mut entry: *mut c_void = null_mut();
    // SAFETY: the loader writes the two places given.
    if unsafe { dladdr1(address, &mut info, &mut entry, RTLD_DL_SYMENT) } == 0 {
        return None;
    }
    let entry = entry as *const libc::Elf64_Sym;
    // SAFETY: the loader gave the entry of a symbol table that stays mapped, or null.
    let size = if entry.is_null() { 0 } else { unsafe { (*entry).st_size } };
    Some((info.dli_fbase, size as usize))
}

impl Symbol {
    /// Where it is, as a pointer to what the caller knows it to be.
    pub(crate) fn pointer<T>(self) -> *mut T {
        self.address.cast()
    }
}

/// A variable of a known type; none where the executable's is of another size.
pub(crate) fn variable<T>(name: &CStr) -> Option<*mut T> {
    find(name).filter(|symbol| symbol.size == size_of::<T>()).map(Symbol::pointer)
}

/// A function, as a pointer of type `F`.
///
/// # Safety
/// `F` is a function pointer of the signature that the function has.
pub(crate) unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller's promise; both are pointers.
    find(name).map(|symbol| unsafe { core::mem::transmute_copy(&symbol.address) })
}

/// The text at a place of the executable; empty if it is none.
pub(crate) fn text(pointer: *const c_char) -> &'static str {
    // SAFETY: a constant of the executable, which is one C string.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap_or_default()
}
