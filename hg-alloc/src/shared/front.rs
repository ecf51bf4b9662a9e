//! Front caches in memory that processes share: per CPU and class, a bounded array of cells, used by all processes at once.
//!
//! A pop or a push is a restartable sequence (see `front/rseq.rs` of the process's own arena, whose rules hold here): it
//! commits by one store, so a process that dies between any two instructions leaves the array whole. Before that store a pop
//! leaves the entry in the thread's record, so that the cell can be found if its thread dies before it gets any further.
//!
//! An entry is 8 bytes: where the cell's state stands, above where the cell stands, in units of 8 bytes. Both are looked at
//! before they are used: others write here.
//!
//! # Layout and invariants
//! Below block 0 lie two blocks of zeros, for threads without restartable sequences, whose ids are -1 and -2: they find arrays
//! that are empty and full. `floor` and `cap` are written under the class's lock only; `cap = 0, floor = MAX` is an array that
//! is stopped. The array of a class has its place for ever, so a program touches as many lines as it has cells cached.

use super::Arena;
use crate::cell::{CACHED, LIVE};
use crate::sequence;
use crate::size_class::{CLASSES, COUNT};
use crate::sys::rseq as kernel;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// log2 of the distance of two blocks.
pub(super) const BLOCK_SHIFT: u32 = 17;
pub(super) const BLOCK: usize = 1 << BLOCK_SHIFT;

/// Blocks of zeros below block 0.
pub(super) const ZERO_BLOCKS: usize = 2;

/// How often a sequence is tried that is interrupted again and again, as under a debugger's single steps.
pub(super) const RESTARTS: u32 = 16;

/// Bytes of cells that an array may hold at first (at most 16 cells); demand doubles it.
const INITIAL_BYTES: u32 = 16 << 10;

/// What stands before the entries of an array.
#[repr(C)]
pub(super) struct Head {
    /// Number of entries.
    pub(super) top: AtomicU32,
    /// A pop needs more entries than this: 0, or MAX to stop pops.
    floor: AtomicU32,
    /// A push needs fewer than this: the capacity, or 0 to stop pushes.
    cap: AtomicU32,
    /// The capacity, when nobody stops the array.
    capacity: AtomicU32,
}

/// An array that nobody else uses meanwhile: of an arena that one thread uses.
pub(super) struct Array(&'static Head);

impl Array {
    /// # Safety
    /// S13: `array` is the class's array in block 0 of a started arena.
    #[inline(always)]
    pub(super) unsafe fn at(array: usize) -> Array {
        // SAFETY: the caller's promise; front caches are mapped for ever.
        Array(unsafe { &*(array as *const Head) })
    }

    #[inline(always)]
    fn place(&self, index: usize) -> &AtomicU64 {
        let first = core::ptr::from_ref(self.0) as usize + size_of::<Head>();
        // SAFETY: S12, the caller's index is below the array's capacity.
        unsafe { &*((first + index * size_of::<AtomicU64>()) as *const AtomicU64) }
    }

    /// The topmost entry, which stays; 0 if there is none, or if the array is stopped.
    #[inline(always)]
    pub(super) fn top_entry(&self) -> u64 {
        let top = self.0.top.load(Relaxed);
        if top > self.0.floor.load(Relaxed) { self.place(top as usize - 1).load(Relaxed) } else { 0 }
    }

    /// Takes the topmost entry away, which is there.
    #[inline(always)]
    pub(super) fn pop(&self) {
        self.0.top.store(self.0.top.load(Relaxed) - 1, Relaxed);
    }

    /// Puts an entry on top. False if there is no room, or if the array is stopped.
    #[inline(always)]
    pub(super) fn push(&self, entry: u64) -> bool {
        let top = self.0.top.load(Relaxed);
        let fits = top < self.0.cap.load(Relaxed);
        if fits {
            self.place(top as usize).store(entry, Relaxed);
            self.0.top.store(top + 1, Relaxed);
        }
        fits
    }
}

/// Where each class's array lies in a block, bytes.
pub(super) static OFFSETS: [u32; COUNT + 1] = {
    let mut offsets = [64; COUNT + 1];
    let mut class = 0;
    while class < COUNT {
        offsets[class + 1] = offsets[class] + size_of::<Head>() as u32 + (CLASSES[class].front_max + 1) * 8;
        class += 1;
    }
    assert!(offsets[COUNT] as usize <= BLOCK);
    offsets
};

/// Takes the topmost entry of an array of the current CPU, and leaves it in `in_flight` before that is done. 0 if the array is
/// empty or stopped, if the sequence was interrupted, or if there are no restartable sequences here; then `in_flight` may
/// hold an entry that is not the caller's.
///
/// `array` is the class's array in block 0; `id` and `sequence` are those of [`Area`](kernel::Area).
///
/// # Safety
/// S13: the values belong to one started arena, and `in_flight` is a word of the calling thread's record.
#[inline(always)]
pub(super) unsafe fn pop(array: usize, id: isize, sequence: isize, in_flight: &AtomicU64) -> u64 {
    let (cell, state): (u32, u32);
    // SAFETY: S13, as the caller says; the sequence uses no other registers, and returns.
    unsafe {
        asm!(
            "call {sequence}", sequence = sym pop_sequence,
            inout("rdi") array => _, in("rsi") id, in("rdx") sequence, in("rcx") in_flight.as_ptr(),
            out("eax") cell, out("r9d") state, out("r8") _,
        );
    }
    u64::from(state) << 32 | u64::from(cell)
}

/// The two halves of an entry are read and written apart: the address of the cell is known before its state is, which a free has to
/// look up. They are whole again where anybody else may come by: before the top says that they are there.
#[unsafe(naked)]
unsafe extern "sysv64" fn pop_sequence() {
    sequence!(
        before: [], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov eax, dword ptr [rdi]",
            "cmp eax, dword ptr [rdi + 4]",
            "jbe 75f",
            "lea r8d, [rax - 1]",
            "mov r9d, dword ptr [rdi + rax * 8 + 12]",
            "mov eax, dword ptr [rdi + rax * 8 + 8]",
            "mov dword ptr [rcx], eax",
            "mov dword ptr [rcx + 4], r9d",
            "mov dword ptr [rdi], r8d"
        ],
        after: ["ret"],
        failed: ["xor eax, eax", "xor r9d, r9d", "ret"],
        shift = const BLOCK_SHIFT,
    )
}

/// Puts an entry on top of an array of the current CPU. False if the array is full or stopped, if the sequence was
/// interrupted, or if there are no restartable sequences here.
///
/// # Safety
/// As for [`pop`]; and S1: the entry's cell is CACHED and in no other place but the thread's record.
#[inline(always)]
pub(super) unsafe fn push(array: usize, id: isize, sequence: isize, entry: u64) -> bool {
    let pushed: u32;
    // SAFETY: S13 and S1, as the caller says; the sequence uses no other registers, and returns.
    unsafe {
        asm!(
            "call {sequence}", sequence = sym push_sequence,
            inout("rdi") array => _, in("rsi") id, in("rdx") sequence, in("ecx") entry as u32,
            in("r9d") (entry >> 32) as u32, out("eax") pushed,
        );
    }
    pushed != 0
}

#[unsafe(naked)]
unsafe extern "sysv64" fn push_sequence() {
    sequence!(
        before: [], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov eax, dword ptr [rdi]",
            "cmp eax, dword ptr [rdi + 8]",
            "jae 75f",
            "mov dword ptr [rdi + rax * 8 + 16], ecx",
            "mov dword ptr [rdi + rax * 8 + 20], r9d",
            "inc eax",
            "mov dword ptr [rdi], eax"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT,
    )
}

/// How a [`release`] ended.
pub(super) mod released {
    /// Nothing was done: the array is full or stopped, the sequence was interrupted, or there are none here.
    pub(in super::super) const NOTHING: u32 = 0;
    /// The cell is CACHED, and on top.
    pub(in super::super) const DONE: u32 = 1;
    /// The cell is CACHED, and in the caller's hands: the sequence was interrupted behind the swap.
    pub(in super::super) const IN_HANDS: u32 = 2;
    /// The cell was not LIVE.
    pub(in super::super) const NOT_LIVE: u32 = 3;
}

/// Makes a LIVE cell CACHED by an atomic swap, and puts its entry on top of an array of the current CPU. The swap is part of
/// the sequence: what a push reads is read before it, since nothing behind an atomic instruction begins before that ends.
///
/// # Safety
/// As for [`push`]; `state` is the address of the state of the entry's cell, and the thread's record names the entry.
#[inline(always)]
pub(super) unsafe fn release(array: usize, id: isize, sequence: isize, entry: u64, state: *mut u8) -> u32 {
    let ended: u32;
    // SAFETY: S13 and S1, as the caller says; the sequence uses no other registers, and returns.
    unsafe {
        asm!(
            "call {sequence}", sequence = sym release_sequence,
            inout("rdi") array => _, in("rsi") id, in("rdx") sequence, in("ecx") entry as u32,
            in("r9d") (entry >> 32) as u32, in("r10") state, out("eax") ended, out("r8") _, out("r11") _,
        );
    }
    ended
}

/// Who is interrupted begins at the abort label with the registers and flags that it had. Equal flags and a LIVE in eax are
/// there from the end of a swap that was made on, and never before: the comparison with the capacity left them unequal, and
/// eax held a multiple of a block's size until then.
#[unsafe(naked)]
unsafe extern "sysv64" fn release_sequence() {
    sequence!(
        before: [], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov r8d, dword ptr [rdi]",
            "cmp r8d, dword ptr [rdi + 8]",
            "jae 76f",
            "mov r11d, {cached}",
            "mov eax, {live}",
            "lock cmpxchg byte ptr [r10], r11b",
            "jne 78f",
            "mov dword ptr [rdi + r8 * 8 + 16], ecx",
            "mov dword ptr [rdi + r8 * 8 + 20], r9d",
            "lea r8d, [r8 + 1]",
            "mov dword ptr [rdi], r8d"
        ],
        after: ["mov eax, {done}", "ret"],
        failed: [
            "jne 76f", "cmp eax, {live}", "jne 76f",
            "mov eax, {in_hands}", "ret",
            "76:", "xor eax, eax", "ret",
            "78:", "mov eax, {not_live}", "ret"
        ],
        shift = const BLOCK_SHIFT, live = const LIVE, cached = const CACHED,
        done = const released::DONE, in_hands = const released::IN_HANDS, not_live = const released::NOT_LIVE,
    )
}

/// Puts `count` entries, not 0, on top of an array of the current CPU, the last one topmost. False, having put nothing, for the
/// reasons of [`push`], or if there is no room for all.
///
/// # Safety
/// As for [`push`], for each entry.
#[unsafe(naked)]
unsafe extern "sysv64" fn push_entries(
    array: usize,
    id: isize,
    sequence: isize,
    from: *const AtomicU64,
    count: usize,
) -> bool {
    sequence!(
        before: [], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov eax, dword ptr [rdi]",
            "lea r9d, [rax + r8]",
            "cmp r9d, dword ptr [rdi + 8]",
            "ja 75f",
            "lea rdx, [rdi + rax * 8 + 16]",
            "xor r10d, r10d",
            "72:",
            "mov rax, qword ptr [rcx + r10 * 8]",
            "mov qword ptr [rdx + r10 * 8], rax",
            "inc r10",
            "cmp r10, r8",
            "jb 72b",
            "mov dword ptr [rdi], r9d"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT,
    )
}

/// Takes `count` entries, not 0, off the top of an array of the current CPU into the thread's record. False, the batch there
/// then being rubbish, for the reasons of [`pop`], or if the array holds fewer.
///
/// # Safety
/// As for [`pop`]; `to` is a batch of the calling thread's record.
#[unsafe(naked)]
unsafe extern "sysv64" fn pop_entries(
    array: usize,
    id: isize,
    sequence: isize,
    to: *const AtomicU64,
    count: usize,
) -> bool {
    sequence!(
        before: [], sequence: "rdx",
        steps: [
            "movsxd rax, dword ptr fs:[rsi]",
            "shl rax, {shift}",
            "add rdi, rax",
            "mov r9d, dword ptr [rdi]",
            "cmp r9d, dword ptr [rdi + 4]",
            "jbe 75f",
            "sub r9d, r8d",
            "jb 75f",
            "lea rdx, [rdi + r9 * 8 + 16]",
            "xor r10d, r10d",
            "72:",
            "mov rax, qword ptr [rdx + r10 * 8]",
            "mov qword ptr [rcx + r10 * 8], rax",
            "inc r10",
            "cmp r10, r8",
            "jb 72b",
            "mov dword ptr [rdi], r9d"
        ],
        after: ["mov eax, 1", "ret"],
        failed: ["xor eax, eax", "ret"],
        shift = const BLOCK_SHIFT,
    )
}

/// Capacity of an array when it is opened.
fn initial(size: u32) -> u32 {
    (INITIAL_BYTES / size).clamp(2, 16)
}

/// Bytes of an array's capacity that count against the budget of all. [`INITIAL_BYTES`] do not: what many classes needed once, at a
/// program's start perhaps, would leave nothing for the few that it uses all the time.
fn budgeted(capacity: u32, size: u32) -> u64 {
    let free = initial(size).max(INITIAL_BYTES / size);
    u64::from(capacity.saturating_sub(free)) * u64::from(size)
}

impl Arena {
    /// The block of the CPU that the calling thread runs on, or ran on a moment ago; `None` without restartable sequences.
    pub(super) fn block(&self) -> Option<usize> {
        let id = kernel::current_id(self.id);
        usize::try_from(id).ok().filter(|block| *block < self.layout.blocks)
    }

    /// The head of a class's array in a block.
    pub(super) fn head(&self, block: usize, class: usize) -> &Head {
        let offset = OFFSETS.get(class).copied().unwrap_or(OFFSETS[0]) as usize;
        let block = block.min(self.layout.blocks.saturating_sub(1));
        // SAFETY: S12, blocks below the layout's count are mapped.
        unsafe { &*((self.fronts + block * BLOCK + offset) as *const Head) }
    }

    /// A place of an array, which may lie above its top.
    pub(super) fn front_entry(&self, block: usize, class: usize, index: usize) -> &AtomicU64 {
        let most = CLASSES.get(class).map_or(0, |shape| shape.front_max as usize);
        let at = core::ptr::from_ref(self.head(block, class)) as usize + size_of::<Head>() + index.min(most) * 8;
        // SAFETY: S12, an array has room for so many entries.
        unsafe { &*(at as *const AtomicU64) }
    }

    /// The class's array in block 0.
    #[inline]
    pub(super) fn array(&self, class: usize) -> usize {
        self.fronts + OFFSETS.get(class).copied().unwrap_or(OFFSETS[0]) as usize
    }

    /// Pops, also where the sequence was interrupted a few times. 0 if there is nothing.
    pub(super) fn pop_patiently(&self, class: usize, in_flight: &AtomicU64) -> u64 {
        let Some(block) = self.block() else { return 0 };
        for _ in 0..RESTARTS {
            // SAFETY: S13, a started arena's values and the calling thread's word.
            let entry = unsafe { pop(self.array(class), self.id, self.sequence, in_flight) };
            if entry != 0 {
                return entry;
            }
            let head = self.head(block, class);
            if head.top.load(Relaxed) <= head.floor.load(Relaxed) {
                break;
            }
        }
        0
    }

    /// Pushes, also where the sequence was interrupted a few times.
    pub(super) fn push_patiently(&self, class: usize, entry: u64) -> bool {
        let Some(block) = self.block() else { return false };
        for _ in 0..RESTARTS {
            // SAFETY: S13 and S1, the entry is in the calling thread's hands alone.
            if unsafe { push(self.array(class), self.id, self.sequence, entry) } {
                return true;
            }
            let head = self.head(block, class);
            if head.top.load(Relaxed) >= head.cap.load(Relaxed) {
                break;
            }
        }
        false
    }

    /// Puts a whole batch on top, at once or not at all.
    pub(super) fn push_batch(&self, class: usize, batch: &[AtomicU64]) -> bool {
        let (array, id, sequence) = (self.array(class), self.id, self.sequence);
        // SAFETY: S13 and S1, as above, for each entry.
        batch.is_empty() || unsafe { push_entries(array, id, sequence, batch.as_ptr(), batch.len()) }
    }

    /// Takes so many entries off the top, at once or not at all.
    pub(super) fn pop_batch(&self, class: usize, batch: &[AtomicU64]) -> bool {
        let (array, id, sequence) = (self.array(class), self.id, self.sequence);
        // SAFETY: S13, as above; the batch stands in the calling thread's record.
        !batch.is_empty() && unsafe { pop_entries(array, id, sequence, batch.as_ptr(), batch.len()) }
    }

    /// Opens the current CPU's array, or doubles its capacity within the budget of all. Under the class's lock.
    pub(super) fn raise(&self, class: usize) {
        let (Some(block), Some(shape)) = (self.block(), CLASSES.get(class)) else { return };
        if self.core().pool(class).is_stopped() {
            return;
        }
        let head = self.head(block, class);
        let old = head.capacity.load(Relaxed);
        let new = if old == 0 { initial(shape.size) } else { (old * 2).min(shape.front_max) };
        let cost = budgeted(new, shape.size).saturating_sub(budgeted(old, shape.size));
        let held = &self.core().front_bytes;
        if new <= old || (cost > 0 && held.load(Relaxed) + cost > self.front_budget()) {
            return;
        }
        head.capacity.store(new, Relaxed);
        head.cap.store(new, Release);
        held.fetch_add(cost, Relaxed);
    }

    /// Counts anew what all arrays together may hold: somebody died, perhaps between a capacity and the sum of all.
    pub(super) fn recount_fronts(&self) {
        let of_block = |block: usize| {
            (0..COUNT)
                .map(|class| {
                    let capacity = self.head(block, class).capacity.load(Relaxed);
                    CLASSES.get(class).map_or(0, |shape| budgeted(capacity, shape.size))
                })
                .sum::<u64>()
        };
        self.core().front_bytes.store((0..self.layout.blocks).map(of_block).sum(), Relaxed);
    }

    /// Bytes of cells that all arrays together may hold beyond what each may have: an eighth of what is committed.
    fn front_budget(&self) -> u64 {
        (self.committed_bytes() / 8).max(self.layout.blocks as u64 * (64 << 10))
    }

    /// Lets nobody pop from or push to a class's arrays any more. Sequences that began before are still to be waited for. Under
    /// the class's lock; whoever dies in the middle is known by the pool's `stopped_by`.
    pub(super) fn stop_fronts(&self, class: usize) {
        for block in 0..self.layout.blocks {
            let head = self.head(block, class);
            if head.capacity.load(Relaxed) != 0 {
                // The floor first, by which an array is known that has to be opened again.
                head.floor.store(u32::MAX, Relaxed);
                head.cap.store(0, Release);
            }
        }
    }

    /// Lets everybody use a class's arrays again. Under the class's lock.
    pub(super) fn open_fronts(&self, class: usize) {
        for block in 0..self.layout.blocks {
            let head = self.head(block, class);
            if head.floor.load(Relaxed) == u32::MAX {
                head.cap.store(head.capacity.load(Relaxed), Relaxed);
                head.floor.store(0, Release);
            }
        }
    }

    /// Entries that the current CPU's array of a class has room for, about.
    pub(super) fn front_room(&self, class: usize) -> usize {
        let head = self.block().map(|block| self.head(block, class));
        head.map_or(0, |head| head.cap.load(Relaxed).saturating_sub(head.top.load(Relaxed)) as usize)
    }

    /// Number of entries in a class's array, about: it changes meanwhile.
    pub(super) fn front_length(&self, block: usize, class: usize) -> usize {
        let most = CLASSES.get(class).map_or(0, |shape| shape.front_max);
        self.head(block, class).top.load(Relaxed).min(most) as usize
    }

    /// Whether a class ever used an array of a block.
    pub(super) fn front_is_used(&self, block: usize, class: usize) -> bool {
        self.head(block, class).capacity.load(Relaxed) != 0
    }
}
