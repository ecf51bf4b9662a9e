//! Arenas made by handle: one for many processes, or one of several in a process.
//!
//! A *shared* arena is made before a fork and used by all children, each of which may free what another allocated, and may be
//! killed at any instruction without harm to the others. A *private* one belongs to a process, and a forked child has a copy. Both
//! are the same code on the same tables, which lie in the arena's own mapping, at the same address everywhere: nothing of a
//! process's own is needed but a handle.
//!
//! | file | what |
//! |---|---|
//! | `paths.rs`, `large.rs`, `many.rs`, `slot.rs` | malloc, free, and what is built on them |
//! | `single.rs` | malloc and free of an arena that one thread at a time uses |
//! | `front.rs` | front caches, by restartable sequences |
//! | `span.rs`, `grid.rs`, `grow.rs` | cells and spans under class locks, slices and pages under the grid's |
//! | `lock.rs`, `journal.rs`, `mutex.rs` | critical sections that happen whole or not at all |
//! | `directory.rs`, `recover.rs` | who uses the arena, and what becomes of what the dead had |
//! | `sample.rs` | live bytes by call site |
//! | `hook.rs` | telling the program |
//! | `file.rs`, `named.rs` | arenas that unrelated processes open |
//! | `backing.rs` | the tiers of pages, and what they got |
//! | `create.rs`, `fork.rs`, `tick.rs`, `inspect.rs` | beginning, children, maintenance, and a look at everything |
//!
//! # Why a death is harmless
//! A change under a lock is undone by the next owner, unless it was complete. A change without a lock is one store. In
//! between, what a thread has in its hands stands in its record.

mod backing;
mod core;
mod create;
mod directory;
mod file;
mod fill;
mod fork;
mod front;
mod grid;
mod grow;
mod hook;
mod hot;
mod inspect;
mod journal;
mod large;
mod layout;
mod lock;
mod many;
mod mutex;
mod named;
mod options;
mod paths;
mod recover;
mod sample;
mod single;
mod slot;
mod span;
mod tick;

use self::core::{Core, Entry};
use crate::backing::room::Room;
use crate::size_class::{CLASSES, COUNT, Class, ODD_CLASSES};
use ::core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use hg_probes::page::StatsPage;
use hg_probes::words::Tier;
use hot::Hot;
use layout::Layout;
use span::SpanLinks;

pub use create::create;
pub use file::{create_passed, open_descriptor};
pub use hook::{Event, Hook, set_hook};
pub use inspect::{Audit, Cell, Hands};
pub use named::{create_named, open_named, unlink_named};
pub use options::{Error, Kind, Options};
pub use recover::Recovered;
pub use sample::Site;
pub use tick::tick_all;

/// Arenas that a process can have a handle of.
pub const ARENAS: usize = 16;

/// A handle of an arena: where everything lies, in this process's own memory. All calls may be made by any thread.
pub struct Arena {
    hot: Hot,
    /// Start of the tables, and of user memory, and bytes of the latter's address space.
    tables: usize,
    user: usize,
    cap_bytes: usize,
    /// Block 0 of the front caches, and where a thread finds its id and the pointer to its current sequence.
    fronts: usize,
    id: isize,
    sequence: isize,
    /// Whether restartable sequences are out of use here.
    standin: bool,
    /// Place of this arena's record among a thread's words.
    index: usize,
    /// What cells are larger by than those of the process's own arena, bytes.
    bias: u32,
    /// Bits of `create.rs`.
    flags: u32,
    pub(crate) number: u32,
    layout: Layout,
    stats: usize,
    room: Room,
}

impl Arena {
    #[inline(always)]
    fn core(&self) -> &'static Core {
        // SAFETY: S12, the tables begin with it.
        unsafe { &*(self.tables as *const Core) }
    }

    /// The arena's stats page.
    pub fn stats_page(&self) -> &'static StatsPage {
        // SAFETY: S6, stats pages are never unmapped.
        unsafe { &*(self.stats as *const StatsPage) }
    }

    /// The classes of this arena.
    #[inline(always)]
    fn shapes(&self) -> &'static [Class; COUNT] {
        if self.bias == 0 { &CLASSES } else { &ODD_CLASSES }
    }

    /// The state byte of an entry.
    #[inline(always)]
    fn state(&self, entry: Entry) -> Option<&'static AtomicU8> {
        let index = entry.state();
        // SAFETY: S12, there are so many states.
        (index < self.layout.state_count())
            .then(|| unsafe { &*((self.tables + self.layout.states + index) as *const AtomicU8) })
    }

    #[inline(always)]
    fn descriptor(&self, slice: usize) -> Option<&'static AtomicU64> {
        let at = self.tables + self.layout.descriptors + slice * size_of::<AtomicU64>();
        // SAFETY: S12, there is a word for each slice.
        (slice < self.layout.slices).then(|| unsafe { &*(at as *const AtomicU64) })
    }

    fn run(&self, slice: usize) -> Option<&'static AtomicU32> {
        let at = self.tables + self.layout.runs + slice * size_of::<AtomicU32>();
        // SAFETY: S12, as above.
        (slice < self.layout.slices).then(|| unsafe { &*(at as *const AtomicU32) })
    }

    /// The record of a span; that of the last slice for a number that is none.
    fn span(&self, slice: usize) -> &'static SpanLinks {
        let slice = slice.min(self.layout.slices.saturating_sub(1));
        // SAFETY: S12, as above.
        unsafe { &*((self.tables + self.layout.spans + slice * size_of::<SpanLinks>()) as *const SpanLinks) }
    }

    fn page_word(&self, page: usize) -> Option<&'static AtomicU32> {
        let at = self.tables + self.layout.page_words + page * size_of::<AtomicU32>();
        // SAFETY: S12, there is a word for each page.
        (page < self.layout.pages).then(|| unsafe { &*(at as *const AtomicU32) })
    }

    fn free_word(&self, page: usize) -> Option<&'static AtomicU64> {
        let at = self.tables + self.layout.free_words + page * size_of::<AtomicU64>();
        // SAFETY: S12, as above.
        (page < self.layout.pages).then(|| unsafe { &*(at as *const AtomicU64) })
    }

    fn tier_word(&self, page: usize) -> Option<&'static AtomicU8> {
        let at = self.tables + self.layout.tiers + page;
        // SAFETY: S12, as above.
        (page < self.layout.pages).then(|| unsafe { &*(at as *const AtomicU8) })
    }

    fn room(&self) -> &Room {
        &self.room
    }

    fn stall_ns(&self) -> u64 {
        u64::from(self.stats_page().header.stall_us.load(Relaxed)) * 1000
    }

    fn tier(&self) -> Tier {
        Tier::from_u64(self.stats_page().header.tier.load(Relaxed).into()).unwrap_or(Tier::Base)
    }

    fn id_is_standin(&self) -> bool {
        self.standin
    }

    /// Number of the arena, unique in its process.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes of user memory that may be used now. One relaxed load.
    pub fn committed_bytes(&self) -> u64 {
        u64::from(self.core().grid.committed_pages.load(Relaxed)) * crate::sys::memory::HUGE_PAGE as u64
    }

    /// Bytes on their way from or to the system.
    fn busy_bytes(&self) -> u64 {
        u64::from(self.core().grid.busy_pages.load(Relaxed)) * crate::sys::memory::HUGE_PAGE as u64
    }

    /// The most that the arena may commit, bytes.
    pub fn cap_bytes(&self) -> u64 {
        // Of two windows, both together have no more than one has room for.
        (self.cap_bytes as u64) >> u32::from(self.has_windows())
    }

    /// Bytes of slices that spans and large objects have. Two relaxed loads.
    pub fn used_bytes(&self) -> u64 {
        let grid = &self.core().grid;
        let slices = u64::from(grid.span_slices.load(Relaxed)) + u64::from(grid.large_slices.load(Relaxed));
        (slices * crate::size_class::SLICE as u64).min(self.cap_bytes())
    }

    /// Bytes of cells and large objects that are with the program, or in front caches. A sum over all classes.
    pub fn live_bytes(&self) -> u64 {
        let page = self.stats_page();
        let cells = page.classes.iter().map(|class| {
            let free = class.central_cells.load(Relaxed).wrapping_add(class.transfer_cells.load(Relaxed));
            class.cells.load(Relaxed).saturating_sub(free).saturating_mul(u64::from(class.size.load(Relaxed)))
        });
        cells.fold(page.header.large_bytes.load(Relaxed), u64::saturating_add).min(self.used_bytes())
    }

    /// The most that `used_bytes` ever was. One relaxed load.
    pub fn peak_bytes(&self) -> u64 {
        self.stats_page().header.used_peak_bytes.load(Relaxed)
    }
}
