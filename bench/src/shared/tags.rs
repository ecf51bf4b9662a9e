//! The baseline: what a server without hg would write. One process-shared mutex, chunks with boundary tags, a bin for each small
//! size, and the best fit among the larger.
//!
//! A chunk begins with a word: its bytes, a multiple of 16, with two flags: whether it is in use, and whether the chunk before is.
//! A free chunk holds the links of its list, and ends with its bytes, so that its neighbour finds its start. Free neighbours are
//! merged at once. The last 16 bytes of the memory are a chunk in use, where merging ends.

use std::ptr::null_mut;

const IN_USE: usize = 1;
const BEFORE_IN_USE: usize = 2;
const FLAGS: usize = 15;

/// Bytes of the smallest chunk: the word, two links, the word at its end.
const LEAST: usize = 32;

/// Bins of one size each, 16 bytes apart; the last one holds all larger.
const BINS: usize = 64;

#[repr(C)]
struct Heap {
    mutex: libc::pthread_mutex_t,
    /// First chunk of each list, 0 for none.
    bins: [usize; BINS],
}

/// An allocator in memory that processes share.
#[derive(Clone, Copy)]
pub(crate) struct Tags(*mut Heap);

impl Tags {
    /// One in fresh memory that children inherit. `None` if there is none.
    pub(crate) fn new(bytes: usize) -> Option<Tags> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping of zeros, large enough for a heap, which nobody else knows yet.
        unsafe {
            let memory = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if memory == libc::MAP_FAILED {
                return None;
            }
            let heap = memory.cast::<Heap>();
            let mut attributes = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutex_init(&raw mut (*heap).mutex, &raw const attributes);
            let first = (memory as usize + size_of::<Heap>()).next_multiple_of(16);
            let last = memory as usize + bytes - 16;
            *word(last) = 16 | IN_USE;
            *word(first) = (last - first) | BEFORE_IN_USE;
            let tags = Tags(heap);
            tags.put(first, last - first);
            Some(tags)
        }
    }

    /// Allocates. Null if there is no room.
    pub(crate) fn malloc(self, bytes: usize) -> *mut u8 {
        let wanted = (bytes + size_of::<usize>()).next_multiple_of(16).max(LEAST);
        // SAFETY: what the mutex guards is touched while it is held; all chunks were made by this allocator.
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*self.0).mutex);
            let block = self.take(wanted).map_or(null_mut(), |chunk| (chunk + size_of::<usize>()) as *mut u8);
            libc::pthread_mutex_unlock(&raw mut (*self.0).mutex);
            block
        }
    }

    /// Frees.
    ///
    /// # Safety
    /// The block came from [`malloc`](Self::malloc), and is freed once.
    pub(crate) unsafe fn free(self, block: *mut u8) {
        let mut chunk = block as usize - size_of::<usize>();
        // SAFETY: as above; the neighbours of a chunk are chunks.
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*self.0).mutex);
            let mut bytes = *word(chunk) & !FLAGS;
            let next = chunk + bytes;
            if *word(next) & IN_USE == 0 {
                let more = *word(next) & !FLAGS;
                self.unlink(next, more);
                bytes += more;
            }
            if *word(chunk) & BEFORE_IN_USE == 0 {
                let before = *word(chunk - size_of::<usize>());
                chunk -= before;
                self.unlink(chunk, before);
                bytes += before;
            }
            self.put(chunk, bytes);
            libc::pthread_mutex_unlock(&raw mut (*self.0).mutex);
        }
    }

    /// Takes the smallest chunk that is large enough, and leaves the rest of it free.
    unsafe fn take(self, wanted: usize) -> Option<usize> {
        // SAFETY: the caller holds the mutex.
        unsafe {
            let chunk = (bin(wanted)..BINS).find_map(|bin| self.best(bin, wanted))?;
            let bytes = *word(chunk) & !FLAGS;
            self.unlink(chunk, bytes);
            let rest = bytes - wanted;
            let taken = if rest >= LEAST { wanted } else { bytes };
            *word(chunk) = taken | IN_USE | (*word(chunk) & BEFORE_IN_USE);
            *word(chunk + taken) |= BEFORE_IN_USE;
            if rest >= LEAST {
                *word(chunk + taken) = rest | BEFORE_IN_USE;
                self.put(chunk + taken, rest);
            }
            Some(chunk)
        }
    }

    /// The best fit of a list.
    unsafe fn best(self, bin: usize, wanted: usize) -> Option<usize> {
        // SAFETY: as above.
        unsafe {
            let (mut chunk, mut best) = ((*self.0).bins[bin], None);
            while chunk != 0 {
                let bytes = *word(chunk) & !FLAGS;
                if bytes == wanted {
                    return Some(chunk);
                }
                if bytes > wanted && best.is_none_or(|(least, _)| bytes < least) {
                    best = Some((bytes, chunk));
                }
                chunk = *word(chunk + 8);
            }
            best.map(|(_, chunk)| chunk)
        }
    }

    /// Makes a chunk free and puts it into its list. The chunk before it is in use.
    unsafe fn put(self, chunk: usize, bytes: usize) {
        // SAFETY: as above.
        unsafe {
            *word(chunk) = bytes | BEFORE_IN_USE;
            *word(chunk + bytes - 8) = bytes;
            *word(chunk + bytes) &= !BEFORE_IN_USE;
            let first = &mut (*self.0).bins[bin(bytes)];
            *word(chunk + 8) = *first;
            *word(chunk + 16) = 0;
            if *first != 0 {
                *word(*first + 16) = chunk;
            }
            *first = chunk;
        }
    }

    unsafe fn unlink(self, chunk: usize, bytes: usize) {
        // SAFETY: as above.
        unsafe {
            let (next, previous) = (*word(chunk + 8), *word(chunk + 16));
            match previous {
                0 => (*self.0).bins[bin(bytes)] = next,
                _ => *word(previous + 8) = next,
            }
            if next != 0 {
                *word(next + 16) = previous;
            }
        }
    }
}

fn bin(bytes: usize) -> usize {
    (bytes / 16).min(BINS - 1)
}

fn word(address: usize) -> *mut usize {
    address as *mut usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_memory_is_one_chunk_again() {
        let tags = Tags::new(1 << 20).expect("memory");
        let whole = tags.malloc(900 << 10);
        assert!(!whole.is_null());
        assert!(tags.malloc(200 << 10).is_null());
        // SAFETY: each block is from malloc, and freed once.
        unsafe {
            tags.free(whole);
            let mut blocks: Vec<_> =
                (0..3000).map(|index| (tags.malloc(index % 300 + 1), index as u8, index % 300 + 1)).collect();
            blocks.iter().for_each(|(block, tag, bytes)| block.write_bytes(*tag, *bytes));
            let order = |index: &usize| index * 7919 % 3000;
            for (block, tag, bytes) in (0..3000).map(|index| blocks[order(&index)]) {
                assert!((0..bytes).all(|at| *block.add(at) == tag));
                tags.free(block);
            }
            blocks.clear();
            assert!(!tags.malloc(900 << 10).is_null());
        }
    }
}
