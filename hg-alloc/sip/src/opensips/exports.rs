//! The variables that OpenSIPS exports for its allocators: found by name, checked by size, read and written here alone.

use super::calls;
use crate::old::{Free, Malloc, SizeOf};
use crate::symbols::{self, variable};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;

/// `realloc(block, address, size, file, function, line)`.
pub(super) type Realloc =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *const i8, *const i8, u32) -> *mut c_void;

/// One of the statistics of a block.
pub(super) type Figure = unsafe extern "C" fn(*mut c_void) -> usize;

/// A variable that holds a function, as a number.
type Slot = *mut usize;

/// What the variables of shm held before.
#[derive(Clone, Copy)]
pub(super) struct OldCalls {
    pub(super) malloc: Malloc,
    pub(super) realloc: Realloc,
    pub(super) free: Free,
    pub(super) free_unsafe: Free,
    pub(super) size_of: SizeOf,
    pub(super) used: Figure,
}

/// See the module.
pub(super) struct Exports {
    pkg: [Slot; calls::PKG.len()],
    shm: [Slot; calls::SHM.len()],
    pub(super) pkg_block: *mut *mut c_void,
    pub(super) pkg_memory: *mut *mut c_void,
    pub(super) shm_block: *mut *mut c_void,
    /// Whether wrappers lock around each call. Only some builds can do without.
    global_lock: Option<*mut c_int>,
}

// SAFETY: pointers to variables of the executable; they are written while the process has one thread.
unsafe impl Sync for Exports {}

fn slots<const N: usize>(names: &[(&'static CStr, *const ()); N]) -> Result<[Slot; N], &'static CStr> {
    let mut found = [null_mut(); N];
    for (slot, (name, _)) in found.iter_mut().zip(names) {
        *slot = variable(name).ok_or(*name)?;
    }
    Ok(found)
}

/// The value of a slot, as a function.
///
/// # Safety
/// `F` is a function pointer of the signature that the slot's functions have.
unsafe fn held<F: Copy>(slot: Slot) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the caller's promise; a function pointer that is not null.
    unsafe { (*slot != 0).then(|| core::mem::transmute_copy(&*slot)) }
}

impl Exports {
    /// Finds all of them; else the name of what is missing.
    pub(super) fn find() -> Result<Exports, &'static CStr> {
        let need = |name| variable(name).ok_or(name);
        Ok(Exports {
            pkg: slots(&calls::PKG)?,
            shm: slots(&calls::SHM)?,
            pkg_block: need(c"mem_block")?,
            pkg_memory: need(c"mem_pool")?,
            shm_block: need(c"shm_block")?,
            global_lock: variable(c"shm_use_global_lock"),
        })
    }

    fn pkg_slot(&self, name: &CStr) -> Slot {
        calls::PKG.iter().position(|(known, _)| *known == name).map_or(null_mut(), |index| self.pkg[index])
    }

    fn shm_slot(&self, name: &CStr) -> Slot {
        calls::SHM.iter().position(|(known, _)| *known == name).map_or(null_mut(), |index| self.shm[index])
    }

    pub(super) fn is_pkg_up(&self) -> bool {
        self.pkg_free().is_some()
    }

    pub(super) fn is_shm_up(&self) -> bool {
        self.shm_calls().is_some()
    }

    pub(super) fn pkg_free(&self) -> Option<Free> {
        // SAFETY: the signature is OpenSIPS's, but for arguments that it does not look at.
        unsafe { held(self.pkg_slot(c"gen_pkg_free")) }
    }

    pub(super) fn pkg_used(&self) -> Option<Figure> {
        // SAFETY: as above.
        unsafe { held(self.pkg_slot(c"gen_pkg_get_used")) }
    }

    pub(super) fn shm_calls(&self) -> Option<OldCalls> {
        // SAFETY: as above.
        unsafe {
            Some(OldCalls {
                malloc: held(self.shm_slot(c"gen_shm_malloc"))?,
                realloc: held(self.shm_slot(c"gen_shm_realloc"))?,
                free: held(self.shm_slot(c"gen_shm_free"))?,
                free_unsafe: held(self.shm_slot(c"gen_shm_free_unsafe"))?,
                size_of: held(self.shm_slot(c"shm_frag_size"))?,
                used: held(self.shm_slot(c"gen_shm_get_used"))?,
            })
        }
    }

    /// Whether shm's allocator is the one of these names.
    fn is_shm(&self, names: [&CStr; 2]) -> bool {
        // SAFETY: a variable of the executable.
        let malloc = unsafe { *self.shm_slot(c"gen_shm_malloc") };
        names.iter().any(|name| symbols::find(name).is_some_and(|symbol| symbol.pointer::<u8>() as usize == malloc))
    }

    /// Whether shm's allocator is HP_MALLOC.
    pub(super) fn is_shm_hp(&self) -> bool {
        self.is_shm([c"hp_shm_malloc", c"hp_shm_malloc_dbg"])
    }

    /// Where pkg's pool begins, and its block.
    pub(super) fn pkg_pool(&self) -> (*mut c_void, *mut c_void) {
        // SAFETY: variables of the executable, set by now.
        unsafe { (*self.pkg_memory, *self.pkg_block) }
    }

    /// Addresses of shm's pool of so many bytes, and its block.
    pub(super) fn shm_pool(&self, bytes: usize) -> (usize, usize, *mut c_void) {
        // SAFETY: a variable of the executable, set by now.
        let block = unsafe { *self.shm_block };
        if self.is_shm([c"parallel_malloc", c"parallel_malloc_dbg"]) {
            // Many pools, anywhere; each block says which one is its own.
            return (1, usize::MAX, block);
        }
        // The block is the head of the pool, but for alignment.
        (block as usize, block as usize + bytes, block)
    }

    /// Points pkg's variables to our functions.
    pub(super) fn set_pkg(&self) {
        for (slot, (_, function)) in self.pkg.iter().zip(&calls::PKG) {
            // SAFETY: a variable of the executable; the process has one thread, which is in none of the functions.
            unsafe { **slot = *function as usize };
        }
    }

    /// Points shm's variables to our functions, and tells wrappers that these lock for themselves.
    pub(super) fn set_shm(&self) {
        for (slot, (_, function)) in self.shm.iter().zip(&calls::SHM) {
            // SAFETY: as above.
            unsafe { **slot = *function as usize };
        }
        if let Some(lock) = self.global_lock {
            // SAFETY: as above.
            unsafe { *lock = 0 };
        }
    }
}
