//! Strict overcommit of the whole machine, switched on for a moment: growth is refused with that cause, and the memory that
//! was committed before goes on being of use.
//!
//! Other programs of the machine live under the same setting while the test runs, with room for [`ROOM`] bytes, so it is
//! ignored unless asked for: `cargo test -p hg-alloc --test overcommit -- --ignored`, as root and beside nothing that builds.

mod common;

use common::*;
use hg_alloc::raw;
use hg_probes::words::Cause;
use std::fs;
use std::sync::atomic::Ordering::Relaxed;

/// What all programs together may commit beyond what they have: 128 MiB of it the kernel keeps from each.
const ROOM: usize = 900 * MIB;

/// The settings as they were.
struct Settings([(&'static str, String); 2]);

impl Settings {
    fn strict() -> Option<Settings> {
        // The first is the last to be put back: writing a size sets the ratio to 0 and the other way round.
        let files = ["/proc/sys/vm/overcommit_memory", "/proc/sys/vm/overcommit_ratio"];
        let old = files.map(|file| (file, fs::read_to_string(file).unwrap_or_default()));
        // A host that uses a size instead of a ratio is not one to be played with, nor one that is strict already.
        if old[0].1.trim() == "2" || old[1].1.trim() == "0" {
            return None;
        }
        let settings = Settings(old);
        let committed = meminfo("Committed_AS")?;
        let limit = (committed + ROOM) / 1024;
        fs::write("/proc/sys/vm/overcommit_kbytes", limit.to_string()).ok()?;
        fs::write(files[0], "2\n").ok()?;
        Some(settings)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (file, old) in self.0.iter().rev() {
            let _ = fs::write(file, old);
        }
    }
}

fn meminfo(field: &str) -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? * 1024)
}

#[test]
#[ignore = "changes vm.overcommit_memory of the machine for a moment"]
fn strict_overcommit_refuses_with_its_own_cause() {
    const NAME: &str = "strict_overcommit_refuses_with_its_own_cause";
    if !is_child(NAME) {
        let Some(settings) = Settings::strict() else {
            return skip("needs root, and overcommit that is not strict yet");
        };
        let output = child(NAME).arg("--ignored").output();
        drop(settings);
        let text = text_of(NAME, &output.expect("the test program runs again"));
        assert!(text.contains("hg: growth blocked: overcommit limit"), "{text}");
        return;
    }
    let blocks = fill(MIB, 2 * ROOM / MIB, true);
    let held = blocks.len() * MIB;
    assert!((ROOM / 2..ROOM).contains(&held), "{held} bytes of {ROOM}");
    assert!(is_blocked() && refused(Cause::Overcommit) > 0);
    assert_eq!(page().header.blocked_cause.load(Relaxed), Cause::Overcommit as u32);
    // Everything that was handed out is there, and what is freed serves again.
    blocks.iter().for_each(|block| touch(*block, MIB));
    blocks.into_iter().for_each(raw::free);
    assert!(!raw::malloc(MIB).is_null());
    hg_alloc::trim();
    assert!(!raw::malloc(64 * MIB).is_null());
    assert!(!is_blocked());
}
