//! The state of the map view: which arena, where the cursor is, how many pages a cell stands for, and what was read last.
//!
//! Keys change it, drawing reads it, and neither reads memory: the live loop asks [`App::map_request`] what is due, has it
//! read by [`crate::collect::map`], and brings the answer to [`App::map_answer`].

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::app::{App, View};
use crate::collect::map::{Answer, Request};
use crate::model::map::{Detail, PageMap};
use crate::model::{ArenaId, ArenaRef};
use crate::process::monotonic_ns;
use crate::source::stats::keeps::MAX_PAGES;

/// Least time between two readings of a whole map; one that takes long is read more rarely.
const PAUSE: Duration = Duration::from_secs(1);

/// How much of the time reading may take: a 20th.
const SHARE: u32 = 20;

/// What the cells show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// How full the pages are.
    #[default]
    Heat,
    /// What backs them.
    Tier,
}

/// The state.
#[derive(Clone, Debug, Default)]
pub struct MapState {
    /// The arena that was chosen; else the largest in scope is shown.
    pub chosen: Option<ArenaId>,
    /// The page under the cursor.
    pub cursor: usize,
    /// Pages a cell, if chosen; else as few as fit.
    pub zoom: Option<usize>,
    /// What the cells show.
    pub layer: Layer,
    /// Cells of a row, as drawn last.
    pub columns: usize,
    /// Rows, as drawn last.
    pub rows: usize,
    /// Pages a cell, as drawn last.
    pub scale: usize,
    /// The first row on the screen.
    pub first_row: usize,
    /// Whose map was read.
    pub of: Option<ArenaId>,
    /// The map.
    pub map: Option<Arc<PageMap>>,
    /// What keeps the pages under the cursor.
    pub detail: Option<Detail>,
    /// Why there is no map.
    pub error: Option<String>,
    /// Whether the process has not answered for too long.
    pub stuck: bool,
}

impl MapState {
    /// The pages of the cell under the cursor.
    pub fn under_cursor(&self) -> Range<usize> {
        let scale = self.scale.max(1);
        let start = self.cursor / scale * scale;
        let pages = self.map.as_ref().map_or(0, |map| map.pages.len());
        start..(start + scale).min(pages).max(start)
    }

    /// Moves the cursor by so many cells.
    pub fn move_by(&mut self, cells: i64) {
        let last = self.map.as_ref().map_or(0, |map| map.pages.len().saturating_sub(1));
        let step = cells.saturating_mul(self.scale.max(1) as i64);
        self.cursor = self.cursor.saturating_add_signed(step as isize).min(last);
    }

    /// Moves the cursor by so many rows.
    pub fn move_rows(&mut self, rows: i32) {
        self.move_by(i64::from(rows).saturating_mul(self.columns.max(1) as i64));
    }

    /// To the next page that little keeps, or the one before; `false` if there is none.
    pub fn seek_sparse(&mut self, forward: bool) -> bool {
        let Some(map) = &self.map else { return false };
        let pages = map.pages.len();
        let under = self.under_cursor();
        let place = |step: usize| match forward {
            true => (under.end + step) % pages,
            false => (under.start + pages - 1 - step) % pages,
        };
        let found = (0..pages).map(place).find(|page| map.pages[*page].is_sparse(map.slice_bytes));
        self.cursor = found.unwrap_or(self.cursor);
        found.is_some()
    }

    /// Half or twice as many pages a cell.
    pub fn zoom(&mut self, closer: bool) {
        let scale = self.scale.max(1);
        self.zoom = Some(if closer { scale / 2 } else { scale * 2 }.clamp(1, MAX_PAGES));
    }

    /// Fits the map into so many cells, and brings the cursor onto the screen.
    pub fn fit(&mut self, columns: usize, rows: usize) {
        let pages = self.map.as_ref().map_or(0, |map| map.pages.len());
        let (columns, rows) = (columns.max(1), rows.max(1));
        let fits = |scale: &usize| pages.div_ceil(*scale) <= columns * rows;
        let scales = [1, 2, 4, 8, 16, 32, MAX_PAGES];
        self.scale = self.zoom.or_else(|| scales.into_iter().find(fits)).unwrap_or(MAX_PAGES);
        self.cursor = self.cursor.min(pages.saturating_sub(1));
        let row = self.cursor / self.scale / columns;
        self.first_row = self.first_row.clamp((row + 1).saturating_sub(rows), row);
        self.first_row = self.first_row.min(self.all_rows(columns).saturating_sub(rows));
        (self.columns, self.rows) = (columns, rows);
    }

    /// Rows that all cells take.
    pub fn all_rows(&self, columns: usize) -> usize {
        let pages = self.map.as_ref().map_or(0, |map| map.pages.len());
        pages.div_ceil(self.scale.max(1)).div_ceil(columns.max(1))
    }

    /// Which part of the rows is on the screen, if not all of them are.
    pub fn part(&self) -> Option<String> {
        let all = self.all_rows(self.columns);
        let last = (self.first_row + self.rows).min(all);
        (all > self.rows).then(|| format!("rows {}–{last} of {all}", self.first_row + 1))
    }
}

impl App {
    /// The arenas that the map can show.
    pub fn map_arenas(&self) -> Vec<ArenaRef<'_>> {
        let Some(latest) = self.timeline().latest() else { return Vec::new() };
        self.scope.arenas(latest).filter(|of| of.arena.figures.is_some()).collect()
    }

    /// The arena whose map is shown: the one chosen, else the one that has most memory.
    pub fn map_arena(&self) -> Option<ArenaRef<'_>> {
        let arenas = self.map_arenas();
        let committed = |of: &&ArenaRef<'_>| of.arena.figures.as_ref().map(|figures| figures.committed);
        let chosen = arenas.iter().find(|of| Some(of.id) == self.map.chosen);
        chosen.or_else(|| arenas.iter().max_by_key(|of| (committed(of), std::cmp::Reverse(of.id)))).copied()
    }

    /// Shows the map of the next arena.
    pub(crate) fn next_arena(&mut self) {
        let arenas: Vec<ArenaId> = self.map_arenas().iter().map(|of| of.id).collect();
        let current = self.map_arena().map(|of| of.id);
        let at = arenas.iter().position(|id| Some(*id) == current).map_or(0, |at| at + 1);
        self.map.chosen = arenas.get(at).or(arenas.first()).copied();
    }

    /// What has to be read now for the map view; nothing while it is not shown, or frozen.
    pub fn map_request(&self) -> Option<Request> {
        if self.view != View::Map || self.is_frozen() {
            return None;
        }
        let of = self.map_arena()?;
        let reader = &of.reader(self.timeline().latest()?)?.identity;
        let figures = of.arena.figures.as_ref()?;
        let id = of.id;
        let known = self.map.map.clone().filter(|_| self.map.of == Some(id));
        let pause = known.as_ref().map_or(PAUSE, |map| PAUSE.max(map.took * SHARE));
        let age = |read_at| Duration::from_nanos(monotonic_ns().saturating_sub(read_at));
        let due = known.as_ref().is_none_or(|map| age(map.read_at) >= pause);
        let wanted = self.map.under_cursor();
        let looked = self.map.detail.as_ref().is_some_and(|detail| {
            detail.pages == wanted && known.as_ref().is_some_and(|map| detail.read_at >= map.read_at)
        });
        (due || !looked).then(|| Request {
            arena: id,
            pid: reader.pid,
            start_ticks: reader.start_ticks,
            figures: figures.clone(),
            known: known.filter(|_| !due),
            pages: wanted,
        })
    }

    /// Takes in what was read.
    pub fn map_answer(&mut self, answer: Answer) {
        let current = self.map_arena().map(|of| of.id);
        if self.is_frozen() || current != Some(answer.arena) {
            return;
        }
        self.map.of = Some(answer.arena);
        match answer.found {
            Ok((map, detail)) => {
                (self.map.map, self.map.detail, self.map.error) = (Some(map), detail, None);
            }
            // The last map stays, with its age.
            Err(error) => self.map.error = Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::map::{Page, Slices};

    fn state(pages: usize) -> MapState {
        let page = |index: usize| Page {
            slices: Slices { span: 64, ..Slices::default() },
            used: if index % 100 == 7 { 4096 } else { 2 << 20 },
            ..Page::default()
        };
        let map = PageMap {
            page_bytes: 2 << 20,
            slice_bytes: 32 << 10,
            pages: (0..pages).map(page).collect(),
            ..PageMap::default()
        };
        MapState { map: Some(Arc::new(map)), ..MapState::default() }
    }

    #[test]
    fn as_few_pages_a_cell_as_fit_and_the_cursor_is_on_the_screen() {
        let mut state = state(1000);
        state.fit(64, 8);
        assert_eq!((state.scale, state.all_rows(64), state.part()), (2, 8, None));
        state.move_by(i64::MAX);
        assert_eq!((state.cursor, state.under_cursor()), (999, 998..1000));
        state.zoom(true);
        state.fit(64, 8);
        assert_eq!((state.scale, state.first_row), (1, 8));
        assert_eq!(state.part().as_deref(), Some("rows 9–16 of 16"));
        state.move_rows(-100);
        state.fit(64, 8);
        assert_eq!((state.cursor, state.first_row), (0, 0));
        for _ in 0..20 {
            state.zoom(false);
            state.fit(64, 8);
        }
        assert_eq!(state.scale, MAX_PAGES);
        state.map = None;
        state.fit(0, 0);
        assert_eq!(state.under_cursor(), 0..0);
    }

    #[test]
    fn pages_that_little_keeps_are_found_both_ways() {
        let mut state = state(250);
        state.fit(64, 8);
        let mut seek = |forward| {
            assert!(state.seek_sparse(forward));
            state.cursor
        };
        assert_eq!([seek(true), seek(true), seek(true), seek(true)], [7, 107, 207, 7]);
        assert_eq!([seek(false), seek(false)], [207, 107]);
        assert!(!self::state(5).seek_sparse(true) && !MapState::default().seek_sparse(true));
    }
}
