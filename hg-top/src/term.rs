//! The terminal, and giving it back: on drop, in a panic, on a signal, while suspended.

use std::io::{self, Stdout, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::{cursor, execute, terminal};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGWINCH};

/// A terminal in raw mode on the alternate screen; back to normal when dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    pub fn open() -> io::Result<Screen> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // The program ends with the message below; it must be readable.
            leave();
            before(info);
        }));
        enter()?;
        // From here on the drop gives it back, also if the next step fails.
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| leave())?;
        Ok(Screen { terminal })
    }

    /// Draws a frame.
    pub fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Gives the terminal back while the process is stopped, and takes it again after.
    pub fn suspend(&mut self) -> io::Result<()> {
        leave();
        signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
        enter()?;
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide).inspect_err(|_| leave())
}

/// Can be called more than once. Errors are of no use to anybody here.
fn leave() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
    let _ = io::stdout().flush();
}

/// The signals that the live mode answers to.
pub struct Signals {
    wake: UnixStream,
    quit: Arc<AtomicBool>,
    suspend: Arc<AtomicBool>,
}

impl Signals {
    /// Catches SIGTERM, SIGINT, SIGHUP (quit), SIGTSTP (suspend), SIGCONT and SIGWINCH (draw again).
    pub fn catch() -> io::Result<Signals> {
        let (wake, write) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let signals = Signals { wake, quit: Arc::default(), suspend: Arc::default() };
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, signals.quit.clone())?;
        }
        signal_hook::flag::register(SIGTSTP, signals.suspend.clone())?;
        // Flags are set before the pipe is written, so a woken loop sees them.
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(signals)
    }

    /// Readable when a signal came.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Empties the pipe.
    pub fn acknowledge(&self) {
        let mut bytes = [0; 64];
        while io::Read::read(&mut (&self.wake), &mut bytes).is_ok_and(|read| read > 0) {}
    }

    /// Whether one asked to quit.
    pub fn quit(&self) -> bool {
        self.quit.load(Ordering::Relaxed)
    }

    /// Whether one asked to suspend; asks only once.
    pub fn suspend(&self) -> bool {
        self.suspend.swap(false, Ordering::Relaxed)
    }
}
