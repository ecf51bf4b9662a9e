//! What several test files need: the built binary, targets, and a model to draw.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

pub(crate) mod model;
pub(crate) mod prefork;
pub(crate) mod trouble;

/// The built hg-top.
pub(crate) const HG_TOP: &str = env!("CARGO_BIN_EXE_hg-top");

/// Runs hg-top with these arguments and no terminal.
pub(crate) fn hg_top(arguments: &[&str]) -> Output {
    Command::new(HG_TOP).args(arguments).stdin(Stdio::null()).output().expect("hg-top starts")
}

/// Its stderr as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running `fake_page`; ended when dropped.
pub(crate) struct FakePage(Child);

impl FakePage {
    /// Starts one that shows a page of the kind `how`.
    pub(crate) fn start(how: &str) -> FakePage {
        FakePage::start_as(&example(), how)
    }

    /// The same from another path.
    pub(crate) fn start_as(program: &std::path::Path, how: &str) -> FakePage {
        FakePage::try_start(program, how).unwrap_or_else(|answer| panic!("fake_page {how}: {answer}"))
    }

    /// One whose memory answers no read; `None`, and said so, where the kernel does not let it be.
    pub(crate) fn where_possible(how: &str) -> Option<FakePage> {
        match FakePage::try_start(&example(), how) {
            Ok(target) => Some(target),
            Err(answer) if answer == "cannot\n" => {
                eprintln!("skipped: {how} needs root and userfaultfd");
                None
            }
            Err(answer) => panic!("fake_page {how}: {answer}"),
        }
    }

    /// One that another command starts; `None` if that cannot.
    pub(crate) fn start_through(command: &[&str], how: &str) -> Option<FakePage> {
        let (first, rest) = command.split_first().expect("a command");
        FakePage::spawn(Command::new(first).args(rest).arg(example()).arg(how)).ok()
    }

    /// The same as [`start_as`](Self::start_as); what it says instead if the kernel does not let it be that way.
    fn try_start(program: &std::path::Path, how: &str) -> Result<FakePage, String> {
        FakePage::spawn(Command::new(program).arg(how))
    }

    fn spawn(command: &mut Command) -> Result<FakePage, String> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| {
                format!("it does not start, though cargo builds examples along with tests: {error}")
            })?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let page = FakePage(child);
        if line == "ready\n" { Ok(page) } else { Err(line) }
    }

    /// Its pid, as an argument.
    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Lets it take the next step, if its kind has any.
    pub(crate) fn step(&mut self) {
        self.0.stdin.as_mut().expect("piped").write_all(b"x").expect("it runs");
    }

    /// Ends it now.
    pub(crate) fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for FakePage {
    fn drop(&mut self) {
        self.end();
    }
}

/// The built example, which lies beside the binary.
pub(crate) fn example() -> PathBuf {
    let path = PathBuf::from(HG_TOP).with_file_name("examples").join("fake_page");
    assert!(path.exists(), "{} is missing: cargo build -p hg-top --example fake_page builds it", path.display());
    path
}
