//! The statistics that servers ask for: of an arena, and of what their own allocator still has.
//!
//! A few loads, no lock. They are taken one after the other while others allocate, so they are made to agree: used never
//! exceeds total, and nothing is below zero.

use crate::domain::Domain;
use core::sync::atomic::Ordering::Relaxed;

/// Bytes, but for `fragments`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) total: usize,
    /// Blocks that the server has, with what rounding adds to them, and blocks in caches.
    pub(crate) used: usize,
    /// Memory of size classes and of large blocks: what is not free for any block.
    pub(crate) real_used: usize,
    /// The most that `real_used` ever was.
    pub(crate) max_used: usize,
    /// What `real_used` leaves of the total.
    pub(crate) free: usize,
}

/// Statistics as both servers want them: their `struct mem_info`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Info {
    pub(crate) total_size: usize,
    pub(crate) free_size: usize,
    pub(crate) used_size: usize,
    pub(crate) real_used: usize,
    pub(crate) max_used: usize,
    pub(crate) min_frag: usize,
    pub(crate) total_frags: usize,
}

impl Info {
    /// Of a domain.
    pub(crate) fn of(domain: &Domain) -> Info {
        let figures = Figures::of(domain);
        let (used, free) = blocks(domain);
        Info {
            total_size: figures.total,
            free_size: figures.free,
            used_size: figures.used,
            real_used: figures.real_used,
            max_used: figures.max_used,
            min_frag: 0,
            total_frags: used + free,
        }
    }
}

impl Figures {
    /// Of a domain; zeros if it is on no arena.
    pub(crate) fn of(domain: &Domain) -> Figures {
        let Some(arena) = domain.arena() else { return Figures::default() };
        let (then, now) = domain.old().map_or((0, 0), |old| (old.used_then, old.live().min(old.used_then)));
        let total = arena.cap_bytes() as usize + then;
        let real_used = (arena.used_bytes() as usize + now).min(total);
        Figures {
            total,
            used: (arena.live_bytes() as usize + now).min(real_used),
            real_used,
            max_used: (arena.peak_bytes() as usize + then).clamp(real_used, total),
            free: total - real_used,
        }
    }

    /// `real_used` alone: servers with a threshold ask for it at each call.
    pub(crate) fn real_used(domain: &Domain) -> usize {
        let now = domain.old().map_or(0, |old| old.live().min(old.used_then));
        domain.arena().map_or(0, |arena| arena.used_bytes() as usize + now)
    }

    /// `total` alone.
    pub(crate) fn total(domain: &Domain) -> usize {
        domain.arena().map_or(0, |arena| arena.cap_bytes() as usize + domain.old().map_or(0, |old| old.used_then))
    }
}

/// How many blocks a domain's arena has: in use, and free for the taking in spans.
pub(crate) fn blocks(domain: &Domain) -> (usize, usize) {
    let Some(arena) = domain.arena() else { return (0, 0) };
    let page = arena.stats_page();
    page.classes.iter().fold((page.header.large_count.load(Relaxed) as usize, 0), |(used, free), class| {
        let cells = class.cells.load(Relaxed) as usize;
        let central = class.central_cells.load(Relaxed) as usize;
        (used + cells.saturating_sub(central), free + central.min(cells))
    })
}
