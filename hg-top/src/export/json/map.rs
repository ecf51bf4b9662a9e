//! The pages of an arena, with what keeps each.

use hg_probes::words::Tier;
use serde::Serialize;

use crate::collect::map::Pages;
use crate::model::map::{Page, PageMap};

/// The map of an arena, or why there is none.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Map {
    /// It could be read.
    Read(Whole),
    /// It could not.
    Failed {
        /// Why.
        error: String,
    },
}

/// A whole map.
#[derive(Debug, Serialize)]
pub(super) struct Whole {
    address: String,
    took_ms: f64,
    pages_left_out: u64,
    total: Entry,
    sparse: Sparse,
    pages: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Sparse {
    pages: u64,
    held_bytes: u64,
    used_bytes: u64,
}

/// One page, or all of them.
#[derive(Debug, Serialize)]
struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
    pinned: bool,
    used_bytes: u64,
    span_bytes: u64,
    large_bytes: u64,
    free_dirty_bytes: u64,
    free_fresh_bytes: u64,
    released_bytes: u64,
    busy_bytes: u64,
    damaged_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_by: Option<String>,
}

impl Map {
    /// Of what was read. Pages that were given back whole are left out.
    pub(super) fn of(read: &Result<Pages, String>) -> Map {
        let Pages { map, details } = match read {
            Ok(pages) => pages,
            Err(error) => return Map::Failed { error: error.clone() },
        };
        let (pages, held_bytes, used_bytes) = map.sparse();
        let there = map.pages.iter().enumerate().filter(|(_, page)| page.slices.released < page.slices.all());
        Map::Read(Whole {
            address: format!("0x{:x}", map.base),
            took_ms: map.took.as_secs_f64() * 1000.0,
            pages_left_out: map.left_out,
            total: entry(map, &map.total()),
            sparse: Sparse { pages, held_bytes, used_bytes },
            pages: there
                .map(|(number, page)| Entry {
                    page: Some(number),
                    tier: page.tier.map(Tier::label),
                    kept_by: details.get(&number).map(|detail| detail.meaning()),
                    ..entry(map, page)
                })
                .collect(),
        })
    }
}

fn entry(map: &PageMap, page: &Page) -> Entry {
    let bytes = |slices: u64| slices.saturating_mul(map.slice_bytes);
    let slices = &page.slices;
    Entry {
        page: None,
        tier: None,
        pinned: page.pinned,
        used_bytes: page.used,
        span_bytes: bytes(slices.span),
        large_bytes: bytes(slices.large),
        free_dirty_bytes: bytes(slices.dirty),
        free_fresh_bytes: bytes(slices.fresh),
        released_bytes: bytes(slices.released),
        busy_bytes: bytes(slices.busy),
        damaged_bytes: bytes(slices.damaged),
        kept_by: None,
    }
}
