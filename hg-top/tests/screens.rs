//! Every view at every size, compared with the screens under `tests/snapshots`.
//!
//! After a wanted change: `HG_UPDATE_SNAPSHOTS=1 cargo test -p hg-top --test screens`, then read the difference.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use hg_top::app::{App, View};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

mod common;
use common::model;

fn screen(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            let area = frame.area();
            hg_top::view::draw_into(frame.buffer_mut(), area, app, model::NOW);
        })
        .unwrap();
    let buffer = terminal.backend().buffer().clone();
    let rows = buffer.content.chunks(usize::from(width).max(1));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n").collect()
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '↓' => KeyCode::Down,
            '⎋' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        app.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    // Keys renew the clock; the made-up server lives in another year.
    app.now = app.timeline().latest().map_or(app.now, |latest| latest.time);
}

fn compare(name: &str, drawn: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("HG_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == drawn, "{name} differs; wanted:\n{wanted}\ndrawn:\n{drawn}");
}

#[test]
fn every_view_at_every_size() {
    for (width, height) in [(80, 24), (160, 48), (40, 10), (1, 1)] {
        for view in View::ALL {
            let mut app = model::server(&[]);
            app.view = view;
            let name = format!("{}_{width}x{height}", view.name().to_lowercase());
            compare(&name, &screen(&mut app, width, height));
        }
    }
}

#[test]
fn details_help_filter_and_freeze() {
    for (name, keys) in [
        ("classes_detail", "2↓↓\n"),
        ("locks_detail", "3↓\n"),
        ("events_detail", "7↓\n"),
        ("map_moved", "6↓l\n"),
        ("map_sparse", "6nn"),
        ("map_zoomed", "6ZZ"),
        ("map_tiers", "6t"),
        ("map_of_other", "6a"),
        ("arena_to_map", "4↓\n"),
        ("map_help", "6?"),
        ("help", "2?"),
        ("filter_typed", "2/size>=1k"),
        ("filter_kept", "3/refill\n"),
        ("one_process_frozen", "5↓↓\n "),
        ("totals", "2rr"),
    ] {
        let mut app = model::server(&[]);
        screen(&mut app, 80, 24);
        for key in keys.chars() {
            press(&mut app, &key.to_string());
            // Selection moves over rows that were drawn.
            screen(&mut app, 80, 24);
        }
        compare(name, &screen(&mut app, 80, 24));
    }
}

#[test]
fn an_arena_in_trouble() {
    for (width, height) in [(80, 24), (160, 48)] {
        for (view, name) in [(View::Arenas, "arenas"), (View::Events, "events")] {
            let mut app = model::troubled(&[]);
            app.view = view;
            compare(&format!("trouble_{name}_{width}x{height}"), &screen(&mut app, width, height));
        }
    }
}

#[test]
fn processes_that_share_an_arena() {
    for (width, height) in [(80, 24), (160, 48)] {
        for view in [View::Summary, View::Arenas, View::Processes, View::Events] {
            let mut app = model::prefork(&[]);
            app.view = view;
            let name = format!("prefork_{}_{width}x{height}", view.name().to_lowercase());
            compare(&name, &screen(&mut app, width, height));
        }
    }
    // One of them alone, and its arenas.
    let mut app = model::prefork(&[]);
    for key in "5↓↓\n4".chars() {
        press(&mut app, &key.to_string());
        screen(&mut app, 80, 24);
    }
    compare("prefork_one_arenas", &screen(&mut app, 80, 24));
    // A process that is not watched has nothing more to show.
    let mut app = model::prefork(&[]);
    for key in "5G\n".chars() {
        press(&mut app, &key.to_string());
        screen(&mut app, 80, 24);
    }
    assert_eq!((app.view, app.scope), (View::Processes, hg_top::model::scope::Scope::All));
}

#[test]
fn the_map_reads_without_colours_and_with_ascii_alone() {
    let mut app = model::server(&["--ascii", "--no-color"]);
    app.view = View::Map;
    compare("map_ascii", &screen(&mut app, 80, 24));
}

#[test]
fn ascii_has_no_other_glyph() {
    let mut app = model::server(&["--ascii", "--no-color"]);
    for view in View::ALL {
        app.view = view;
        let drawn = screen(&mut app, 160, 48);
        assert!(drawn.is_ascii(), "{view:?}: {drawn}");
        assert!(!drawn.contains('?') || drawn.contains("? help"), "{view:?} has glyphs without a stand-in:\n{drawn}");
    }
}

#[test]
fn no_size_is_too_small() {
    for view in View::ALL {
        let mut app = model::server(&[]);
        app.view = view;
        for keys in ["", "↓\n", "?"] {
            press(&mut app, keys);
            for width in (0..=20).chain([39, 60, 79, 119, 130]) {
                for height in (0..=14).chain([23, 29, 30]) {
                    screen(&mut app, width, height);
                }
            }
        }
        let mut shared = model::prefork(&[]);
        shared.view = view;
        for (width, height) in [(0, 0), (1, 1), (20, 6), (39, 10), (79, 23), (119, 29)] {
            screen(&mut shared, width, height);
        }
        let mut nothing = model::app(&[]);
        nothing.view = view;
        screen(&mut nothing, 80, 24);
    }
}

#[test]
fn a_first_sample_shows_no_rate() {
    let mut app = model::app(&[]);
    let full = model::server(&[]);
    let first = full.timeline().latest().cloned().unwrap();
    app.sample(std::sync::Arc::new(first), Vec::new(), Vec::new());
    app.view = View::Classes;
    let drawn = screen(&mut app, 80, 24);
    let row = drawn.lines().find(|line| line.trim_start().starts_with("64 ")).unwrap().to_owned();
    assert_eq!(row.split_whitespace().filter(|word| *word == "-").count(), 4, "{row}");
}

#[test]
fn frozen_screens_keep_their_figures_while_data_comes_in() {
    let mut app = model::server(&[]);
    app.view = View::Classes;
    press(&mut app, " ");
    let before = screen(&mut app, 80, 24);
    let mut later = app.timeline().latest().cloned().unwrap();
    later.at += 1_000_000_000;
    for process in later.processes.values_mut() {
        process
            .arenas
            .values_mut()
            .flat_map(|arena| arena.classes.values_mut())
            .for_each(|class| class.cells += 1 << 30);
    }
    app.sample(std::sync::Arc::new(later), Vec::new(), Vec::new());
    assert_eq!(screen(&mut app, 80, 24), before);
    press(&mut app, " ");
    assert_ne!(screen(&mut app, 80, 24), before);
}
