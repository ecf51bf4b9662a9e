//! How hg-top ends: the exit codes, which are a contract with scripts, and the errors that lead to them.

use std::process::ExitCode;

/// The table of exit codes as `--help` shows it.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  an alert fired (with --check), or an unexpected error
  2  wrong usage
  3  nothing to attach: no such process, or it does not run on hg
  4  permission denied
  5  the target's stats page is damaged or of an incompatible version";

/// Exit code of `--check` when an alert fired.
pub const ALERT: u8 = 1;

/// Why hg-top ends without having done what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// No process to watch.
    #[error("{0}")]
    Nothing(String),
    /// The kernel does not let us look.
    #[error("{0}")]
    Permission(String),
    /// A stats page that this version cannot read.
    #[error("{0}")]
    Incompatible(String),
    /// Anything else.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl Failure {
    /// Its exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Other(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Nothing(_) => 3,
            Failure::Permission(_) => 4,
            Failure::Incompatible(_) => 5,
        })
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Other(error.into())
    }
}
