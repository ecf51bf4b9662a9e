//! Runs the C and C++ programs of `tests/c` on the library, each named after what it promises, in up to four ways:
//!
//! | way | library | front caches are guarded by |
//! |---|---|---|
//! | `shared` | `libhg.so` | restartable sequences, where the kernel and glibc offer them |
//! | `linked_in` | `libhg.a` | the same |
//! | `with_locks` | `libhg.so` | locks alone: `HG_RSEQ=0` |
//! | `emulated` | `libhg.so` | locks alone: valgrind knows no restartable sequences; it finds no error either |

mod common;

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Link, compile, installed, run};

/// A folder for named arenas that goes with the test. On a tmpfs, as named arenas want it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new("/dev/shm").join(format!("hg-test-{}-{name}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).expect("a folder of our own on /dev/shm");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs one program and checks that it kept its promise.
fn kept(source: &str, link: Link, variables: &[(&str, &str)], emulated: bool) {
    if emulated && !installed("valgrind") {
        return;
    }
    let Some(program) = compile(source, link) else { return };
    let mut command = if emulated {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=9", "--trace-children=yes"]).arg(&program).env("EMULATED", "1");
        valgrind
    } else {
        Command::new(&program)
    };
    let folder = Folder::new(&format!("{source}-{link:?}-{}-{emulated}", variables.len()));
    command.env("HG_RUNTIME_DIR", &folder.0).envs(variables.iter().copied());
    // Each lock that is waited for is a stall there.
    if source == "callbacks.c" {
        command.env("HG_LOCK_STALL_US", "1");
    }
    let ended = run(&mut command);
    let kept = ended.success && ended.stdout.ends_with("kept\n");
    assert!(kept, "{source} {link:?} {variables:?}\n{}{}", ended.stdout, ended.stderr);
}

macro_rules! promises {
    ($($name:ident $source:literal;)*) => { $(
        mod $name {
            use super::common::Link;

            #[test]
            fn shared() {
                super::kept($source, Link::Shared, &[], false);
            }

            #[test]
            fn linked_in() {
                super::kept($source, Link::Static, &[], false);
            }

            #[test]
            fn with_locks() {
                super::kept($source, Link::Shared, &[("HG_RSEQ", "0")], false);
            }

            #[test]
            fn emulated() {
                super::kept($source, Link::Shared, &[], true);
            }
        }
    )* };
}

promises! {
    bad_frees "bad_frees.c";
    bad_input "bad_input.c";
    caller_memory "caller_memory.c";
    callbacks "callbacks.c";
    classes "classes.cpp";
    family "family.c";
    fork_private "fork_private.c";
    fork_shared "fork_shared.c";
    killed_workers "killed_workers.c";
    many "many.c";
    named "named.c";
    passed "passed.c";
    quick_start "quick_start.c";
    settings "settings.c";
    sites "sites.c";
    threads "threads.c";
}

/// A file system of a limited size has to be mounted, in a mount namespace of its own.
#[test]
fn a_full_file_system_refuses_growth_and_kills_nobody() {
    let Some(program) = compile("full_folder.c", Link::Shared) else { return };
    let folder = Folder::new("full");
    let shell = |script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--user", "--map-root-user", "sh", "-c", script, "sh"]).arg(&folder.0).arg(&program);
        unshare
    };
    let mount = r#"mount -t tmpfs -o size=24m,mode=700 tmpfs "$1""#;
    if !installed("unshare") || !run(&mut shell(mount)).success {
        return common::skip("a file system cannot be mounted, not even in a namespace of its own");
    }
    let ended = run(shell(&format!(r#"{mount} && exec "$2""#)).env("HG_RUNTIME_DIR", &folder.0));
    assert!(ended.success && ended.stdout.ends_with("kept\n"), "{}{}", ended.stdout, ended.stderr);
}

/// The page's example is the one of `tests/c`, and its lines install the library and compile it.
#[test]
fn the_documentation_shows_what_works() {
    let page = fs::read_to_string(Path::new(common::PACKAGE).join("../../docs/c-library.md")).expect("the page");
    let fence = |language: &str| {
        let (_, rest) = page.split_once(&format!("```{language}\n")).expect("a block");
        rest.split_once("```").expect("its end").0.to_owned()
    };
    let source = fs::read_to_string(Path::new(common::PACKAGE).join("tests/c/quick_start.c")).expect("the example");
    assert_eq!(fence("c"), source, "docs/c-library.md and tests/c/quick_start.c differ");
    if !installed("cc") || !installed("pkg-config") {
        return;
    }
    let shell = fence("sh");
    let mut lines = shell.lines().filter(|line| !line.starts_with("cargo build"));
    let install = lines.next().expect("a line that installs").split_whitespace().next().expect("a script");
    let compile = lines.next().expect("a line that compiles");
    let folder = Folder::new("prefix");
    fs::write(folder.0.join("example.c"), source).expect("the example");
    let script = Path::new(common::PACKAGE).join("../..").join(install);
    let installed = run(Command::new(script).arg(&folder.0).arg(common::libraries()));
    assert!(installed.success, "{}{}", installed.stdout, installed.stderr);
    // The library linked in: into a program, and into a shared object that declares no versions.
    let archive = compile.replace("pkg-config", "pkg-config --static").replace(")", " | sed s/-lhg/-l:libhg.a/)");
    let plugin = archive.replace("-o example", "-shared -fPIC -Wl,-z,nodelete -o example.so");
    for (line, then) in [(compile, "./example"), (&archive, "./example"), (&plugin, "echo kept")] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{line} && {then}")]).current_dir(&folder.0);
        shell.env("PKG_CONFIG_PATH", folder.0.join("lib/pkgconfig")).env("LD_LIBRARY_PATH", folder.0.join("lib"));
        let ended = run(&mut shell);
        assert!(ended.success && ended.stdout.ends_with("kept\n"), "{line}: {}{}", ended.stdout, ended.stderr);
    }
}
