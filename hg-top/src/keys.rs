//! Every key, declared once: input, the footer and the help screen come from this table.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::app::View;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Leave hg-top.
    Quit,
    /// Show or hide the help.
    Help,
    /// Move the selection by this many rows.
    Move(i32),
    /// Move it by screens.
    Screen(i32),
    /// To the first row.
    First,
    /// To the last row.
    Last,
    /// Open or close the detail of the selected row.
    Detail,
    /// Close what is open: help, detail, filter.
    Back,
    /// Type a filter.
    Filter,
    /// Sort by the next (or previous) column.
    Sort(i32),
    /// The same; on the map, go to the next (or previous) cell.
    Side(i32),
    /// Sort the other way round.
    Invert,
    /// Freeze what is shown; data keeps coming in.
    Freeze,
    /// Count per second, since the mark, since the start.
    Basis,
    /// Set the mark.
    Mark,
    /// Go to a view.
    Show(View),
    /// Go to the next (or previous) view.
    Tab(i32),
    /// Look at the next process alone, in the end at all again.
    NextProcess,
    /// On the map: fewer (or more) pages a cell.
    Zoom(bool),
    /// On the map: how full, or what backs it.
    Layer,
    /// On the map: to the next (or previous) page that little keeps.
    Sparse(bool),
    /// On the map: the next arena.
    NextArena,
    /// Stop hg-top as Ctrl-Z does everywhere.
    Suspend,
}

impl Command {
    /// Whether it means something in a view.
    pub fn belongs(self, view: View) -> bool {
        match self {
            Command::Zoom(_) | Command::Layer | Command::Sparse(_) | Command::NextArena => view == View::Map,
            Command::Detail | Command::Sort(_) | Command::Filter | Command::Invert | Command::Basis => {
                view != View::Map
            }
            _ => true,
        }
    }
}

/// A key with its meaning.
pub struct Binding {
    /// The keys.
    pub keys: &'static [(KeyModifiers, KeyCode)],
    /// How they are written.
    pub shown: &'static str,
    /// A word for the footer; empty if it has no place there.
    pub word: &'static str,
    /// A sentence for the help.
    pub help: &'static str,
    /// What they ask for.
    pub command: Command,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CONTROL: KeyModifiers = KeyModifiers::CONTROL;

const fn key(c: char) -> (KeyModifiers, KeyCode) {
    (NONE, KeyCode::Char(c))
}

const fn bind(
    keys: &'static [(KeyModifiers, KeyCode)],
    shown: &'static str,
    word: &'static str,
    help: &'static str,
    command: Command,
) -> Binding {
    Binding { keys, shown, word, help, command }
}

/// All keys, in the order of the footer and the help.
pub const BINDINGS: &[Binding] = &[
    bind(&[(NONE, KeyCode::Down), key('j')], "↓ j", "", "next row", Command::Move(1)),
    bind(&[(NONE, KeyCode::Up), key('k')], "↑ k", "", "previous row", Command::Move(-1)),
    bind(&[(NONE, KeyCode::PageDown)], "PgDn", "", "a screen down", Command::Screen(1)),
    bind(&[(NONE, KeyCode::PageUp)], "PgUp", "", "a screen up", Command::Screen(-1)),
    bind(&[(NONE, KeyCode::Home), key('g')], "g", "", "first row", Command::First),
    bind(&[(NONE, KeyCode::End), key('G')], "G", "", "last row", Command::Last),
    bind(&[(NONE, KeyCode::Enter), key('e')], "⏎", "detail", "detail of the row, or leave it", Command::Detail),
    bind(&[key('s')], "s", "sort", "sort by the next column", Command::Sort(1)),
    bind(&[key('S')], "S", "", "sort by the previous column", Command::Sort(-1)),
    bind(&[(NONE, KeyCode::Right), key('l')], "→ l", "", "next column, or cell of the map", Command::Side(1)),
    bind(&[(NONE, KeyCode::Left), key('h')], "← h", "", "previous column, or cell", Command::Side(-1)),
    bind(&[key('i')], "i", "", "sort the other way round", Command::Invert),
    bind(&[key('n')], "n", "kept by little", "map: next page kept by little", Command::Sparse(true)),
    bind(&[key('N')], "N", "", "map: the one before", Command::Sparse(false)),
    bind(&[key('t')], "t", "tier", "map: what backs, or how full", Command::Layer),
    bind(&[key('z'), key('+')], "z +", "zoom", "map: fewer pages a cell", Command::Zoom(true)),
    bind(&[key('Z'), key('-')], "Z -", "", "map: more pages a cell", Command::Zoom(false)),
    bind(&[key('a')], "a", "arena", "map: next arena", Command::NextArena),
    bind(&[key('/')], "/", "filter", "filter: words, or live>1k", Command::Filter),
    bind(&[key('p')], "p", "process", "next process alone, at last all", Command::NextProcess),
    bind(&[key('r')], "r", "rate", "per second, since mark, in all", Command::Basis),
    bind(&[key(' ')], "space", "freeze", "freeze the screen, not the data", Command::Freeze),
    bind(&[key('m')], "m", "mark", "set the mark to now", Command::Mark),
    bind(&[(NONE, KeyCode::Tab)], "Tab", "", "next view", Command::Tab(1)),
    bind(
        &[(KeyModifiers::SHIFT, KeyCode::BackTab), (NONE, KeyCode::BackTab)],
        "⇧Tab",
        "",
        "previous view",
        Command::Tab(-1),
    ),
    bind(&[key('1')], "1", "", "summary: where the memory is", Command::Show(View::Summary)),
    bind(&[key('2')], "2", "", "size classes", Command::Show(View::Classes)),
    bind(&[key('3')], "3", "", "locks: hold and wait", Command::Show(View::Locks)),
    bind(&[key('4')], "4", "", "arenas: tier, pin, growth", Command::Show(View::Arenas)),
    bind(&[key('5')], "5", "", "processes", Command::Show(View::Processes)),
    bind(&[key('6')], "6", "", "map: pages, and what keeps them", Command::Show(View::Map)),
    bind(&[key('7')], "7", "", "events and alerts", Command::Show(View::Events)),
    bind(&[(NONE, KeyCode::Esc)], "Esc", "", "close help, detail or filter", Command::Back),
    bind(&[(CONTROL, KeyCode::Char('z'))], "^Z", "", "suspend", Command::Suspend),
    bind(&[key('?'), (NONE, KeyCode::F(1))], "?", "help", "this page", Command::Help),
    bind(&[key('q'), (CONTROL, KeyCode::Char('c'))], "q", "quit", "quit", Command::Quit),
];

/// What a pressed key asks for, if anything.
pub fn command(event: KeyEvent) -> Option<Command> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    // A capital letter comes with or without the shift that made it.
    let modifiers = match event.code {
        KeyCode::Char(_) => event.modifiers - KeyModifiers::SHIFT,
        _ => event.modifiers,
    };
    let pressed = (modifiers, event.code);
    BINDINGS.iter().find(|binding| binding.keys.contains(&pressed)).map(|binding| binding.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_has_two_meanings() {
        let mut keys: Vec<_> = BINDINGS.iter().flat_map(|binding| binding.keys).collect();
        let all = keys.len();
        keys.sort_by_key(|key| format!("{key:?}"));
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    #[test]
    fn shifted_letters_and_control() {
        let press = |code, modifiers| command(KeyEvent::new(code, modifiers));
        assert_eq!(press(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(Command::Last));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Command::Quit));
        assert_eq!(press(KeyCode::Char('c'), NONE), None);
        assert_eq!(press(KeyCode::BackTab, KeyModifiers::SHIFT), Some(Command::Tab(-1)));
    }
}
