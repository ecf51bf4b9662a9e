//! The server's own allocator, behind an arena that took its place: it still has the blocks that it handed out while the server
//! started, and takes them back.
//!
//! Its functions are called as the server would: with the block of memory that they manage, and the place of the call. On
//! x86-64 a function may be given more arguments than it takes, so one type fits builds with and without debugging arguments.

use core::ffi::{c_char, c_void};
use hg_alloc::shared::Site;

/// `malloc(block, size, file, function, line, module)`.
pub(crate) type Malloc =
    unsafe extern "C" fn(*mut c_void, usize, *const c_char, *const c_char, u32, *const c_char) -> *mut c_void;

/// `free(block, address, file, function, line, module)`.
pub(crate) type Free = unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_char, *const c_char, u32, *const c_char);

/// The usable size of a block.
pub(crate) type SizeOf = unsafe extern "C" fn(*mut c_void) -> usize;

/// Locks, or unlocks, what [`Old::free`] needs where the server itself does not.
pub(crate) type Guard = fn(is_locking: bool);

/// See the module.
pub(crate) struct Old {
    /// Addresses of its pool.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// What its functions manage.
    pub(crate) block: *mut c_void,
    /// Frees, taking the server's lock.
    pub(crate) free: Free,
    /// Frees for a caller who has that lock.
    pub(crate) free_locked: Free,
    pub(crate) size_of: Option<SizeOf>,
    /// A lock of ours around its functions, where they have none.
    pub(crate) guard: Option<Guard>,
    /// Bytes that it has handed out.
    pub(crate) used: fn(&Old) -> usize,
    /// Of these, bytes that the arena lies in.
    pub(crate) reserved: usize,
    /// Bytes that it had handed out when the arena took over, without `reserved`.
    pub(crate) used_then: usize,
}

impl Old {
    /// Whether an address lies in its pool.
    #[inline(always)]
    pub(crate) fn owns(&self, address: *mut c_void) -> bool {
        (self.start..self.end).contains(&(address as usize))
    }

    /// Frees a block of its own. `is_locked`: the caller has the server's lock.
    pub(crate) fn free(&self, address: *mut c_void, is_locked: bool, site: &Site) {
        let free = if is_locked { self.free_locked } else { self.free };
        self.guarded(|| {
            // SAFETY: the function is the one that belongs to the block, which is what the server would call it with. A module's
            // name is only told in lines of debugging.
            unsafe {
                free(self.block, address, site.file.cast(), site.function.cast(), site.line, c"hg".as_ptr());
            }
        });
    }

    /// Bytes from an address on that may be read: the block's size, or all to the end of the pool where nobody tells it.
    pub(crate) fn readable(&self, address: *mut c_void) -> usize {
        match self.size_of {
            Some(_) => self.usable_size(address),
            None => self.end - address as usize,
        }
    }

    /// Bytes that may be used in a block, 0 if nobody tells.
    pub(crate) fn usable_size(&self, address: *mut c_void) -> usize {
        // SAFETY: a block of the pool, which is what the function is for.
        self.size_of.map_or(0, |size_of| unsafe { size_of(address) })
    }

    /// Bytes that it has handed out to the server and not to the arena.
    pub(crate) fn live(&self) -> usize {
        (self.used)(self).saturating_sub(self.reserved)
    }

    fn guarded(&self, work: impl FnOnce()) {
        if let Some(guard) = self.guard {
            guard(true);
            work();
            guard(false);
        } else {
            work();
        }
    }
}
