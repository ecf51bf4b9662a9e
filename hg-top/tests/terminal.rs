//! The live screen in a real terminal (tmux): it is drawn, it follows keys, and the shell has its terminal back at once.
//!
//! Where there is no tmux these tests say so and do nothing: the screens themselves are under test in `screens.rs`.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

mod common;
use common::FakePage;

/// A shell in a tmux server of its own; both end when dropped.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn open(name: &str, width: u16, height: u16) -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("skipped: there is no tmux here");
            return None;
        }
        let terminal = Terminal { socket: format!("hg-top-{name}-{}", std::process::id()) };
        let (width, height) = (width.to_string(), height.to_string());
        // A prompt that can be told from everything else, and no start-up files.
        let shell = "env LC_ALL=C.UTF-8 PS1='SHELL> ' bash --norc --noprofile";
        let arguments = ["-u", "-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, shell];
        let started = terminal.tmux(&arguments);
        assert!(started.status.success(), "{started:?}");
        assert!(terminal.shows("SHELL>", 5.0), "no shell: {}", terminal.screen());
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        Command::new("tmux").args(["-L", &self.socket]).args(arguments).output().expect("tmux was there")
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    /// Waits until the screen shows `text`.
    fn shows(&self, text: &str, seconds: f64) -> bool {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            if self.screen().contains(text) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn run(&self, command: &str) {
        self.keys(&["clear; ", command, "Enter"]);
    }

    /// Whether the shell has the terminal back as it was: line editing, echo, the main screen.
    fn is_given_back(&self) -> bool {
        self.run("stty -a | grep -c ' echo .*'; echo given-$((40+2))");
        self.shows("given-42", 5.0)
            && self.screen().lines().any(|line| line.trim() == "1")
            && self.tmux(&["display", "-p", "#{alternate_on}#{cursor_flag}"]).stdout == b"01\n"
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn views_follow_keys_and_quitting_is_quick() {
    let Some(terminal) = Terminal::open("views", 80, 24) else { return };
    let target = FakePage::start("honest");
    terminal.run(&format!("{} --pid {}", common::HG_TOP, target.pid()));
    assert!(terminal.shows("WHERE THE MEMORY IS", 10.0), "{}", terminal.screen());
    assert!(terminal.shows("fake_page", 1.0), "{}", terminal.screen());
    let views = ["OCCUPANCY", "HOLD", "WANTED→GOT", "ROLE", "MAP OF fake", "WHAT IT MEANS"];
    for (key, text) in ["2", "3", "4", "5", "6", "7"].into_iter().zip(views) {
        terminal.keys(&[key]);
        assert!(terminal.shows(text, 2.0), "{key}: {}", terminal.screen());
    }
    terminal.keys(&["?"]);
    assert!(terminal.shows("KEYS", 2.0), "{}", terminal.screen());
    let begin = Instant::now();
    terminal.keys(&["q"]);
    assert!(terminal.shows("SHELL>", 5.0), "{}", terminal.screen());
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(500), "the prompt came after {took:?}");
    assert!(terminal.is_given_back(), "{}", terminal.screen());
}

#[test]
fn a_process_that_does_not_answer_holds_up_neither_keys_nor_the_end() {
    let Some(terminal) = Terminal::open("silent", 160, 48) else { return };
    let honest = FakePage::start("honest");
    // One that never answered, and one that stops to while it is watched: keys are answered while it is waited for.
    for how in ["silent-page", "silent-page-later"] {
        let Some(mut silent) = FakePage::where_possible(how) else { return };
        terminal.run(&format!("{} --pid {},{} -i 0.1", common::HG_TOP, honest.pid(), silent.pid()));
        assert!(terminal.shows("WHERE THE MEMORY IS", 10.0), "{}", terminal.screen());
        if how == "silent-page-later" {
            silent.step();
            terminal.keys(&["2"]);
            assert!(terminal.shows("OCCUPANCY", 0.4), "{}", terminal.screen());
        }
        terminal.keys(&["5"]);
        assert!(terminal.shows("does not answer", 2.0), "{}", terminal.screen());
        let begin = Instant::now();
        terminal.keys(&["q"]);
        assert!(terminal.shows("SHELL>", 5.0), "{}", terminal.screen());
        let took = begin.elapsed();
        assert!(took < Duration::from_millis(500), "the prompt came after {took:?}");
        assert!(terminal.is_given_back(), "{}", terminal.screen());
    }
}

#[test]
fn the_demo_moves_and_quits_as_quickly() {
    let Some(terminal) = Terminal::open("demo", 160, 48) else { return };
    terminal.run(&format!("{} demo", common::HG_TOP));
    assert!(terminal.shows("CLASSES BY LIVE BYTES", 15.0), "{}", terminal.screen());
    let first = terminal.screen();
    std::thread::sleep(Duration::from_millis(2500));
    assert_ne!(terminal.screen(), first, "nothing moves");
    // The probes of the demo are attached where we may: to let go of them takes the kernel long, the user must not wait.
    let begin = Instant::now();
    terminal.keys(&["q"]);
    assert!(terminal.shows("SHELL>", 5.0), "{}", terminal.screen());
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(500), "the prompt came after {took:?}");
    assert!(terminal.is_given_back(), "{}", terminal.screen());
}

#[test]
fn signals_give_the_terminal_back() {
    let Some(terminal) = Terminal::open("signals", 80, 24) else { return };
    let target = FakePage::start("honest");
    for signal in ["TERM", "INT", "HUP"] {
        terminal.run(&format!(
            "{} --pid {} --no-ebpf & HG=$!; (sleep 1.5; kill -{signal} $HG) & fg 1",
            common::HG_TOP,
            target.pid()
        ));
        assert!(terminal.shows("WHERE THE MEMORY IS", 10.0), "{signal}: {}", terminal.screen());
        assert!(terminal.shows("SHELL>", 5.0), "{signal}: {}", terminal.screen());
        assert!(terminal.is_given_back(), "{signal}: {}", terminal.screen());
    }
}

#[test]
fn a_closed_terminal_ends_it() {
    let Some(terminal) = Terminal::open("closed", 80, 24) else { return };
    let target = FakePage::start("honest");
    terminal.run(&format!("{} --pid {} --no-ebpf", common::HG_TOP, target.pid()));
    assert!(terminal.shows("WHERE THE MEMORY IS", 10.0), "{}", terminal.screen());
    let watching = format!("--pid\0{}\0", target.pid());
    let running = || {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        processes.flatten().any(|process| {
            std::fs::read(process.path().join("cmdline"))
                .is_ok_and(|line| line.ends_with(format!("{watching}--no-ebpf\0").as_bytes()))
        })
    };
    assert!(running());
    drop(terminal);
    let end = Instant::now() + Duration::from_secs(3);
    while running() {
        assert!(Instant::now() < end, "it still runs without a terminal");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn suspended_and_continued() {
    let Some(terminal) = Terminal::open("suspend", 80, 24) else { return };
    let target = FakePage::start("honest");
    terminal.run(&format!("{} --pid {} --no-ebpf", common::HG_TOP, target.pid()));
    assert!(terminal.shows("WHERE THE MEMORY IS", 10.0), "{}", terminal.screen());
    terminal.keys(&["C-z"]);
    assert!(terminal.shows("Stopped", 3.0), "{}", terminal.screen());
    assert!(terminal.is_given_back(), "{}", terminal.screen());
    terminal.run("fg");
    assert!(terminal.shows("WHERE THE MEMORY IS", 5.0), "{}", terminal.screen());
    terminal.keys(&["q"]);
    assert!(terminal.shows("SHELL>", 3.0), "{}", terminal.screen());
}

#[test]
fn a_target_that_ends_leaves_a_banner_and_its_figures() {
    let Some(terminal) = Terminal::open("exit", 80, 24) else { return };
    let mut target = FakePage::start("honest");
    terminal.run(&format!("{} --pid {} --no-ebpf -i 0.2", common::HG_TOP, target.pid()));
    assert!(terminal.shows("WHERE THE MEMORY IS", 10.0), "{}", terminal.screen());
    let pid = target.pid();
    target.end();
    assert!(terminal.shows(&format!("process {pid} exited"), 3.0), "{}", terminal.screen());
    terminal.keys(&["2"]);
    assert!(terminal.shows("OCCUPANCY", 2.0) && terminal.screen().contains(" 200 "), "{}", terminal.screen());
    terminal.keys(&["q"]);
    assert!(terminal.shows("SHELL>", 3.0), "{}", terminal.screen());
}

#[test]
fn small_terminals_work() {
    let Some(terminal) = Terminal::open("small", 40, 10) else { return };
    let target = FakePage::start("honest");
    terminal.run(&format!("{} --pid {} --no-ebpf", common::HG_TOP, target.pid()));
    assert!(terminal.shows("live cells", 10.0), "{}", terminal.screen());
    terminal.tmux(&["resize-window", "-x", "5", "-y", "2"]);
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    assert!(terminal.shows("SLOW PATHS", 5.0), "{}", terminal.screen());
    terminal.keys(&["q"]);
    assert!(terminal.shows("SHELL>", 3.0), "{}", terminal.screen());
}

#[test]
fn a_panic_gives_the_terminal_back() {
    let Some(terminal) = Terminal::open("panic", 80, 24) else { return };
    // The library's guard in a process that panics while it holds the screen.
    let program = common::example().with_file_name("panicking_screen");
    assert!(program.exists(), "cargo build -p hg-top --examples builds {}", program.display());
    terminal.run(&program.display().to_string());
    assert!(terminal.shows("the screen is mine no more", 5.0), "{}", terminal.screen());
    assert!(terminal.is_given_back(), "{}", terminal.screen());
}
