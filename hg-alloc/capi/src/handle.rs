//! What a program holds for an arena.

use hg_alloc::shared;

/// An arena. It lasts as long as the process: a handle is never given back, and forked children use the same.
pub struct Arena {
    _arena: shared::Arena,
}

impl Arena {
    /// The handle of an arena.
    pub(crate) fn of(arena: &'static shared::Arena) -> *mut Arena {
        core::ptr::from_ref(arena).cast_mut().cast()
    }
}

/// The arena of a handle; `None` for a null pointer.
///
/// # Safety
/// A handle that is not null came from this library.
#[inline(always)]
pub(crate) unsafe fn get(arena: *const Arena) -> Option<&'static shared::Arena> {
    // SAFETY: the caller's promise; arenas last as long as the process.
    unsafe { arena.cast::<shared::Arena>().as_ref() }
}
