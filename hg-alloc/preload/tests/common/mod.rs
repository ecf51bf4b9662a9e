//! What the drivers of the preload tests share: the library, compiled C programs, and children with a time limit.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Where test programs and their output go.
pub(crate) const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// Longest time a child may take; a deadlock in the allocator shows as this.
const PATIENCE: Duration = Duration::from_secs(180);

/// The library under test, built with the profile of this test.
///
/// Cargo does not build a cdylib for the integration tests of its own package, so it is asked to.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = Path::new(SCRATCH).parent().expect("a target folder");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "hg-preload", "--target-dir"]).arg(target);
        build.args(if profile() == "release" { &["--release"][..] } else { &[] });
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo").success(), "{build:?}");
        let library = target.join(profile()).join("libhg_preload.so");
        assert!(library.exists(), "{} was not built", library.display());
        library
    })
}

/// Folder of the profile this test was built with.
fn profile() -> &'static str {
    let exe = std::env::current_exe().expect("own path");
    if exe.components().any(|c| c.as_os_str() == "release") { "release" } else { "debug" }
}

/// Whether a program is installed; says on stderr that a test is skipped if it is not.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

/// Says that a test is skipped, past the capture of the test runner: a test that checks nothing should be seen.
pub(crate) fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    writeln!(std::io::stderr(), "SKIPPED {test}: {why}").expect("stderr");
}

/// Compiles `tests/c/NAME` once and returns the program, or `None` where there is no compiler.
pub(crate) fn compile(source: &str) -> Option<PathBuf> {
    // Compiled once in this process: a program that another test is running cannot be written.
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let (compiler, standard) = if source.ends_with("pp") { ("c++", "-std=c++17") } else { ("cc", "-std=gnu17") };
    if !installed(compiler) {
        return None;
    }
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = compiled.get(source) {
        return Some(program.clone());
    }
    let name = source.to_owned();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let library = source.file_stem().is_some_and(|stem| stem == "plugin");
    let program = Path::new(SCRATCH).join(source.file_stem().expect("a name"));
    let mut command = Command::new(compiler);
    // The calls must reach the allocator as written: no folding, no warning about those that are wrong on purpose.
    command.args([standard, "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-use-after-free", "-fno-builtin"]);
    command.args(["-D_GNU_SOURCE", "-pthread", "-o"]).arg(&program).arg(&source).arg("-ldl");
    command.args(if library { &["-shared", "-fPIC"][..] } else { &[] });
    assert!(command.status().expect("the compiler").success(), "{command:?}");
    compiled.insert(name, program.clone());
    Some(program)
}

/// What a child left behind.
pub(crate) struct Ended {
    /// Whether it ended with status 0 in time.
    pub(crate) success: bool,
    /// Its standard output.
    pub(crate) stdout: Vec<u8>,
    /// Its standard error, and how it ended.
    pub(crate) stderr: String,
}

/// Runs a command to its end, or kills it after [`PATIENCE`]. Output goes through files, so no pipe can fill up.
pub(crate) fn run(command: &mut Command) -> Ended {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let file = |kind| Path::new(SCRATCH).join(format!("{}.{number}.{kind}", std::process::id()));
    let (out, err) = (file("out"), file("err"));
    let create = |path| File::create(path).expect("a scratch file");
    command.stdin(Stdio::null()).stdout(create(&out)).stderr(create(&err));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().expect("wait") {
            Some(status) => break Some(status),
            None if begin.elapsed() > PATIENCE => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let how = match status {
        Some(status) => status.to_string(),
        None => {
            child.kill().expect("kill");
            child.wait().expect("wait");
            format!("killed after {} s", PATIENCE.as_secs())
        }
    };
    let text = |path: &Path| fs::read(path).expect("scratch file");
    let (stdout, stderr) = (text(&out), String::from_utf8_lossy(&text(&err)).into_owned());
    fs::remove_file(out).and(fs::remove_file(err)).expect("scratch files");
    Ended { success: status.is_some_and(|s| s.success()), stdout, stderr: format!("{stderr}[{how}]") }
}
