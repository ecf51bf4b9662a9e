//! The `fire` example under a test's control, and what it is known to fire.
//!
//! Shared by the tests of hg-probes and those of hg-top, so each uses a part of it.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part, and is a crate of its own")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use hg_probes::ProbeId;

/// The arguments with which `fire once` fires each probe, in the order of the catalogue.
pub const ONCE: &[(ProbeId, &[u64])] = &[
    (ProbeId::Grow, &[1, 16 << 20, 5 << 30, 3, 0, 123_456]),
    (ProbeId::GrowRefused, &[2, 1 << 21, 7, 12]),
    (ProbeId::GrowBlocked, &[3, 1, 6]),
    (ProbeId::Shrink, &[4, 64 << 20, 32 << 20, 3, 9_876]),
    (ProbeId::Refill, &[5, 96, 20, 12, 3, 450]),
    (ProbeId::Flush, &[6, 112, 31, 1, 440]),
    (ProbeId::LockAcquire, &[7, 0, 2, 77]),
    (ProbeId::LockRelease, &[8, 128, 1, 88]),
    (ProbeId::LockStall, &[9, 256, 0, 4_200_000, 1, 4250]),
    (ProbeId::Corruption, &[10, 2, 0x7fff_dead_b000, 48, 2]),
    (ProbeId::AllocFailed, &[11, 1 << 40, 8]),
    (ProbeId::TierChange, &[12, 17, 1, 2]),
    (ProbeId::Pin, &[13, 4096, 8192, u64::MAX]),
    (ProbeId::LargeAlloc, &[14, 0x7f00_0000_1000, 1 << 20, 15_000]),
    (ProbeId::LargeFree, &[15, 0x7f00_0000_2000, 2 << 20, 16_000]),
    (ProbeId::OwnerDead, &[16, 512, 99, 5]),
    (ProbeId::SampleAlloc, &[17, 0x7f00_0000_3000, 100, 524_288]),
    (ProbeId::SampleFree, &[18, 0x7f00_0000_4000, 200, 60_000_000_000]),
];

/// The built example.
pub fn fire() -> &'static Path {
    static FIRE: OnceLock<PathBuf> = OnceLock::new();
    FIRE.get_or_init(|| {
        // TARGET/PROFILE/deps/THIS-TEST
        let test = std::env::current_exe().expect("own path");
        let target = test.ancestors().nth(3).expect("a target folder");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "hg-probes", "--example", "fire", "--target-dir"])
            .arg(target)
            .status()
            .expect("cargo");
        assert!(built.success(), "the example does not build");
        target.join("debug/examples/fire").canonicalize().expect("the example")
    })
}

/// A running example.
pub struct Fire {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Fire {
    /// Starts it; it has not fired yet.
    pub fn start(arguments: &[&str]) -> Fire {
        Fire::start_as(fire(), arguments)
    }

    /// Starts a copy of it.
    pub fn start_as(path: &Path, arguments: &[&str]) -> Fire {
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut fire = Fire { child, input, output };
        assert_eq!(fire.line(), "ready");
        fire
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it fire, and returns the processes it forked when it is done.
    pub fn fire(&mut self) -> Vec<u32> {
        writeln!(self.input.as_mut().expect("not ended"), "go").expect("it listens");
        let mut children = Vec::new();
        loop {
            let line = self.line();
            match line.strip_prefix("child ") {
                Some(pid) => children.push(pid.parse().expect("a pid")),
                None => {
                    assert_eq!(line, "fired");
                    return children;
                }
            }
        }
    }

    /// Lets it end.
    pub fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("its status").success());
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }
}

impl Drop for Fire {
    fn drop(&mut self) {
        drop(self.input.take());
        // It ends by itself at the end of its input.
        let _ = self.child.wait();
    }
}

/// The semaphores of a process that are raised: how many of its probes somebody listens to.
pub fn listened_to(pid: u32) -> usize {
    use object::{Object, ObjectSection};
    let bytes = std::fs::read(fire()).expect("the example");
    let elf = object::File::parse(&*bytes).expect("ELF");
    let section = elf.section_by_name(".probes").expect("semaphores");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let base = u64::from_str_radix(maps.split('-').next().expect("a mapping"), 16).expect("an address");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut words = vec![0; section.size() as usize];
    memory.read_exact_at(&mut words, base + section.address()).expect("its semaphores");
    words.chunks_exact(2).filter(|word| **word != [0, 0]).count()
}

/// Whether this process has a capability, by its number (linux/capability.h). Root in a container may lack most.
pub fn has(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    effective.and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|bits| bits >> capability & 1 != 0)
}

/// Why nothing can be traced here, if so.
pub fn cannot_trace() -> Option<&'static str> {
    const CAP_SYS_ADMIN: u32 = 21;
    if !has(CAP_SYS_ADMIN) {
        return Some("needs CAP_SYS_ADMIN");
    }
    if !Path::new("/sys/bus/event_source/devices/uprobe/format/ref_ctr_offset").exists() {
        return Some("this kernel has no uprobe PMU");
    }
    None
}

/// Says on stderr, past the test's capture, that a test did not run.
pub fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}
