//! The state of the interactive screen: what is shown, how it is sorted and filtered, what was typed. Input changes it,
//! drawing reads it; neither fetches anything.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::advise::Host;
use crate::alert::Alerts;
use crate::cli::Options;
use crate::event::Event;
use crate::filter::Filter;
use crate::keys::{self, Command};
use crate::log::Log;
use crate::map::{Layer, MapState};
use crate::model::Snapshot;
use crate::model::scope::Scope;
use crate::model::timeline::{Basis, Timeline};
use crate::view::locks;
use crate::view::table::TableState;

/// How long a message stays.
const MESSAGE_TIME: Duration = Duration::from_secs(8);

/// The views, in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Where the memory is.
    Summary,
    /// Size classes.
    Classes,
    /// Locks.
    Locks,
    /// Arenas.
    Arenas,
    /// Processes.
    Processes,
    /// The pages of an arena.
    Map,
    /// Events and alerts.
    Events,
}

impl View {
    /// All of them.
    pub const ALL: [View; 7] =
        [View::Summary, View::Classes, View::Locks, View::Arenas, View::Processes, View::Map, View::Events];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            View::Summary => "Summary",
            View::Classes => "Classes",
            View::Locks => "Locks",
            View::Arenas => "Arenas",
            View::Processes => "Processes",
            View::Map => "Map",
            View::Events => "Events",
        }
    }

    /// The same where there is little room.
    pub fn short_name(self) -> &'static str {
        match self {
            View::Processes => "Procs",
            view => view.name(),
        }
    }
}

/// What the loop has to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Draw again.
    Draw,
    /// Leave.
    Quit,
    /// Stop the process, as Ctrl-Z does.
    Suspend,
}

/// The state of the screen.
pub struct App {
    /// How to draw: ASCII, colours, interval.
    pub options: Options,
    /// The view shown.
    pub view: View,
    /// Which processes it adds up.
    pub scope: Scope,
    /// What it counts over.
    pub basis: Basis,
    /// Sorting and selection, per view.
    pub tables: [TableState; View::ALL.len()],
    /// The filter, per view, as typed.
    pub filters: [String; View::ALL.len()],
    /// The map view.
    pub map: MapState,
    /// Whether a filter is being typed.
    pub typing: bool,
    /// Whether the help is shown, and its first line.
    pub help: Option<usize>,
    /// What the host offers.
    pub host: Host,
    /// Alerts so far.
    pub alerts: Alerts,
    /// The log.
    pub log: Log,
    /// Now, for ages.
    pub now: SystemTime,
    message: Option<(String, SystemTime)>,
    live: Timeline,
    frozen: Option<Timeline>,
}

impl App {
    /// Nothing seen yet.
    pub fn new(options: Options) -> App {
        App {
            options,
            view: View::Summary,
            scope: Scope::All,
            basis: Basis::default(),
            tables: View::ALL.map(|view| match view {
                // Who looks at locks looks for the worst.
                View::Locks => TableState::sorted(locks::LONGEST_HOLD),
                _ => TableState::default(),
            }),
            filters: std::array::from_fn(|_| String::new()),
            map: MapState::default(),
            typing: false,
            help: None,
            host: Host::default(),
            alerts: Alerts::default(),
            log: Log::default(),
            now: SystemTime::now(),
            message: None,
            live: Timeline::default(),
            frozen: None,
        }
    }

    /// Takes in a sample.
    pub fn sample(&mut self, snapshot: Arc<Snapshot>, events: Vec<Event>, warnings: Vec<String>) {
        self.now = snapshot.time;
        self.alerts.snapshot(&snapshot, self.live.latest());
        let known = |pid: &u32| self.live.latest().is_some_and(|latest| latest.processes.contains_key(pid));
        let joined: Vec<String> = snapshot
            .processes
            .values()
            .filter(|process| self.live.latest().is_some() && !known(&process.identity.pid))
            .map(|process| format!("process {} ({}) joined", process.identity.pid, process.identity.comm))
            .collect();
        self.live.push(snapshot);
        if let Some(message) = warnings.into_iter().chain(joined).next_back() {
            self.say(message);
        }
        self.take(events);
    }

    /// Takes in events between two samples.
    pub fn events(&mut self, events: Vec<Event>) {
        self.touch();
        self.take(events);
    }

    fn take(&mut self, events: Vec<Event>) {
        events.iter().for_each(|event| self.alerts.event(event));
        events.into_iter().for_each(|event| self.log.push(event));
    }

    /// Notes that time has passed.
    pub fn touch(&mut self) {
        self.now = SystemTime::now();
    }

    /// What is shown: the frozen past, or the present.
    pub fn timeline(&self) -> &Timeline {
        self.frozen.as_ref().unwrap_or(&self.live)
    }

    /// Whether the screen is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Sorting and selection of the view shown.
    pub fn table(&mut self) -> &mut TableState {
        &mut self.tables[self.view as usize]
    }

    /// The filter of a view.
    pub fn filter(&self, view: View) -> Filter {
        Filter::parse(&self.filters[view as usize])
    }

    /// The message of the moment.
    pub fn message(&self) -> Option<&str> {
        let (text, since) = self.message.as_ref()?;
        (self.now.duration_since(*since).unwrap_or_default() < MESSAGE_TIME).then_some(text)
    }

    fn say(&mut self, text: String) {
        self.message = Some((text, self.now));
    }

    /// Does what a key asks for.
    pub fn key(&mut self, event: KeyEvent) -> Action {
        self.touch();
        if self.typing && event.kind != KeyEventKind::Release {
            return self.typed(event);
        }
        match keys::command(event) {
            Some(command) => self.command(command),
            None => Action::Draw,
        }
    }

    fn typed(&mut self, event: KeyEvent) -> Action {
        let filter = &mut self.filters[self.view as usize];
        match event.code {
            KeyCode::Char('c') if event.modifiers.contains(KeyModifiers::CONTROL) => return Action::Quit,
            KeyCode::Char('u') if event.modifiers.contains(KeyModifiers::CONTROL) => filter.clear(),
            KeyCode::Char(c) if filter.chars().count() < 60 && !c.is_control() => filter.push(c),
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                filter.clear();
                self.typing = false;
            }
            _ => {}
        }
        Action::Draw
    }

    fn command(&mut self, command: Command) -> Action {
        match command {
            Command::Quit => return Action::Quit,
            Command::Suspend => return Action::Suspend,
            Command::Help => self.help = if self.help.is_some() { None } else { Some(0) },
            Command::Back => self.back(),
            Command::Move(rows) => self.scroll(rows),
            Command::Screen(screens) => {
                let page = if self.view == View::Map { self.map.rows } else { self.table().page };
                let rows = i32::try_from(page.max(1)).unwrap_or(1);
                self.scroll(screens * rows);
            }
            Command::First => self.scroll(i32::MIN),
            Command::Last => self.scroll(i32::MAX),
            Command::Detail => self.detail(),
            Command::Filter if !matches!(self.view, View::Summary | View::Map) => self.typing = true,
            Command::Filter => self.say("this view has no rows to filter: choose another one".into()),
            Command::Side(cells) if self.view == View::Map => self.map.move_by(cells.into()),
            Command::Sort(step) | Command::Side(step) => self.table().sort_by_next(step),
            Command::Invert => self.table().invert(),
            Command::Freeze => self.frozen = if self.frozen.is_some() { None } else { Some(self.live.clone()) },
            Command::Basis => self.basis = self.basis.next(),
            Command::Mark => {
                self.live.set_mark();
                if let Some(frozen) = &mut self.frozen {
                    frozen.set_mark();
                }
                self.basis = Basis::SinceMark;
                self.say("mark set: figures count from now".into());
            }
            Command::Show(view) => self.show(view),
            Command::Tab(step) => {
                let views = View::ALL.len() as i32;
                self.show(View::ALL[(self.view as i32 + step).rem_euclid(views) as usize]);
            }
            Command::NextProcess => self.next_process(),
            Command::Zoom(_) | Command::Layer | Command::Sparse(_) | Command::NextArena if self.view != View::Map => {
                self.say("this key belongs to the map: view 6".into());
            }
            Command::Zoom(closer) => self.map.zoom(closer),
            Command::Layer => {
                self.map.layer = if self.map.layer == Layer::Heat { Layer::Tier } else { Layer::Heat };
            }
            Command::Sparse(forward) => {
                if !self.map.seek_sparse(forward) {
                    self.say("no page is kept by less than a tenth of it".into());
                }
            }
            Command::NextArena => self.next_arena(),
        }
        Action::Draw
    }

    fn show(&mut self, view: View) {
        self.help = None;
        self.view = view;
    }

    fn scroll(&mut self, rows: i32) {
        match &mut self.help {
            Some(line) => *line = line.saturating_add_signed(rows as isize).min(keys::BINDINGS.len()),
            None if self.view == View::Map => match rows {
                i32::MIN | i32::MAX => self.map.move_by(i64::from(rows) << 32),
                _ => self.map.move_rows(rows),
            },
            None => self.table().move_by(rows),
        }
    }

    /// In the list of processes, the detail of a row is that process alone; in that of arenas, the arena's map.
    fn detail(&mut self) {
        let selected = self.table().selected.clone().unwrap_or_default();
        match (self.view, selected.parse(), selected.parse()) {
            (View::Processes, Ok(pid), _) => {
                self.scope = Scope::One(pid);
                self.show(View::Summary);
            }
            (View::Processes, ..) => self.say("that process is not watched: there is no more of it to show".into()),
            (View::Arenas, _, Ok(id)) => {
                self.map.chosen = Some(id);
                self.show(View::Map);
            }
            (View::Map, ..) => {}
            _ => {
                let table = self.table();
                table.detail = !table.detail;
            }
        }
    }

    /// Closes the uppermost of what is open.
    fn back(&mut self) {
        let filter = &mut self.filters[self.view as usize];
        if self.help.is_some() {
            self.help = None;
        } else if self.tables[self.view as usize].detail {
            self.table().detail = false;
        } else if !filter.is_empty() {
            filter.clear();
        } else {
            self.scope = Scope::All;
        }
    }

    fn next_process(&mut self) {
        let pids: Vec<u32> =
            self.live.latest().map_or_else(Vec::new, |latest| latest.processes.keys().copied().collect());
        self.scope = match self.scope {
            Scope::All => pids.first().map_or(Scope::All, |pid| Scope::One(*pid)),
            Scope::One(current) => pids.iter().find(|pid| **pid > current).map_or(Scope::All, |pid| Scope::One(*pid)),
        };
    }
}
