//! A process for each mode: the allocator reads its environment once, before `main`.

use std::process::Command;

/// Whether the allocator maintains itself by a thread of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `HG_THREAD=1`.
    Thread,
    /// `HG_THREAD=0`.
    NoThread,
}

/// Name of the variable.
const VARIABLE: &str = "HG_THREAD";

impl Mode {
    /// Both, in the order in which they are run.
    pub const BOTH: [Mode; 2] = [Mode::Thread, Mode::NoThread];

    /// The word of the command line.
    pub fn flag(self) -> &'static str {
        match self {
            Mode::Thread => "--thread",
            Mode::NoThread => "--no-thread",
        }
    }

    fn value(self) -> &'static str {
        match self {
            Mode::Thread => "1",
            Mode::NoThread => "0",
        }
    }

    /// Whether this process's environment asks for the mode.
    pub fn is_on(self) -> bool {
        std::env::var(VARIABLE).is_ok_and(|value| value == self.value())
    }

    /// This program again with the same arguments, in this mode.
    ///
    /// # Errors
    /// The kernel does not tell where the program is.
    pub fn command(self) -> std::io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        let flags = Mode::BOTH.map(Mode::flag);
        command.args(std::env::args_os().skip(1).filter(|word| !flags.iter().any(|flag| word == flag)));
        command.arg(self.flag()).env(VARIABLE, self.value());
        Ok(command)
    }
}
