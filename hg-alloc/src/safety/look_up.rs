//! What lives at an address: asked by frees that the fast path did not understand, and by realloc.

use crate::arena::Arena;
use crate::cell::{CACHED, Entry, LIVE, SAMPLED};
use crate::safety::check;
use crate::size_class::{SLICE, size_of_class};
use crate::sys::KeepErrno;
use core::sync::atomic::Ordering::*;
use hg_probes::words::CorruptionKind;

/// What lives at an address.
pub(crate) enum Object {
    /// A live cell starts there; `sampled` is the cell if it is a sample.
    Cell { class: usize, sampled: Option<Entry> },
    /// If anything, a large object; the grid knows.
    Large,
}

/// Why nothing that can be freed lives at an address.
pub(crate) struct Bad {
    pub(crate) kind: CorruptionKind,
    /// Cell size of the span there, or 0.
    pub(crate) class: u32,
    /// The state byte found, or 0.
    pub(crate) detail: u64,
}

impl Arena {
    /// Frees what is no live cell: a large object, nothing at all, or a bad address.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_slow(&'static self, address: usize) {
        let _errno = KeepErrno::new();
        if address == 0 {
            return;
        }
        match self.look_up(address) {
            Ok(Object::Large) => self.free_large(address),
            Ok(Object::Cell { sampled: Some(entry), .. }) => self.free_sampled(entry),
            // Became live between the check and now: the race of two frees that private arenas allow.
            Ok(Object::Cell { class, .. }) => self.refuse(CorruptionKind::DoubleFree, address, size_of_class(class), 0),
            Err(bad) => self.refuse(bad.kind, address, bad.class, bad.detail),
        }
    }

    fn free_sampled(&'static self, entry: Entry) {
        self.sampler.give(self.number, entry.cell);
        // SAFETY: S4, the entry is a cell of a span.
        unsafe { entry.state() }.store(CACHED, Relaxed);
        self.flush(entry);
    }

    /// Counts and tells a bad call.
    pub(crate) fn refuse(&'static self, kind: CorruptionKind, address: usize, class: u32, detail: u64) {
        // The very first call may be a bad free.
        if (self.page().is_some() || self.ensure_started())
            && let Some(page) = self.page()
        {
            check::refuse(page, kind, address, class, detail);
        }
    }

    /// What lives at an address: the start of a live cell, perhaps a large object, or the reason why it is neither.
    pub(crate) fn look_up(&self, address: usize) -> Result<Object, Bad> {
        let bad = |kind, class, detail| Err(Bad { kind, class, detail });
        let offset = address.wrapping_sub(self.hot.base.load(Relaxed));
        if offset >= self.hot.limit.load(Relaxed) {
            let reserved = self.settings().is_some_and(|settings| offset < settings.cap_bytes);
            let kind = if reserved { CorruptionKind::WildFree } else { CorruptionKind::ForeignFree };
            return bad(kind, 0, 0);
        }
        let descriptor = self.descriptor(offset);
        if descriptor.reciprocal.load(Relaxed) == 0 {
            return if offset.is_multiple_of(SLICE) {
                Ok(Object::Large)
            } else {
                bad(CorruptionKind::InteriorFree, 0, 0)
            };
        }
        let class = self.class_at(address);
        let Some(entry) = descriptor.entry_at(address, offset) else {
            return bad(CorruptionKind::InteriorFree, size_of_class(class), 0);
        };
        // SAFETY: S4, the address is the start of a cell in a span.
        match unsafe { entry.state() }.load(Relaxed) {
            LIVE => Ok(Object::Cell { class, sampled: None }),
            SAMPLED => Ok(Object::Cell { class, sampled: Some(entry) }),
            state => bad(CorruptionKind::DoubleFree, size_of_class(class), u64::from(state)),
        }
    }
}
