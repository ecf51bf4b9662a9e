//! The pages of an arena's grid: what each holds, what backs it, and what keeps one of them.
//!
//! A map is a picture of a moment that may not fit together: the records it is read from change under locks that a reader
//! does not have. Slices that no run accounts for are counted as damaged, never guessed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use hg_probes::words::Tier;

use super::MonotonicNs;
use crate::unit;

/// Where the grid's records lie in a process, as its stats page says. Addresses are the process's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// First address of user memory.
    pub base: u64,
    /// Run records, one a slice.
    pub runs: u64,
    /// Span records, one a slice.
    pub spans: u64,
    /// Descriptors, one a slice.
    pub descriptors: u64,
    /// What backs each page, a byte each.
    pub tiers: u64,
    /// Cell states.
    pub states: u64,
    /// Slices that have records, when the stats page was read.
    pub top: u64,
    /// Address of the word that says how many have them now.
    pub top_at: u64,
    /// The array that a span's descriptor names, and the size of the class it belongs to.
    pub arrays: BTreeMap<u64, u32>,
}

/// Slices by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slices {
    /// Spans of classes.
    pub span: u64,
    /// Large objects.
    pub large: u64,
    /// Free, used before: they hold memory.
    pub dirty: u64,
    /// Free, committed, not touched since: they hold none.
    pub fresh: u64,
    /// Given back.
    pub released: u64,
    /// On their way to the system.
    pub busy: u64,
    /// Of no run that makes sense: the records are damaged, or changed while they were read.
    pub damaged: u64,
}

impl Slices {
    /// Adds others.
    pub fn add(&mut self, other: &Slices) {
        self.span = self.span.saturating_add(other.span);
        self.large = self.large.saturating_add(other.large);
        self.dirty = self.dirty.saturating_add(other.dirty);
        self.fresh = self.fresh.saturating_add(other.fresh);
        self.released = self.released.saturating_add(other.released);
        self.busy = self.busy.saturating_add(other.busy);
        self.damaged = self.damaged.saturating_add(other.damaged);
    }

    /// All of them.
    pub fn all(&self) -> u64 {
        let parts = [self.span, self.large, self.dirty, self.fresh, self.released, self.busy, self.damaged];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Those that may hold memory of the process: all that is neither given back nor fresh.
    pub fn held(&self) -> u64 {
        self.all().saturating_sub(self.released).saturating_sub(self.fresh)
    }
}

/// One page of the grid, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Page {
    /// What its slices hold.
    pub slices: Slices,
    /// Bytes of cells that are not free with their spans, and of large objects.
    pub used: u64,
    /// What backs it; `None` for a byte this version does not know, or one that could not be read.
    pub tier: Option<Tier>,
    /// Whether all of it is locked into RAM.
    pub pinned: bool,
    /// Whether several tiers back it (of pages together).
    pub mixed: bool,
    /// The head of the run that covers its first slice.
    pub head: u32,
}

impl Page {
    /// Both together.
    pub fn join(self, other: Page) -> Page {
        let mut slices = self.slices;
        slices.add(&other.slices);
        Page {
            slices,
            used: self.used.saturating_add(other.used),
            tier: self.tier,
            pinned: self.pinned && other.pinned,
            mixed: self.mixed || other.mixed || self.tier != other.tier,
            head: self.head,
        }
    }

    /// Which share of it is used.
    pub fn occupancy(&self, slice_bytes: u64) -> f64 {
        self.used as f64 / (self.slices.all().saturating_mul(slice_bytes)).max(1) as f64
    }

    /// Bytes of it that may hold memory.
    pub fn held(&self, slice_bytes: u64) -> u64 {
        self.slices.held().saturating_mul(slice_bytes)
    }

    /// Whether little keeps it: there are spans, but less than a tenth of the memory it holds is used.
    pub fn is_sparse(&self, slice_bytes: u64) -> bool {
        self.slices.span > 0 && self.used < self.held(slice_bytes) / 10
    }
}

/// All pages of an arena.
#[derive(Clone, Debug, Default)]
pub struct PageMap {
    /// When it was read.
    pub read_at: MonotonicNs,
    /// How long that took.
    pub took: Duration,
    /// First address of the first page.
    pub base: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// The pages, lowest address first.
    pub pages: Vec<Page>,
    /// Pages behind those, which are too many to be read.
    pub left_out: u64,
}

impl PageMap {
    /// Slices of a page.
    pub fn page_slices(&self) -> u64 {
        self.page_bytes.checked_div(self.slice_bytes).unwrap_or(0).max(1)
    }

    /// All pages together.
    pub fn total(&self) -> Page {
        self.group(0..self.pages.len())
    }

    /// Some pages together; those beyond the last are nothing.
    pub fn group(&self, pages: Range<usize>) -> Page {
        let end = pages.end.min(self.pages.len());
        let found = self.pages.get(pages.start.min(end)..end).unwrap_or_default();
        found.iter().copied().reduce(Page::join).unwrap_or_default()
    }

    /// The pages that little keeps: how many, what they hold of the process's memory, and what is used of that.
    pub fn sparse(&self) -> (u64, u64, u64) {
        let sparse = self.pages.iter().filter(|page| page.is_sparse(self.slice_bytes));
        sparse.fold((0, 0, 0), |(count, held, used), page| {
            (count + 1, held.saturating_add(page.held(self.slice_bytes)), used.saturating_add(page.used))
        })
    }
}

/// Cells of one class that touch some pages, by their state bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    /// Spans of the class there.
    pub spans: u64,
    /// Handed out (sampled ones included).
    pub live: u64,
    /// Free, in front and transfer caches.
    pub cached: u64,
    /// Free with their spans.
    pub free: u64,
    /// In a state that does not exist.
    pub damaged: u64,
}

/// A large object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// Its address.
    pub address: u64,
    /// Its bytes, in whole slices.
    pub bytes: u64,
}

/// What a slice holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holds {
    /// A span; how full it is in percent.
    Span(u8),
    /// A large object.
    Large,
    /// Free memory that was used.
    Dirty,
    /// Free memory that was not touched.
    Fresh,
    /// Nothing: given back.
    Released,
    /// On its way to the system.
    Busy,
    /// Of no run that makes sense.
    #[default]
    Damaged,
}

/// What keeps some pages.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    /// Which pages.
    pub pages: Range<usize>,
    /// When this was read.
    pub read_at: MonotonicNs,
    /// Their slices.
    pub strip: Vec<Holds>,
    /// Cells by the size of their class.
    pub classes: BTreeMap<u32, Cells>,
    /// Large objects, the first few.
    pub large: Vec<Large>,
    /// Large objects in all.
    pub large_count: u64,
    /// Spans whose class or states could not be read.
    pub unreadable: u64,
}

impl Detail {
    /// Spans of all classes.
    pub fn spans(&self) -> u64 {
        self.classes.values().map(|cells| cells.spans).fold(self.unreadable, u64::saturating_add)
    }

    /// `page 17`, `pages 16 to 19`.
    pub fn name(&self) -> String {
        match self.pages.len() {
            0 | 1 => format!("page {}", self.pages.start),
            _ => format!("pages {} to {}", self.pages.start, self.pages.end.saturating_sub(1)),
        }
    }

    /// What keeps them, as a sentence: `3 spans; kept by 1 live 4 KiB cell (class 4096)`.
    pub fn meaning(&self) -> String {
        let sum = |of: fn(&Cells) -> u64| self.classes.values().map(of).fold(0, u64::saturating_add);
        let (live, cached, damaged) = (sum(|cells| cells.live), sum(|cells| cells.cached), sum(|cells| cells.damaged));
        let has = |wanted: fn(&Holds) -> bool| self.strip.iter().any(wanted);
        let mut keepers = Vec::new();
        if self.large_count == 1 {
            let size = self.large.first().map_or(0, |large| large.bytes);
            keepers.push(format!("a large object of {}", unit::bytes(size)));
        } else if self.large_count > 1 {
            keepers.push(format!("{} large objects", unit::count(self.large_count)));
        }
        if live > 0 {
            keepers.push(self.live_cells(live));
        }
        if keepers.is_empty() && cached > 0 {
            keepers.push(format!("{} in front and transfer caches", plural(cached, "cached cell")));
        }
        let before = match self.spans() {
            0 => String::new(),
            spans => format!("{}; ", plural(spans, "span")),
        };
        match keepers.is_empty() {
            false => format!("{before}kept by {}", keepers.join(" and ")),
            true if damaged > 0 || self.unreadable > 0 => format!("{before}their cells' states make no sense"),
            true if self.spans() > 0 => format!("{before}no cell is live: their classes keep them for the next refill"),
            true if has(|slice| *slice == Holds::Damaged) => "the records make no sense, or changed while read".into(),
            true if has(|slice| *slice == Holds::Busy) => "on the way to the system".into(),
            true if has(|slice| *slice == Holds::Dirty) => "free, and still holding memory: nothing keeps it".into(),
            true if has(|slice| *slice == Holds::Fresh) => "free, committed, not touched: it holds no memory".into(),
            true => "given back to the system".into(),
        }
    }

    /// `1 live 4 KiB cell (class 4096)`, `123 live cells: 120 of class 64, 3 of class 4096`.
    fn live_cells(&self, live: u64) -> String {
        let mut classes: Vec<(u32, u64)> =
            self.classes.iter().map(|(size, cells)| (*size, cells.live)).filter(|(_, live)| *live > 0).collect();
        if let [(size, _)] = classes[..] {
            let what = format!("live {} cell", unit::whole_bytes(size.into()));
            return format!("{} (class {size})", plural(live, &what));
        }
        classes.sort_by_key(|(_, live)| std::cmp::Reverse(*live));
        let named: Vec<String> = classes
            .iter()
            .take(NAMED)
            .map(|(size, live)| format!("{} of class {}", unit::count(*live), unit::class_size(*size)))
            .collect();
        let more = match classes.len().saturating_sub(NAMED) {
            0 => String::new(),
            1 => ", and 1 class more".into(),
            more => format!(", and {more} classes more"),
        };
        format!("{}: {}{more}", plural(live, "live cell"), named.join(", "))
    }
}

/// Classes that a sentence names.
const NAMED: usize = 3;

fn plural(count: u64, what: &str) -> String {
    format!("{} {what}{}", unit::count(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(classes: &[(u32, u64, u64)], strip: &[Holds]) -> Detail {
        let cells = |(size, live, cached): &(u32, u64, u64)| {
            (*size, Cells { spans: 1, live: *live, cached: *cached, free: 3, damaged: 0 })
        };
        Detail {
            pages: 17..18,
            classes: classes.iter().map(cells).collect(),
            strip: strip.to_vec(),
            ..Detail::default()
        }
    }

    #[test]
    fn it_says_what_keeps_a_page() {
        let one = detail(&[(4096, 1, 0), (64, 0, 9), (80, 0, 0)], &[Holds::Span(1)]);
        assert_eq!(one.meaning(), "3 spans; kept by 1 live 4 KiB cell (class 4096)");
        let many = detail(&[(64, 120, 0), (4096, 3, 0)], &[]);
        assert_eq!(many.meaning(), "2 spans; kept by 123 live cells: 120 of class 64, 3 of class 4K");
        let more = detail(&[(16, 1, 0), (32, 1, 0), (48, 1, 0), (64, 1, 0)], &[]);
        assert!(more.meaning().ends_with("1 of class 48, and 1 class more"), "{}", more.meaning());
        assert_eq!(detail(&[(64, 0, 9)], &[]).meaning(), "1 span; kept by 9 cached cells in front and transfer caches");
        let idle = detail(&[(64, 0, 0)], &[]).meaning();
        assert_eq!(idle, "1 span; no cell is live: their classes keep them for the next refill");
        for (holds, words) in [
            (Holds::Dirty, "free, and still holding memory"),
            (Holds::Fresh, "not touched"),
            (Holds::Released, "given back"),
            (Holds::Busy, "on the way"),
            (Holds::Damaged, "make no sense"),
        ] {
            let said = detail(&[], &[Holds::Released, holds]).meaning();
            assert!(said.contains(words), "{holds:?}: {said}");
        }
        let large = Detail {
            large: vec![Large { address: 0, bytes: 5 << 20 }],
            large_count: 1,
            ..detail(&[(64, 2, 0)], &[Holds::Large])
        };
        assert_eq!(large.meaning(), "1 span; kept by a large object of 5.00 MiB and 2 live 64 B cells (class 64)");
        assert_eq!(Detail { pages: 16..20, ..large }.name(), "pages 16 to 19");
    }

    #[test]
    fn pages_add_up() {
        let page = |span: u64, used, tier| Page {
            slices: Slices { span, dirty: 64 - span, ..Slices::default() },
            used,
            tier: Some(tier),
            pinned: true,
            ..Page::default()
        };
        let map = PageMap {
            page_bytes: 2 << 20,
            slice_bytes: 32 << 10,
            pages: vec![page(64, 2 << 20, Tier::Thp), page(1, 4096, Tier::Base)],
            ..PageMap::default()
        };
        assert_eq!(map.total().slices, Slices { span: 65, dirty: 63, ..Slices::default() });
        assert_eq!(map.sparse(), (1, 2 << 20, 4096));
        assert!(map.total().mixed && map.total().pinned && !map.group(1..2).mixed);
        assert_eq!(map.group(7..9), Page::default());
        assert_eq!(map.group(1..usize::MAX).used, 4096);
    }
}
