//! What is built on malloc and free: zeroed, aligned and resized allocation, and the size of what an address holds.

use crate::arena::Arena;
use crate::safety::look_up::Object;
use crate::size_class::{CLASSES, MAX_SIZE, SLICE, class_of};
use crate::sys::KeepErrno;
use core::ptr::{copy_nonoverlapping, null_mut, write_bytes};
use hg_probes::words::CorruptionKind;

/// Alignment that every allocation has, bytes.
pub const MIN_ALIGN: usize = 16;

impl Arena {
    /// Allocates zeroed memory.
    pub(crate) fn calloc(&'static self, size: usize) -> *mut u8 {
        if size > MAX_SIZE {
            let (address, zero) = self.malloc_large(size, 1, &mut KeepErrno::new());
            if !address.is_null() && !zero {
                // SAFETY: S8, the object has at least `size` bytes and nobody else has it.
                unsafe { write_bytes(address, 0, size) };
            }
            return address;
        }
        let address = self.malloc(size);
        if !address.is_null() {
            // SAFETY: S8, as above.
            unsafe { write_bytes(address, 0, size) };
        }
        address
    }

    /// Allocates at a multiple of `align`, a power of two.
    pub(crate) fn aligned(&'static self, align: usize, size: usize) -> *mut u8 {
        if align <= MIN_ALIGN {
            return self.malloc(size);
        }
        // Spans start at multiples of a slice, so every cell of a class is as aligned as its size is.
        if align <= SLICE && size <= MAX_SIZE {
            let mut class = class_of(size.max(align));
            while let Some(shape) = CLASSES.get(class) {
                if (shape.size as usize).is_multiple_of(align) {
                    return self.malloc(shape.size as usize);
                }
                class += 1;
            }
        }
        self.malloc_large(size, align.div_ceil(SLICE), &mut KeepErrno::new()).0
    }

    /// Bytes that may be used at a live address; `None`, refused and counted, for any other.
    pub(crate) fn usable_size(&'static self, address: usize) -> Option<usize> {
        match self.look_up(address) {
            Ok(Object::Cell { class, .. }) => CLASSES.get(class).map(|shape| shape.size as usize),
            Ok(Object::Large) => {
                let bytes = self.large_bytes(address);
                if bytes.is_none() {
                    self.refuse(CorruptionKind::WildFree, address, 0, 0);
                }
                bytes
            }
            Err(bad) => {
                self.refuse(bad.kind, address, bad.class, bad.detail);
                None
            }
        }
    }

    /// Resizes, in place where the class or the run allows. Null if there is no memory (the old block stays) or if the
    /// address is bad.
    pub(crate) fn realloc(&'static self, address: *mut u8, size: usize) -> *mut u8 {
        if address.is_null() {
            return self.malloc(size);
        }
        let Some(old) = self.usable_size(address as usize) else {
            KeepErrno::new().out_of_memory();
            return null_mut();
        };
        if self.resize_in_place(address as usize, old, size) {
            return address;
        }
        let new = self.malloc(size);
        if !new.is_null() {
            // SAFETY: S8, both objects are live, apart, and have that many bytes.
            unsafe { copy_nonoverlapping(address, new, old.min(size)) };
            self.free(address);
        }
        new
    }

    /// Whether a live block of `old` usable bytes serves `size` bytes where it is, perhaps after changing its length.
    fn resize_in_place(&'static self, address: usize, old: usize, size: usize) -> bool {
        if old <= MAX_SIZE {
            // A cell stays while the request is in its class, or not so far below that moving would save half.
            return size <= old && (size > old / 2 || old <= MIN_ALIGN);
        }
        size > MAX_SIZE && {
            let _errno = KeepErrno::new();
            self.resize_large(address, size)
        }
    }
}
