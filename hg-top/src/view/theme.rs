//! The few styles of all screens. Colour carries meaning once: green is healthy or given back, amber is to be watched, red
//! is an alert; blue shades tell kinds of memory apart and always go with a glyph of their own.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// Text.
pub const PLAIN: Style = Style::new();
/// What is secondary, or stale.
pub const DIM: Style = Style::new().add_modifier(Modifier::DIM);
/// What the eye should find first.
pub const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// Headings.
pub const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
/// Lines.
pub const FRAME: Style = Style::new().add_modifier(Modifier::DIM);
/// The selected row, the current tab.
pub const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Healthy, or given back.
pub const GOOD: Style = Style::new().fg(Color::Green);
/// To be watched.
pub const WATCH: Style = Style::new().fg(Color::Yellow);
/// An alert.
pub const ALERT: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Memory in use.
pub const LIVE: Style = Style::new().fg(Color::Cyan);
/// Memory of hg that is not in use.
pub const SPARE: Style = Style::new().fg(Color::Blue);
/// Memory that is not hg's.
pub const OTHER: Style = Style::new().add_modifier(Modifier::DIM);

/// Takes the colours out of a drawn screen; bold, dim and reverse stay.
pub fn remove_colours(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        cell.fg = Color::Reset;
        cell.bg = Color::Reset;
    }
}

/// Replaces every glyph of a drawn screen by one of ASCII.
pub fn to_ascii(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        let mut chars = cell.symbol().chars();
        if let Some(c) = chars.next().filter(|c| !c.is_ascii()) {
            cell.set_char(ascii(c));
        }
    }
}

fn ascii(c: char) -> char {
    match c {
        '─' | '┄' | '→' | '–' => '-',
        '│' | '┃' | '·' => '|',
        '█' | '▇' | '▉' => '#',
        '▊' | '▆' | '▓' => '*',
        '▋' | '▅' | '▒' => '+',
        '▌' | '▄' => '=',
        '▍' | '▃' | '░' => ':',
        '▂' | '▎' | '…' => '.',
        '▁' | '▏' => '_',
        '▲' => '!',
        '▸' | '⏎' | '▶' => '>',
        '◀' => '<',
        '●' | '×' => 'x',
        '↑' | '⇧' => '^',
        '↓' | '▾' => 'v',
        '←' => '<',
        'µ' => 'u',
        '␣' => ' ',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;

    #[test]
    fn ascii_is_ascii() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 1));
        buffer.set_string(0, 0, "─│█▒▁▲µs é→", Style::new());
        to_ascii(&mut buffer);
        assert!(buffer.content.iter().all(|cell| cell.symbol().is_ascii()));
        remove_colours(&mut buffer);
        assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset));
    }
}
