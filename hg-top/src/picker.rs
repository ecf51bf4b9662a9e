//! The list of processes that run on hg, to choose from.

use std::fmt::Write;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use crossterm::event::{self as input, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::cli::Options;
use crate::exit::Failure;
use crate::model::{Identity, KernelMemory};
use crate::process::Process;
use crate::source::stats::discover;
use crate::term::{Screen, Signals};
use crate::unit::{age, bytes};
use crate::view::paint::Pane;
use crate::view::table::{self, Cell, Column, Row, TableState};
use crate::view::theme;
use crate::{aside, wake};

/// What is said when there is none.
pub const NOTHING: &str = "no process that you may look at runs on hg. Start one with LD_PRELOAD=libhg_preload.so, make \
    hg_alloc::HgAlloc the global allocator of a Rust program, or see `hg-top demo`. Processes of other users need root";

/// Pids of processes that cannot be asked which are named.
const MAX_SILENT: usize = 8;

const COLUMNS: &[Column] = &[
    Column::left(" ", "marked", 1, 0),
    Column::right("PID", "pid", 7, 0),
    Column::right("RSS", "rss", 8, 1),
    Column::right("UP", "up", 6, 2),
    Column::left("ROLE", "role", 20, 0),
];

/// One process on hg.
pub struct Found {
    identity: Identity,
    memory: KernelMemory,
}

/// The processes on hg.
#[derive(Default)]
pub struct List {
    found: Vec<Found>,
    /// Processes that cannot be asked.
    silent: Vec<u32>,
}

impl List {
    /// Looks for them.
    pub fn look() -> Result<List, Failure> {
        let pids = discover::processes()?;
        let mut list = List::default();
        for (pid, answer) in pids.iter().zip(aside::each(&pids, look)?) {
            match answer {
                Some(found) => list.found.extend(found),
                None => list.silent.push(*pid),
            }
        }
        Ok(list)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// What is said of those that cannot be asked.
    pub fn silent(&self) -> Option<String> {
        let pids: Vec<String> = self.silent.iter().take(MAX_SILENT).map(ToString::to_string).collect();
        let more = if self.silent.len() > MAX_SILENT { ", ..." } else { "" };
        (!pids.is_empty()).then(|| format!("not asked, as they or others do not answer: {}{more}", pids.join(", ")))
    }

    /// The list as text, for pipes.
    pub fn table(&self) -> String {
        let mut text = format!("{:>8} {:>9} {:>7}  ROLE\n", "PID", "RSS", "UP");
        for process in &self.found {
            let up = SystemTime::now().duration_since(process.identity.started).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:>8} {:>9} {:>7}  {}",
                process.identity.pid,
                bytes(process.memory.rss),
                age(up),
                process.identity.role
            );
        }
        text
    }
}

fn look(pid: u32) -> Option<Found> {
    discover::regions(pid).ok().filter(|regions| !regions.is_empty())?;
    Some(Found { identity: Process::identity(pid).ok()?, memory: Process::memory(pid).unwrap_or_default() })
}

/// Lets the user choose; `None` if nothing was chosen.
pub fn run(list: List, options: &Options) -> Result<Option<Vec<u32>>, Failure> {
    let signals = Signals::catch()?;
    let mut screen = Screen::open()?;
    let mut picker = Picker { list, marked: Vec::new(), state: TableState::default() };
    loop {
        screen.draw(|frame| picker.draw(frame, options))?;
        let stdin = io::stdin();
        let [_, signal] = wake::wait([Some(stdin.as_fd()), Some(signals.fd())], Duration::from_secs(3600));
        if signal {
            signals.acknowledge();
        }
        if signals.quit() || wake::hung_up(stdin.as_fd()) {
            return Ok(None);
        }
        if signals.suspend() {
            screen.suspend()?;
        }
        while input::poll(Duration::ZERO)? {
            let Input::Key(key) = input::read()? else { continue };
            match picker.key(key) {
                Choice::Wait => {}
                Choice::Nothing => return Ok(None),
                Choice::These(pids) => return Ok(Some(pids)),
            }
        }
    }
}

struct Picker {
    list: List,
    marked: Vec<u32>,
    state: TableState,
}

enum Choice {
    Wait,
    Nothing,
    These(Vec<u32>),
}

impl Picker {
    fn draw(&mut self, frame: &mut ratatui::Frame<'_>, options: &Options) {
        let area = frame.area();
        let buffer = frame.buffer_mut();
        let mut pane = Pane::new(buffer, area);
        let (width, height) = (pane.width(), pane.height());
        let x = pane.put(0, 0, " hg-top ", theme::SELECTED.patch(theme::STRONG));
        pane.put(x + 1, 0, &format!("{} processes run on hg", self.list.found.len()), theme::STRONG);
        pane.rule(1);
        let rows: Vec<Row> = self.list.found.iter().map(|process| self.row(process)).collect();
        table::draw(&mut pane.part(0, 2, width, height.saturating_sub(4)), COLUMNS, &rows, &mut self.state, "");
        if self.state.selected.is_none() {
            self.state.move_by(0);
        }
        if height > 3 {
            pane.rule(height - 2);
            if let Some(silent) = self.list.silent() {
                pane.right(width, 0, &format!("{silent} "), theme::WATCH);
            }
            pane.put(1, height - 1, "↑↓ move  ⏎ watch  space mark  a all  q quit", theme::DIM);
        }
        if options.ascii {
            theme::to_ascii(buffer);
        }
        if options.colourless() {
            theme::remove_colours(buffer);
        }
    }

    fn row(&self, process: &Found) -> Row {
        let identity = &process.identity;
        let up = SystemTime::now().duration_since(identity.started).unwrap_or_default();
        let mark = if self.marked.contains(&identity.pid) { "●" } else { " " };
        Row {
            id: identity.pid.to_string(),
            cells: vec![
                Cell::text(mark),
                Cell::number(identity.pid.to_string(), identity.pid.into()).styled(theme::STRONG),
                Cell::number(bytes(process.memory.rss), process.memory.rss as f64),
                Cell::number(age(up), up.as_secs_f64()),
                Cell::text(identity.role.clone()),
            ],
        }
    }

    fn key(&mut self, key: KeyEvent) -> Choice {
        if key.kind == KeyEventKind::Release {
            return Choice::Wait;
        }
        let selected = self.state.selected.as_deref().and_then(|id| id.parse().ok());
        match (key.code, selected) {
            (KeyCode::Char('c'), _) if key.modifiers.contains(KeyModifiers::CONTROL) => return Choice::Nothing,
            (KeyCode::Char('q') | KeyCode::Esc, _) => return Choice::Nothing,
            (KeyCode::Down | KeyCode::Char('j'), _) => self.state.move_by(1),
            (KeyCode::Up | KeyCode::Char('k'), _) => self.state.move_by(-1),
            (KeyCode::Char('a'), _) => {
                return Choice::These(self.list.found.iter().map(|found| found.identity.pid).collect());
            }
            (KeyCode::Enter, _) if !self.marked.is_empty() => return Choice::These(self.marked.clone()),
            (KeyCode::Enter, Some(pid)) => return Choice::These(vec![pid]),
            (KeyCode::Char(' '), Some(pid)) => match self.marked.iter().position(|marked| *marked == pid) {
                Some(at) => drop(self.marked.remove(at)),
                None => self.marked.push(pid),
            },
            _ => {}
        }
        Choice::Wait
    }
}
