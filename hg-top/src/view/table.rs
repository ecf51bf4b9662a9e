//! A table that sorts by value, filters, keeps its selection on the row and drops columns that do not fit.

use std::cmp::Ordering;

use ratatui::style::{Modifier, Style};

use super::paint::Pane;
use super::theme;
use crate::escape::cut;
use crate::filter::Filter;

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// Its name in filters.
    pub name: &'static str,
    /// Its width; that of the last one is what is left.
    pub width: u16,
    /// Whether figures end at its right.
    pub right: bool,
    /// Those with the highest number go first when there is no room.
    pub priority: u8,
}

impl Column {
    /// A column of figures.
    pub const fn right(title: &'static str, name: &'static str, width: u16, priority: u8) -> Column {
        Column { title, name, width, right: true, priority }
    }

    /// A column of text.
    pub const fn left(title: &'static str, name: &'static str, width: u16, priority: u8) -> Column {
        Column { title, name, width, right: false, priority }
    }
}

/// What a cell sorts by.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// Not known: last in any order.
    None,
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// One cell of a row.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What is shown.
    pub text: String,
    /// What it sorts by.
    pub key: Key,
    /// How it looks.
    pub style: Style,
}

impl Cell {
    /// A figure, shown as `text`.
    pub fn number(text: impl Into<String>, value: f64) -> Cell {
        Cell { text: text.into(), key: Key::Number(value), style: theme::PLAIN }
    }

    /// A figure that may be unknown.
    pub fn maybe(text: impl Into<String>, value: Option<f64>) -> Cell {
        let key = value.map_or(Key::None, Key::Number);
        let style = if value == Some(0.0) || value.is_none() { theme::DIM } else { theme::PLAIN };
        Cell { text: text.into(), key, style }
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Cell {
        let text = text.into();
        Cell { key: Key::Text(text.clone()), text, style: theme::PLAIN }
    }

    /// The same in another style.
    pub fn styled(self, style: Style) -> Cell {
        Cell { style, ..self }
    }
}

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Tells it from the others, whatever the order.
    pub id: String,
    /// Its cells, one a column.
    pub cells: Vec<Cell>,
}

/// Sorting and selection of a table.
#[derive(Clone, Debug, Default)]
pub struct TableState {
    /// The column it sorts by; `None`: in the order it comes.
    pub sort: Option<usize>,
    /// Whether the least comes first.
    pub ascending: bool,
    /// The id of the selected row.
    pub selected: Option<String>,
    /// Whether its detail is shown.
    pub detail: bool,
    /// Rows that fit on the screen, when it was drawn last.
    pub page: usize,
    first: usize,
    ids: Vec<String>,
    columns: usize,
}

impl TableState {
    /// Sorted by `column`, the greatest first.
    pub fn sorted(column: usize) -> TableState {
        TableState { sort: Some(column), ..TableState::default() }
    }

    /// Sorts by the next column, or a previous one.
    pub fn sort_by_next(&mut self, step: i32) {
        let places = self.columns as i32 + 1;
        let current = self.sort.map_or(0, |column| column as i32 + 1);
        self.sort = usize::try_from((current + step).rem_euclid(places) - 1).ok();
    }

    /// Sorts the other way round.
    pub fn invert(&mut self) {
        self.ascending = !self.ascending;
    }

    /// Moves the selection.
    pub fn move_by(&mut self, rows: i32) {
        let Some(last) = self.ids.len().checked_sub(1) else { return };
        let to = match self.position() {
            Some(at) => at.saturating_add_signed(rows as isize).min(last),
            None if rows == i32::MAX => last,
            None => 0,
        };
        self.selected = Some(self.ids[to].clone());
    }

    /// Which rows are on the screen, if not all of them are: `rows 1–17 of 51`.
    pub fn part(&self) -> Option<String> {
        let (rows, last) = (self.ids.len(), (self.first + self.page).min(self.ids.len()));
        (rows > self.page).then(|| format!("rows {}–{last} of {rows}", self.first + 1))
    }

    fn position(&self) -> Option<usize> {
        self.ids.iter().position(|id| Some(id) == self.selected.as_ref())
    }
}

/// Sorts and filters `rows`; returns what is left of them.
pub fn prepare(columns: &[Column], mut rows: Vec<Row>, state: &TableState, filter: &Filter) -> Vec<Row> {
    rows.retain(|row| filter.passes(columns, row));
    if let Some(column) = state.sort {
        rows.sort_by(|a, b| order(a.cells.get(column), b.cells.get(column), state.ascending));
    }
    rows
}

fn order(a: Option<&Cell>, b: Option<&Cell>, ascending: bool) -> Ordering {
    let (Some(a), Some(b)) = (a, b) else { return Ordering::Equal };
    // Figures start with the greatest, texts with the first in the alphabet.
    let by_value = match (&a.key, &b.key) {
        (Key::Number(a), Key::Number(b)) => b.total_cmp(a),
        (Key::Text(a), Key::Text(b)) => a.cmp(b),
        (Key::None, Key::None) => return Ordering::Equal,
        (Key::None, _) => return Ordering::Greater,
        (_, Key::None) => return Ordering::Less,
        (Key::Number(_), Key::Text(_)) => Ordering::Less,
        (Key::Text(_), Key::Number(_)) => Ordering::Greater,
    };
    if ascending { by_value.reverse() } else { by_value }
}

/// The least width that is worth showing of a text at the end of a line.
const LEAST: u16 = 12;

/// Where each column lies: its number, its left edge and its width.
pub fn layout(columns: &[Column], width: u16) -> Vec<(usize, u16, u16)> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| shown.iter().map(|i| columns[*i].width + 1).sum::<u16>();
    while needed(&shown) > width && shown.len() > 1 {
        let Some(out) = (0..shown.len()).max_by_key(|at| (columns[shown[*at]].priority, *at)) else { break };
        let last = &columns[shown[shown.len() - 1]];
        // Of what must be there, a text at the end makes do with less.
        if columns[shown[out]].priority == 0
            && !last.right
            && needed(&shown) <= width + last.width.saturating_sub(LEAST)
        {
            break;
        }
        shown.remove(out);
    }
    let mut x = 1;
    let last = shown.last().copied();
    let place = |i: usize| {
        let at = x;
        let room = width.saturating_sub(at);
        let least = columns[i].width.min(LEAST);
        let own = if Some(i) == last && !columns[i].right { room.max(least) } else { columns[i].width };
        x += own + 1;
        (i, at, own)
    };
    shown.into_iter().map(place).collect()
}

/// Draws a table with its header in the first row of `pane`. `empty` is what is said when there are no rows.
pub fn draw(pane: &mut Pane<'_>, columns: &[Column], rows: &[Row], state: &mut TableState, empty: &str) {
    let places = layout(columns, pane.width());
    for &(i, x, width) in &places {
        let column = &columns[i];
        let arrow = match (state.sort == Some(i), state.ascending) {
            (true, true) => "↑",
            (true, false) => "↓",
            (false, _) => "",
        };
        let title = format!("{}{arrow}", column.title);
        let style = theme::DIM.add_modifier(Modifier::BOLD);
        let style = if state.sort == Some(i) { theme::STRONG } else { style };
        put_aligned(pane, x, 0, width, &title, column.right, style);
    }
    let page = usize::from(pane.height().saturating_sub(1));
    state.columns = columns.len();
    state.page = page;
    state.ids = rows.iter().map(|row| row.id.clone()).collect();
    if rows.is_empty() {
        pane.put(1, 2, empty, theme::DIM);
        return;
    }
    let selected = state.position();
    if let Some(at) = selected {
        state.first = state.first.clamp((at + 1).saturating_sub(page.max(1)), at);
    }
    state.first = state.first.min(rows.len().saturating_sub(page));
    for (line, row) in rows.iter().skip(state.first).take(page).enumerate() {
        let y = line as u16 + 1;
        let chosen = selected == Some(state.first + line);
        if chosen {
            let blank = " ".repeat(pane.width().into());
            pane.put(0, y, &blank, theme::SELECTED);
        }
        for &(i, x, width) in &places {
            let Some(cell) = row.cells.get(i) else { continue };
            let style = if chosen { theme::SELECTED } else { cell.style };
            put_aligned(pane, x, y, width, &cell.text, columns[i].right, style);
        }
    }
}

fn put_aligned(pane: &mut Pane<'_>, x: u16, y: u16, width: u16, text: &str, right: bool, style: Style) {
    let text = cut(text, width.into());
    let indent = if right { width.saturating_sub(text.chars().count() as u16) } else { 0 };
    pane.put(x + indent, y, &text, style);
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] =
        &[Column::right("A", "a", 5, 0), Column::right("B", "b", 5, 2), Column::left("C", "c", 5, 1)];

    fn row(id: &str, a: Option<f64>) -> Row {
        Row { id: id.into(), cells: vec![Cell::maybe(a.map_or("-".into(), |a| a.to_string()), a)] }
    }

    fn ids(rows: &[Row]) -> String {
        rows.iter().map(|row| row.id.as_str()).collect()
    }

    #[test]
    fn sorts_by_value_and_unknown_goes_last() {
        let rows = vec![row("x", Some(9.0)), row("y", None), row("z", Some(10.0))];
        let mut state = TableState { sort: Some(0), ..TableState::default() };
        assert_eq!(ids(&prepare(COLUMNS, rows.clone(), &state, &Filter::default())), "zxy");
        state.invert();
        assert_eq!(ids(&prepare(COLUMNS, rows, &state, &Filter::default())), "xzy");
    }

    #[test]
    fn columns_go_by_priority_and_the_last_text_fills_the_line() {
        assert_eq!(layout(COLUMNS, 18), [(0, 1, 5), (1, 7, 5), (2, 13, 5)]);
        assert_eq!(layout(COLUMNS, 17), [(0, 1, 5), (2, 7, 10)]);
        assert_eq!(layout(COLUMNS, 1), [(0, 1, 5)]);
        let texts = [Column::left("A", "a", 8, 0), Column::right("B", "b", 9, 1), Column::left("C", "c", 42, 0)];
        assert_eq!(layout(&texts, 40), [(0, 1, 8), (2, 10, 30)]);
        assert_eq!(layout(&texts, 20), [(0, 1, 19)]);
    }

    #[test]
    fn the_selection_stays_on_its_row() {
        let mut state = TableState { ids: vec!["a".into(), "b".into(), "c".into()], ..TableState::default() };
        state.move_by(1);
        assert_eq!(state.selected.as_deref(), Some("a"));
        state.move_by(i32::MAX);
        assert_eq!(state.selected.as_deref(), Some("c"));
        state.ids.reverse();
        state.move_by(1);
        assert_eq!(state.selected.as_deref(), Some("b"));
        state.move_by(i32::MIN);
        assert_eq!(state.selected.as_deref(), Some("c"));
        TableState::default().move_by(1);
    }

    #[test]
    fn sorting_walks_through_the_columns() {
        let mut state = TableState { columns: 2, ..TableState::default() };
        let mut seen = Vec::new();
        for _ in 0..3 {
            state.sort_by_next(1);
            seen.push(state.sort);
        }
        assert_eq!(seen, [Some(0), Some(1), None]);
        state.sort_by_next(-1);
        assert_eq!(state.sort, Some(1));
    }
}
