//! Sampled allocations by call site: what the live bytes of an arena belong to, at the price of a countdown.
//!
//! Each thread counts the bytes that it allocates down, in its record; the allocation that ends the count is a sample, and stands
//! for the mean number of bytes between two. Its state byte says so, so that its free is seen, by whatever process. A
//! sample is remembered with its site, whose record sums what was sampled and what of it was freed: the difference is what the
//! site holds, about. While a tracer listens both are told.
//!
//! No lock: a place belongs to who put a nonzero word there. A death in between leaves a place taken, or a sum one sample off.

use super::Arena;
use super::core::Entry;
use crate::cell::SAMPLED;
use crate::sys::clock;
use core::sync::atomic::{AtomicU64, Ordering::*};
use hg_probes::catalogue::args;
use hg_probes::directory::{SITES, SiteRecord, ThreadRecord};
use hg_probes::emit;

/// Samples that can be with the program at once: sets of [`WAYS`], found by a hash of the cell.
pub(super) const SAMPLES: usize = 4096;
const WAYS: usize = 8;

/// Sites that are looked at for a place.
const PROBES: usize = 16;

/// A sample that is with the program.
#[repr(C)]
pub(super) struct Sample {
    /// The cell's entry, 0 for none.
    entry: AtomicU64,
    /// Bytes asked for.
    bytes: AtomicU64,
    /// Bytes that it stands for, and the place of its site.
    weight: AtomicU64,
    site: AtomicU64,
    since_ns: AtomicU64,
}

/// Where in a program a block is allocated.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Name of the file: a C string that lives as long as the arena, at the same address in all its processes; or null.
    pub file: *const u8,
    /// Name of the function, likewise.
    pub function: *const u8,
    /// The line.
    pub line: u32,
}

impl Site {
    /// A caller who is not known.
    pub const UNKNOWN: Site = Site { file: core::ptr::null(), function: core::ptr::null(), line: 0 };
}

impl Arena {
    /// Counts an allocation; one that ends the thread's count becomes a sample.
    #[inline(always)]
    pub(super) fn count_down(&self, record: &ThreadRecord, entry: Entry, size: usize, site: impl Fn() -> Site) {
        let left = record.sample_left.load(Relaxed);
        if left > size as u64 {
            record.sample_left.store(left - size as u64, Relaxed);
        } else {
            self.take_sample(record, entry, size, &site());
        }
    }

    #[cold]
    #[inline(never)]
    fn take_sample(&self, record: &ThreadRecord, entry: Entry, size: usize, site: &Site) {
        let mean = self.stats_page().header.sample_bytes.load(Relaxed).max(1);
        let first = record.sample_left.load(Relaxed) == 0;
        record.sample_left.store(1 + self.draw() % (2 * mean), Relaxed);
        let (Some(state), false) = (self.state(entry), first) else { return };
        let Some(place) = self.samples(entry).find(|sample| {
            sample.entry.compare_exchange(0, entry.0, AcqRel, Relaxed).is_ok() || sample.entry.load(Relaxed) == entry.0
        }) else {
            return;
        };
        // The mean of an even draw from 1 to twice the mean, or the whole of what is larger.
        let weight = mean.max(size as u64);
        let index = self.find_site(site);
        place.bytes.store(size as u64, Relaxed);
        place.weight.store(weight, Relaxed);
        place.site.store(index as u64, Relaxed);
        place.since_ns.store(clock::now_ns(), Relaxed);
        state.store(SAMPLED, Release);
        if let Some(site) = self.site(index) {
            site.samples.fetch_add(1, Relaxed);
            site.bytes.fetch_add(weight, Relaxed);
        }
        let address = self.user + entry.offset();
        emit::sample_alloc(|| args::sample_alloc { arena: self.number, address, bytes: size, weight });
    }

    /// Forgets a sample that is freed, and tells.
    #[cold]
    pub(super) fn end_sample(&self, entry: Entry) {
        let Some(place) = self.samples(entry).find(|sample| sample.entry.load(Acquire) == entry.0) else { return };
        let (bytes, weight) = (place.bytes.load(Relaxed) as usize, place.weight.load(Relaxed));
        let age_ns = clock::now_ns().saturating_sub(place.since_ns.load(Relaxed));
        if let Some(site) = self.site(place.site.load(Relaxed) as usize) {
            site.freed_samples.fetch_add(1, Relaxed);
            site.freed_bytes.fetch_add(weight, Relaxed);
        }
        place.entry.store(0, Release);
        let address = self.user + entry.offset();
        emit::sample_free(|| args::sample_free { arena: self.number, address, bytes, age_ns });
    }

    /// The place of a site, taken now if it has none; that of the unknown one where there is no room.
    fn find_site(&self, site: &Site) -> usize {
        let tag = u64::from(site.line) << 1 | 1;
        let file = site.file as u64;
        if file == 0 {
            return 0;
        }
        let hash = ((file ^ tag).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        // Place 0 is the unknown site's.
        let places = (0..PROBES).map(|step| 1 + (hash + step) % (SITES - 1));
        for index in places {
            let Some(place) = self.site(index) else { break };
            if place.line_and_tag.load(Acquire) == 0 && place.file.compare_exchange(0, file, AcqRel, Relaxed).is_ok() {
                place.function.store(site.function as u64, Relaxed);
                place.line_and_tag.store(tag, Release);
                return index;
            }
            if place.file.load(Relaxed) == file && place.line_and_tag.load(Acquire) == tag {
                return index;
            }
        }
        0
    }

    fn site(&self, index: usize) -> Option<&'static SiteRecord> {
        let at = self.tables + self.layout.sites + index * size_of::<SiteRecord>();
        // SAFETY: S12, there are SITES records.
        (index < SITES).then(|| unsafe { &*(at as *const SiteRecord) })
    }

    /// Visits all call sites that have samples, in no order. The first one visited may be the unknown one.
    pub fn for_each_site(&self, visit: impl FnMut(&SiteRecord)) {
        (0..SITES).filter_map(|index| self.site(index)).filter(|site| site.samples.load(Relaxed) != 0).for_each(visit);
    }

    fn samples(&self, entry: Entry) -> impl Iterator<Item = &'static Sample> {
        let hash = (entry.0 & u64::from(u32::MAX)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let first = hash as usize % (SAMPLES / WAYS) * WAYS;
        let start = self.tables + self.layout.samples;
        (first..first + WAYS).map(move |index| {
            // SAFETY: S12, there are SAMPLES of them.
            unsafe { &*((start + index * size_of::<Sample>()) as *const Sample) }
        })
    }

    /// A pseudo-random number (xorshift; Marsaglia 2003). Two threads at once may draw the same.
    fn draw(&self) -> u64 {
        let state = &self.core().random;
        let mut random = state.load(Relaxed) | 1;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        state.store(random, Relaxed);
        random >> 16
    }
}
