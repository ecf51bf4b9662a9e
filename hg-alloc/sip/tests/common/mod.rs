//! What the tests share: the library, programs that may not be installed, and processes with a time limit.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod directory;
pub(crate) mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Where servers keep their files.
pub(crate) const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// The library under test.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| built("hg-sip", "libhg_sip.so"))
}

/// What a package of the workspace gives, built with the profile of this test.
///
/// Cargo does not build a cdylib for the integration tests of its own package, nor anything of other packages, so it is asked to.
pub(crate) fn built(package: &str, file: &str) -> PathBuf {
    let target = Path::new(SCRATCH).parent().expect("a target folder");
    let exe = std::env::current_exe().expect("own path");
    let is_release = exe.components().any(|part| part.as_os_str() == "release");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", package, "--target-dir"]).arg(target);
    build.args(if is_release { &["--release"][..] } else { &[] });
    assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo").success(), "{build:?}");
    let file = target.join(if is_release { "release" } else { "debug" }).join(file);
    assert!(file.exists(), "{} was not built", file.display());
    file
}

/// Where a program is; says on stderr that a test is skipped if it is not installed. Servers are not in every user's PATH.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(program)).find(|file| file.exists());
    if found.is_none() {
        let test = std::thread::current().name().unwrap_or("test").to_owned();
        // Past the capture of the test runner: a test that checks nothing should be seen.
        writeln!(std::io::stderr(), "SKIPPED {test}: {program} is not installed").expect("stderr");
    }
    found
}

/// Sends a signal. A process that is gone is none of a test's business.
pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Waits for a child's end, or kills it.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return Some(status);
        }
        if begin.elapsed() > patience {
            child.kill().expect("kill");
            child.wait().expect("wait");
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
