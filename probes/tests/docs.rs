//! `docs/probes.md` is written from the catalogue, and must say what it says. Run with `HG_REGENERATE=1` to write it anew.

use std::fmt::Write;
use std::path::Path;

use hg_probes::catalogue::{Arg, Rate, Unit};
use hg_probes::{PROBES, maps, words};

/// Everything but the tables.
const INTRODUCTION: &str = "\
# Probes of hg

Every slow path of the allocator carries a USDT probe of provider `hg`. A probe that nobody listens to costs a load and a
predicted branch; one that is listened to costs about half a microsecond a hit. Each probe has one site per copy of the
allocator, a semaphore that the kernel raises while a tracer is attached, and arguments of 8 bytes in the registers of the
calling convention (`8@%rdi 8@%rsi 8@%rdx 8@%rcx 8@%r8 8@%r9`, on aarch64 `8@x0` to `8@x5`), so any tracer can read them.

```
bpftrace -l 'usdt:./libhg_preload.so:hg:*'
bpftrace -e 'usdt:./libhg_preload.so:hg:lock_stall { printf(\"%d stalled %d us\\n\", tid, arg3 / 1000); }'
bpftrace -p PID probes/bpftrace/stalls.bt
```

The scripts in `probes/bpftrace/` take the process with `-p`. A named binary (`usdt:./server:hg:grow`) is traced in all
processes that run it, and in those that start later.

*Rare* probes fire seconds to hours apart; `hg-top` shows each hit. Probes of a *batch* fire once per batch of cells or per
large object, up to some 100 000 times a second under load: aggregate them in the kernel, as `hg-top` does with those marked
so.

This page is written from `probes/src/catalogue.rs` by the test `docs` of crate `hg-probes`.

";

fn use_by_hg_top(probe: &hg_probes::Probe) -> &'static str {
    match (maps::is_event(probe.id), maps::has_stack(probe.id), maps::is_watched(probe.id)) {
        (true, true, _) => "event with stack",
        (true, false, _) => "event",
        (false, _, true) => "summed in the kernel",
        (false, _, false) => "not attached",
    }
}

fn meaning(arg: &Arg) -> String {
    let list = |words: &[(u64, &str)]| {
        let all: Vec<String> = words.iter().map(|(number, label)| format!("{number} {label}")).collect();
        all.join(", ")
    };
    macro_rules! labels {
        ($name:ident) => {
            list(&words::$name::ALL.iter().map(|word| (*word as u64, word.label())).collect::<Vec<_>>())
        };
    }
    match arg.unit {
        Unit::Arena => "number of the arena in its process, from 1".into(),
        Unit::Bytes => "bytes".into(),
        Unit::Ns => "nanoseconds".into(),
        Unit::Address => "address".into(),
        Unit::Class => "size class, as the bytes of its cells".into(),
        Unit::Cells => "cells".into(),
        Unit::Page => "page of the arena's grid".into(),
        Unit::Tid => "thread id, in the process's own pid namespace".into(),
        Unit::Errno => "errno, 0 for none".into(),
        Unit::Flag => "0 or 1".into(),
        Unit::Lock => "lock: 0 the grid's, else that of the class with cells of so many bytes".into(),
        Unit::Number => "a number, see above".into(),
        Unit::Tier => labels!(Tier),
        Unit::Cause => labels!(Cause),
        Unit::Reason => labels!(Reason),
        Unit::StallKind => labels!(StallKind),
        Unit::CorruptionKind => labels!(CorruptionKind),
        Unit::Source => labels!(Source),
        Unit::Destination => labels!(Destination),
    }
}

fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("| probe | rate | in hg-top | arguments |\n|---|---|---|---|\n");
    for probe in PROBES {
        let rate = match probe.rate {
            Rate::Rare => "rare",
            Rate::Batch => "batch",
        };
        let args: Vec<&str> = probe.args.iter().map(|arg| arg.name).collect();
        let (name, used) = (probe.name, use_by_hg_top(probe));
        writeln!(text, "| [`{name}`](#{name}) | {rate} | {used} | {} |", args.join(", ")).unwrap();
    }
    for probe in PROBES {
        writeln!(text, "\n## {}\n\n{}\n", probe.name, probe.doc.trim()).unwrap();
        text.push_str("| | argument | meaning |\n|---|---|---|\n");
        for (index, arg) in probe.args.iter().enumerate() {
            writeln!(text, "| `arg{index}` | {} | {} |", arg.name, meaning(arg)).unwrap();
        }
    }
    text
}

#[test]
fn the_page_says_what_the_catalogue_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/probes.md");
    let now = page();
    if std::env::var_os("HG_REGENERATE").is_some() {
        std::fs::write(&path, &now).expect("written");
    }
    let stands = std::fs::read_to_string(&path).expect("docs/probes.md");
    assert!(stands == now, "docs/probes.md is not what the catalogue gives (HG_REGENERATE=1 writes it anew)");
}
