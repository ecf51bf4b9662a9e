//! The interactive loop: waits for a key, an event, a signal, the next sample or a part of it; draws only when something
//! changed.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossterm::event::{self as input, Event as Input};

use crate::advise::Host;
use crate::app::{Action, App};
use crate::cli::Options;
use crate::collect::Collector;
use crate::collect::map::MapReader;
use crate::exit::Failure;
use crate::term::{Screen, Signals};
use crate::{view, wake};

/// Least time between two readings of the ring buffer, so that a storm of events cannot keep us from all else.
const EVENT_PAUSE: Duration = Duration::from_millis(100);

/// Shows the live screens until the user quits.
pub fn run(mut collector: Collector, options: &Options) -> Result<ExitCode, Failure> {
    let signals = Signals::catch()?;
    let mut app = App::new(options.clone());
    let mut screen = Screen::open()?;
    let outcome = watch(&mut collector, &mut app, &mut screen, &signals, options.interval);
    // The terminal first: to end the tracing takes longer than anybody wants to wait for the prompt.
    drop(screen);
    collector.close();
    outcome?;
    Ok(ExitCode::SUCCESS)
}

fn watch(
    collector: &mut Collector,
    app: &mut App,
    screen: &mut Screen,
    signals: &Signals,
    interval: Duration,
) -> io::Result<()> {
    let stdin = io::stdin();
    let mut next_sample = Instant::now();
    let mut events_after = Instant::now();
    let mut maps = MapReader::start()?;
    let mut reading = false;
    loop {
        let now = Instant::now();
        if !reading && now >= next_sample {
            collector.begin();
            reading = true;
        }
        let remaining = collector.remaining();
        if reading && remaining.is_none() {
            reading = false;
            let (snapshot, events) = collector.finish();
            app.host = Host::read(None);
            app.sample(snapshot, events, collector.take_warnings());
            // A sample that comes late does not make the next ones hurry.
            next_sample = (next_sample + interval).max(now + interval / 2);
            screen.draw(|frame| view::draw(frame, app))?;
        }
        if let Some(request) = app.map_request() {
            maps.ask(request);
        }
        app.map.stuck = maps.stuck();
        let until_sample = next_sample.saturating_duration_since(Instant::now());
        let until_due = remaining.filter(|_| reading).unwrap_or(until_sample);
        let listening = Instant::now() >= events_after;
        let timeout = if listening { until_due } else { until_due.min(EVENT_PAUSE) };
        let event_fd = if listening { collector.event_fd() } else { None };
        let fds = [Some(stdin.as_fd()), event_fd, Some(signals.fd()), Some(maps.fd()), Some(collector.fd())];
        let [key, event, signal, map, _] = wake::wait(fds, timeout);
        if map && let Some(answer) = maps.answer() {
            app.map_answer(answer);
        }
        if event {
            events_after = Instant::now() + EVENT_PAUSE;
            app.events(collector.events());
        }
        if signal {
            signals.acknowledge();
        }
        if signals.quit() || (key && wake::hung_up(stdin.as_fd())) {
            return Ok(());
        }
        let mut suspend = signals.suspend();
        if key {
            while input::poll(Duration::ZERO)? {
                match input::read()? {
                    Input::Key(pressed) => match app.key(pressed) {
                        Action::Quit => return Ok(()),
                        Action::Suspend => suspend = true,
                        Action::Draw => {}
                    },
                    _ => app.touch(),
                }
            }
        }
        if suspend {
            screen.suspend()?;
        }
        if key || event || signal || map || suspend {
            screen.draw(|frame| view::draw(frame, app))?;
        }
    }
}
