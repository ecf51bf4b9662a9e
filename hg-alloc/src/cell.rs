//! The state of a cell: one byte, out of line, apart from user memory.
//!
//! | state | who has the cell | who changes it |
//! |---|---|---|
//! | [`CENTRAL`] | its span: free, in the span's bitmap, or never used | to CACHED under the class lock (refill) |
//! | [`CACHED`] | a front cache, the transfer cache, or in flight | to LIVE or SAMPLED by malloc; to CENTRAL under the class lock |
//! | [`LIVE`], [`SAMPLED`] | the program | to CACHED by free |
//!
//! The check of a free is a plain load and store (private arenas): two frees of one cell at the very same instant on two
//! CPUs may both pass, at a rate of 1 to 8% of such races. Ordered double frees are caught always.

use core::sync::atomic::AtomicU8;

/// Free, with its span. Fresh memory is zero, so never-used cells are born in this state.
pub(crate) const CENTRAL: u8 = 0;
/// Free, in a cache or on its way.
pub(crate) const CACHED: u8 = 1;
/// Handed out.
pub(crate) const LIVE: u8 = 2;
/// Handed out, and sampled: the fast path of free does not know it, so that its free is seen.
pub(crate) const SAMPLED: u8 = 3;

/// A cell on its way: its address, and the address of its state byte, so that malloc computes nothing.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) cell: usize,
    pub(crate) state: usize,
}

impl Entry {
    pub(crate) const NONE: Entry = Entry { cell: 0, state: 0 };

    /// The state byte.
    ///
    /// # Safety
    /// The entry came out of a span's own tables (S4).
    #[inline(always)]
    pub(crate) unsafe fn state<'a>(self) -> &'a AtomicU8 {
        // SAFETY: S4, state addresses point into the committed part of the tables, which is never unmapped.
        unsafe { &*(self.state as *const AtomicU8) }
    }
}
