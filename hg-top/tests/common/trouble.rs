//! The `trouble` example under a test's control.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running `trouble`; ended when dropped.
pub(crate) struct Trouble {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Trouble {
    /// Starts it, by itself or through the words of another command.
    pub(crate) fn start(through: &[&str]) -> Trouble {
        let program = super::example().with_file_name("trouble");
        assert!(program.exists(), "cargo build -p hg-top --examples builds {}", program.display());
        let mut command = match through {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut trouble = Trouble { child, input, output };
        assert_eq!(trouble.answer(), "ready");
        trouble
    }

    /// The pid of what was started.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks for trouble, without waiting for it.
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

impl Drop for Trouble {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
