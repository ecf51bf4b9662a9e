//! What the drivers of the library's tests share: the built library, compiled programs, and children with a time limit.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Where programs and their output go.
pub(crate) const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// The package of the library.
pub(crate) const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// Libraries that a program needs beside `libhg.a`: those of `Libs.private` in `hg.pc.in`.
pub(crate) fn private_libraries() -> Vec<&'static str> {
    let template = include_str!("../../hg.pc.in");
    let line = template.lines().find_map(|line| line.strip_prefix("Libs.private:")).expect("a line of libraries");
    line.split_whitespace().collect()
}

/// Longest time a child may take; a deadlock shows as this.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// `libhg.so`.
    Shared,
    /// `libhg.a`.
    Static,
}

/// The folder with `libhg.so`, its name for the loader, and `libhg.a`, built with the profile of this test.
///
/// Cargo does not build these for the integration tests of their own package, so it is asked to.
pub(crate) fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let target = Path::new(SCRATCH).parent().expect("a target folder");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "hg-capi", "--target-dir"]).arg(target);
        build.args(if profile() == "release" { &["--release"][..] } else { &[] });
        assert!(build.current_dir(PACKAGE).status().expect("cargo").success(), "{build:?}");
        let built = target.join(profile());
        // Links of our own: another run of cargo may put new libraries in their place while programs run on these.
        let own = Path::new(SCRATCH).join(format!("lib.{}", std::process::id()));
        remove_old(Path::new(SCRATCH));
        fs::create_dir_all(&own).expect("a scratch folder");
        for (from, to) in [("libhg.so", "libhg.so.0"), ("libhg.so", "libhg.so"), ("libhg.a", "libhg.a")] {
            fs::hard_link(built.join(from), own.join(to)).unwrap_or_else(|error| panic!("{from}: {error}"));
        }
        own
    })
}

/// Removes the links of test programs that ended.
fn remove_old(scratch: &Path) {
    for entry in fs::read_dir(scratch).expect("the scratch folder").flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let ended = |pid: &str| pid.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if name.strip_prefix("lib.").is_some_and(ended) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
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
pub(crate) fn compile(source: &str, link: Link) -> Option<PathBuf> {
    // Compiled once in this process: a program that another test is running cannot be written.
    static COMPILED: Mutex<BTreeMap<(String, Link), PathBuf>> = Mutex::new(BTreeMap::new());
    let (compiler, standard) = if source.ends_with("pp") { ("c++", "-std=c++17") } else { ("cc", "-std=c99") };
    if !installed(compiler) {
        return None;
    }
    let libraries = libraries();
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = compiled.get(&(source.to_owned(), link)) {
        return Some(program.clone());
    }
    let path = Path::new(PACKAGE).join("tests/c").join(source);
    let program = Path::new(SCRATCH).join(format!("{source}.{link:?}"));
    let mut command = Command::new(compiler);
    command.args([standard, "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-D_GNU_SOURCE", "-pthread"]);
    command.arg("-I").arg(Path::new(PACKAGE).join("include")).arg("-o").arg(&program).arg(&path);
    match link {
        Link::Shared => {
            command.arg("-L").arg(libraries).arg("-lhg").arg(format!("-Wl,-rpath,{}", libraries.display()));
        }
        Link::Static => {
            command.arg(libraries.join("libhg.a")).args(private_libraries());
        }
    }
    assert!(command.status().expect("the compiler").success(), "{command:?}");
    compiled.insert((source.to_owned(), link), program.clone());
    Some(program)
}

/// What a child left behind.
pub(crate) struct Ended {
    /// Whether it ended with status 0 in time.
    pub(crate) success: bool,
    /// Its standard output.
    pub(crate) stdout: String,
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
    let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).expect("scratch file")).into_owned();
    let (stdout, stderr) = (text(&out), text(&err));
    fs::remove_file(out).and(fs::remove_file(err)).expect("scratch files");
    Ended { success: status.is_some_and(|s| s.success()), stdout, stderr: format!("{stderr}[{how}]") }
}
