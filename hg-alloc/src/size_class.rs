//! Size classes: which cell serves a request, and how a span is cut into cells.
//!
//! 8 classes of 16 to 128 bytes in steps of 16, then 4 classes per doubling up to 256 KiB: 52 in all. A request wastes at
//! most 15 bytes in the former and a fifth of the cell in the latter. Everything is computed at compile time.

/// Bytes of a slice, the unit in which the grid hands out memory.
pub(crate) const SLICE: usize = 1 << SLICE_SHIFT;
/// log2 of [`SLICE`].
pub(crate) const SLICE_SHIFT: u32 = 15;

/// Number of classes.
pub(crate) const COUNT: usize = 52;

/// Largest request that a class serves, bytes; larger ones are large objects.
pub(crate) const MAX_SIZE: usize = 256 << 10;

/// Requests up to this size find their class in one table look-up.
pub(crate) const TABLE_MAX: usize = 1024;

const LINEAR_MAX: usize = 128;
const LINEAR: usize = LINEAR_MAX / 16;

/// The class of a request of at most [`MAX_SIZE`] bytes.
#[inline(always)]
pub(crate) const fn class_of(size: usize) -> usize {
    if size <= LINEAR_MAX {
        return size.saturating_sub(1) / 16;
    }
    let last = size - 1;
    let exponent = log2(last);
    LINEAR + ((exponent - log2(LINEAR_MAX)) as usize) * 4 + ((last >> (exponent - 2)) & 3)
}

/// The exponent of the highest power of two that is not above a positive number; unlike `ilog2` it cannot panic.
#[inline(always)]
pub(crate) const fn log2(number: usize) -> u32 {
    usize::BITS - 1 - number.leading_zeros()
}

/// Bytes of a class's cells; 0 for a class that does not exist.
pub(crate) fn size_of_class(class: usize) -> u32 {
    CLASSES.get(class).map_or(0, |shape| shape.size)
}

/// How the spans of a class are cut.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    /// Bytes of a cell, a multiple of 16.
    pub(crate) size: u32,
    /// Slices of a span.
    pub(crate) slices: u32,
    /// Cells of a span.
    pub(crate) cells: u32,
    /// Cells that move between a front cache and its class at once.
    pub(crate) batch: u32,
    /// The most cells a front cache holds.
    pub(crate) front_max: u32,
    /// ceil(2^64 / size): one multiplication gives both quotient and divisibility of an offset (Lemire, Kaser, Kurz,
    /// "Faster remainder by direct computation", 2019). Exact for all offsets in a span.
    pub(crate) reciprocal: u64,
}

/// A cell is told to be at the start of its place by `offset * reciprocal < reciprocal` (low words), and its index is the
/// high word.
#[inline(always)]
pub(crate) const fn divide(offset: u64, reciprocal: u64) -> (u64, u64) {
    let product = offset as u128 * reciprocal as u128;
    ((product >> 64) as u64, product as u64)
}

/// All classes, smallest cells first.
pub(crate) static CLASSES: [Class; COUNT] = {
    let mut classes = [Class { size: 0, slices: 0, cells: 0, batch: 0, front_max: 0, reciprocal: 0 }; COUNT];
    let mut index = 0;
    while index < COUNT {
        classes[index] = class(cell_size(index));
        index += 1;
    }
    classes
};

/// The same classes with cells 8 bytes larger: odd multiples of 8, so that hashes of their addresses spread. Aligned to 8.
pub(crate) static ODD_CLASSES: [Class; COUNT] = {
    let mut classes = CLASSES;
    let mut index = 0;
    while index < COUNT {
        let size = classes[index].size as usize + 8;
        classes[index].size = size as u32;
        classes[index].cells = (classes[index].slices as usize * SLICE / size) as u32;
        classes[index].reciprocal = (u64::MAX / size as u64) + 1;
        index += 1;
    }
    classes
};

const fn cell_size(index: usize) -> usize {
    if index < LINEAR {
        return (index + 1) * 16;
    }
    let doubling = LINEAR_MAX << ((index - LINEAR) / 4);
    doubling + doubling / 4 * ((index - LINEAR) % 4 + 1)
}

const fn class(size: usize) -> Class {
    let slices = span_slices(size);
    Class {
        size: size as u32,
        slices: slices as u32,
        cells: (slices * SLICE / size) as u32,
        batch: clamp(BATCH_BYTES / size, 2, BATCH_MAX) as u32,
        // 3 more than a multiple of 4, so that head and entries fill whole cache lines; never a power of two, which
        // would put all heads into two sets of the L1 cache.
        front_max: (clamp(FRONT_BYTES / size, 4, 256) / 4 * 4 + 3) as u32,
        reciprocal: (u64::MAX / size as u64) + 1,
    }
}

/// The most cells that move at once.
pub(crate) const BATCH_MAX: usize = 64;

/// Bytes of cells that move at once (or 2 cells, if that is more).
const BATCH_BYTES: usize = 32 << 10;

/// Bytes of cells of one class that a front cache holds at most (or 7 cells, if that is more).
const FRONT_BYTES: usize = 512 << 10;

/// The fewest slices that hold 8 cells (4 of the largest classes) and leave less than 1/32 of the span unused.
const fn span_slices(size: usize) -> usize {
    let fewest = if size > 64 * 1024 { 4 } else { 8 };
    let mut slices = (size * fewest).div_ceil(SLICE);
    while (slices * SLICE % size) * 32 > slices * SLICE {
        slices += 1;
    }
    slices
}

const fn clamp(value: usize, low: usize, high: usize) -> usize {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for size in 0..=MAX_SIZE {
            let class = class_of(size);
            assert!(CLASSES[class].size as usize >= size, "size {size}");
            assert!(class == 0 || (CLASSES[class - 1].size as usize) < size, "size {size}");
        }
        assert_eq!(CLASSES[COUNT - 1].size as usize, MAX_SIZE);
    }

    #[test]
    fn reciprocals_are_exact_for_every_offset_of_a_span() {
        for class in CLASSES.iter().chain(&ODD_CLASSES) {
            for offset in 0..u64::from(class.slices) * SLICE as u64 {
                let (index, rest) = divide(offset, class.reciprocal);
                assert_eq!(index, offset / u64::from(class.size));
                assert_eq!(rest < class.reciprocal, offset % u64::from(class.size) == 0, "{offset} of {}", class.size);
            }
        }
    }

    #[test]
    fn spans_waste_little_and_indices_fit_their_words() {
        for class in &CLASSES {
            let bytes = class.slices as usize * SLICE;
            assert!(bytes - (class.cells * class.size) as usize <= bytes / 32);
            assert!(class.slices <= 64 && class.cells >= 4 && class.batch <= class.cells);
            assert!(class.size.is_multiple_of(16) && class.front_max % 4 == 3);
        }
    }
}
