//! Putting text, bars and sparklines on a part of the screen; what does not fit is cut, at any size of the terminal.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::theme;

/// Eighths of a cell, from the left.
const LEFT: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// Eighths of a cell, from below.
const BELOW: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A rectangle of the screen with coordinates of its own.
pub struct Pane<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
}

/// A part of a stacked bar.
pub struct Part {
    /// Its size, in whatever unit the others have.
    pub size: u64,
    /// The glyph it is drawn with, so that it reads without colour.
    pub glyph: char,
    /// Its colour.
    pub style: Style,
}

impl<'a> Pane<'a> {
    /// The part of `area` that lies in the buffer.
    pub fn new(buffer: &'a mut Buffer, area: Rect) -> Pane<'a> {
        let area = area.intersection(buffer.area);
        Pane { buffer, area }
    }

    /// Its width, columns.
    pub fn width(&self) -> u16 {
        self.area.width
    }

    /// Its height, rows.
    pub fn height(&self) -> u16 {
        self.area.height
    }

    /// A part of it.
    pub fn part(&mut self, x: u16, y: u16, width: u16, height: u16) -> Pane<'_> {
        let wanted = Rect { x: self.area.x.saturating_add(x), y: self.area.y.saturating_add(y), width, height };
        let area = wanted.intersection(self.area);
        Pane { buffer: self.buffer, area }
    }

    /// Writes text; returns the column after it.
    pub fn put(&mut self, x: u16, y: u16, text: &str, style: Style) -> u16 {
        if x >= self.area.width || y >= self.area.height {
            return x;
        }
        let room = usize::from(self.area.width - x);
        let (end, _) = self.buffer.set_stringn(self.area.x + x, self.area.y + y, text, room, style);
        end - self.area.x
    }

    /// Writes text that ends before column `end`; what does not fit is cut at its end.
    pub fn right(&mut self, end: u16, y: u16, text: &str, style: Style) {
        let width = text.chars().count().min(usize::from(u16::MAX)) as u16;
        self.put(end.saturating_sub(width), y, text, style);
    }

    /// Writes text over as many lines as it needs; returns the line after it.
    pub fn wrap(&mut self, x: u16, mut y: u16, text: &str, style: Style) -> u16 {
        let width = usize::from(self.width().saturating_sub(x + 1)).max(1);
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                self.put(x, y, &line, style);
                y += 1;
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.put(x, y, &line, style);
        y + 1
    }

    /// Writes pieces one after the other; returns the column after them.
    pub fn line(&mut self, x: u16, y: u16, pieces: &[(&str, Style)]) -> u16 {
        pieces.iter().fold(x, |x, (text, style)| self.put(x, y, text, *style))
    }

    /// A horizontal line over the whole width.
    pub fn rule(&mut self, y: u16) {
        let line = "─".repeat(usize::from(self.width()));
        self.put(0, y, &line, theme::FRAME);
    }

    /// A heading with a line to its right, `width` columns in all.
    pub fn heading(&mut self, x: u16, y: u16, width: u16, title: &str, note: &str) {
        let width = width.min(self.width().saturating_sub(x));
        let line = "─".repeat(usize::from(width));
        self.put(x, y, &line, theme::FRAME);
        let after = self.put(x, y, title.trim_end(), theme::TITLE);
        if after < x + width {
            self.put(after, y, " ", theme::PLAIN);
        }
        let note_width = note.chars().count() as u16;
        if !note.is_empty() && width > after - x + note_width + 2 {
            self.put(x + width - note_width - 1, y, " ", theme::PLAIN);
            self.put(x + width - note_width, y, note, theme::DIM);
        }
    }

    /// A bar whose filled part is `share` of `width`.
    pub fn bar(&mut self, x: u16, y: u16, width: u16, share: f64, style: Style) {
        self.put(x, y, &bar(width, share), style);
    }

    /// Parts of a whole side by side; a part that exists has at least one column.
    pub fn stack(&mut self, x: u16, y: u16, width: u16, parts: &[Part]) {
        let total = parts.iter().map(|part| part.size as f64).sum::<f64>();
        if total <= 0.0 {
            return;
        }
        let mut at = x;
        let mut before = 0.0;
        for part in parts.iter().filter(|part| part.size > 0) {
            before += part.size as f64;
            let end = x + (before / total * f64::from(width)).round() as u16;
            let columns = end.saturating_sub(at).max(1).min((x + width).saturating_sub(at));
            at = self.put(at, y, &part.glyph.to_string().repeat(columns.into()), part.style);
        }
    }

    /// The latest values as a line of bars of one row.
    pub fn spark(&mut self, x: u16, y: u16, width: u16, values: &[f64], style: Style) {
        self.chart(x, y, width, 1, values, style);
    }

    /// The latest values as bars over several rows, the newest at the right; 0 at the bottom, the greatest at the top.
    pub fn chart(&mut self, x: u16, y: u16, width: u16, height: u16, values: &[f64], style: Style) {
        let shown = resample(values, width.into());
        let most = shown.iter().copied().fold(0.0, f64::max);
        let at = x + width.saturating_sub(shown.len() as u16);
        for (column, value) in shown.iter().enumerate() {
            let levels = f64::from(height) * 8.0;
            let level = if most > 0.0 { (value / most * levels).round() as u16 } else { 0 };
            // Something is not nothing.
            let level = if *value > 0.0 { level.max(1) } else { level };
            for row in 0..height {
                let inside = level.saturating_sub(8 * (height - 1 - row)).min(8);
                if inside > 0 {
                    let glyph = BELOW[usize::from(inside)].to_string();
                    self.put(at + column as u16, y + row, &glyph, style);
                }
            }
        }
    }
}

/// A bar as text: `share` of `width` columns, in eighths, padded.
pub fn bar(width: u16, share: f64) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * f64::from(width) * 8.0).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1).min(usize::from(width) * 8) } else { 0 };
    let mut text = "█".repeat(eighths / 8);
    if eighths % 8 > 0 {
        text.push(LEFT[eighths % 8]);
    }
    let missing = usize::from(width).saturating_sub(eighths.div_ceil(8));
    text + &" ".repeat(missing)
}

/// Counts as a miniature of bars, as text; zero is a blank.
pub fn miniature(counts: &[u64]) -> String {
    let most = counts.iter().copied().max().unwrap_or(0);
    let level = |count: u64| match count {
        0 => 0,
        // A square root lets a rare long tail be seen beside the bulk.
        _ => ((count as f64 / most as f64).sqrt() * 8.0).round().clamp(1.0, 8.0) as usize,
    };
    counts.iter().map(|count| BELOW[level(*count)]).collect()
}

/// Values as a line of bars, as text.
pub fn spark(values: &[f64], width: usize) -> String {
    let shown = resample(values, width);
    let most = shown.iter().copied().fold(0.0, f64::max);
    let level =
        |value: f64| if most > 0.0 && value > 0.0 { (value / most * 8.0).round().clamp(1.0, 8.0) as usize } else { 0 };
    let bars: String = shown.iter().map(|value| BELOW[level(*value)]).collect();
    format!("{bars:>width$}")
}

/// At most `width` values: the means of equal runs, the newest run whole.
fn resample(values: &[f64], width: usize) -> Vec<f64> {
    if width == 0 {
        return Vec::new();
    }
    let run = values.len().div_ceil(width).max(1);
    let odd = values.len() % run;
    let (first, rest) = values.split_at(odd);
    let mean = |run: &[f64]| run.iter().sum::<f64>() / run.len() as f64;
    let first = (!first.is_empty()).then(|| mean(first));
    first.into_iter().chain(rest.chunks(run).map(mean)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_in_eighths() {
        assert_eq!(bar(4, 0.5), "██  ");
        assert_eq!(bar(4, 0.53), "██▏ ");
        assert_eq!(bar(4, 0.0001), "▏   ");
        assert_eq!(bar(4, 7.0), "████");
        assert_eq!(bar(4, f64::NAN), "    ");
        assert_eq!(bar(0, 1.0), "");
    }

    #[test]
    fn sparks_show_the_newest_at_the_right() {
        assert_eq!(spark(&[0.0, 4.0, 8.0], 5), "   ▄█");
        assert_eq!(spark(&[1.0, 1.0, 8.0, 8.0], 2), "▁█");
        assert_eq!(spark(&[], 3), "   ");
        assert_eq!(miniature(&[0, 1, 100]), " ▁█");
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 3, 2));
        let mut pane = Pane::new(&mut buffer, Rect::new(1, 1, 50, 50));
        pane.put(0, 0, "abcdef", Style::new());
        pane.put(9, 9, "x", Style::new());
        pane.rule(7);
        pane.heading(1, 0, 40, "T", "note");
        pane.chart(0, 0, 60, 30, &[1.0; 90], Style::new());
        pane.stack(0, 0, 90, &[Part { size: 3, glyph: '#', style: Style::new() }]);
        pane.part(40, 40, 9, 9).put(0, 0, "x", Style::new());
    }
}
