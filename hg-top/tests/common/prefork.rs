//! The `prefork` example under a test's control.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running `prefork`; ended, with its workers, when dropped.
pub(crate) struct Prefork {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What was started in a namespace.
    inside: Option<u32>,
    /// Its workers.
    pub(crate) workers: Vec<u32>,
}

impl Prefork {
    /// Starts it with so many workers.
    pub(crate) fn start(workers: usize) -> Prefork {
        Prefork::with(&[&workers.to_string()], &[])
    }

    /// The same in a pid namespace of its own; pids are ours. `None` where such cannot be had.
    pub(crate) fn start_inside(workers: usize) -> Option<Prefork> {
        use hg_top::process::Process;
        let through = ["unshare", "-pf", "--kill-child"];
        if !Command::new("unshare").args(["-pf", "true"]).output().is_ok_and(|done| done.status.success()) {
            return None;
        }
        let program = program();
        let mut command = Command::new(through[0]);
        command.args(&through[1..]).arg(program).arg(workers.to_string());
        let mut prefork = Prefork::spawn(&mut command);
        let children = |pid| Process::children(&[pid]).expect("/proc");
        prefork.inside = children(prefork.child.id()).first().copied();
        prefork.workers = children(prefork.parent());
        prefork.workers.sort_unstable();
        Some(prefork)
    }

    /// One process that works on a named arena of `folder`.
    pub(crate) fn named(name: &str, folder: &std::path::Path) -> Prefork {
        Prefork::with(&["named", name], &[("HG_RUNTIME_DIR", folder)])
    }

    fn with(arguments: &[&str], environment: &[(&str, &std::path::Path)]) -> Prefork {
        Prefork::spawn(Command::new(program()).args(arguments).envs(environment.iter().copied()))
    }

    fn spawn(command: &mut Command) -> Prefork {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut prefork = Prefork { child, input, output, inside: None, workers: Vec::new() };
        let line = prefork.answer();
        let pids = line.strip_prefix("ready").expect("it is ready").split_whitespace();
        prefork.workers = pids.map(|pid| pid.parse().expect("a pid")).collect();
        prefork
    }

    /// The process that made the arena.
    pub(crate) fn parent(&self) -> u32 {
        self.inside.unwrap_or(self.child.id())
    }

    /// All its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        [&[self.parent()], self.workers.as_slice()].concat()
    }

    /// Has a new worker in the place of one.
    pub(crate) fn replace(&mut self, place: usize) {
        self.ask("more");
        self.workers[place] = self.answer().parse().expect("a pid");
    }

    /// Writes a line to it.
    pub(crate) fn ask(&mut self, word: &str) {
        writeln!(self.input, "{word}").expect("it listens");
    }

    /// Waits for the answer.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }
}

fn program() -> PathBuf {
    let program = super::example().with_file_name("prefork");
    assert!(program.exists(), "cargo build -p hg-top --examples builds {}", program.display());
    program
}

impl Drop for Prefork {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
