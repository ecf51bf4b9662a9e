//! `include/hg.h` is what cbindgen makes of the sources, and compiles alone under every standard that it is meant for.
//!
//! `HG_WRITE_HEADER=1 cargo test -p hg-capi --test header` writes it anew.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{PACKAGE, SCRATCH, installed};

/// Sources in the order of the header.
const SOURCES: [&str; 10] = [
    "status.rs",
    "options.rs",
    "arena.rs",
    "memory.rs",
    "many.rs",
    "sites.rs",
    "figures.rs",
    "upkeep.rs",
    "callbacks.rs",
    "labels.rs",
];

fn made() -> String {
    let package = Path::new(PACKAGE);
    let mut config = cbindgen::Config::from_file(package.join("cbindgen.toml")).expect("a configuration");
    config.after_includes = config.after_includes.map(|text| text.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
    let sources = SOURCES.iter().chain(&["handle.rs"]).map(|source| package.join("src").join(source));
    let builder = sources.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut header = Vec::new();
    builder.generate().expect("sources that cbindgen understands").write(&mut header);
    String::from_utf8(header).expect("a text")
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = Path::new(PACKAGE).join("include/hg.h");
    let made = made();
    if std::env::var_os("HG_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the header can be written");
    }
    let there = fs::read_to_string(&path).expect("the header");
    let differs = there.lines().zip(made.lines()).position(|(old, new)| old != new);
    assert!(
        there == made,
        "include/hg.h differs from its sources, first in line {:?}; HG_WRITE_HEADER=1 writes it anew",
        differs.map(|line| line + 1)
    );
}

#[test]
fn every_source_with_functions_is_in_the_header() {
    for entry in fs::read_dir(Path::new(PACKAGE).join("src")).expect("sources") {
        let path = entry.expect("a source").path();
        let text = fs::read_to_string(&path).expect("a source");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(
            !text.contains("no_mangle") || SOURCES.contains(&name),
            "{name} is not among the sources of the header"
        );
    }
}

#[test]
fn the_header_compiles_alone_without_a_warning() {
    for (compiler, kind, standards) in [
        ("cc", "c", &["-std=c99", "-std=c11", "-std=c17"][..]),
        ("c++", "c++", &["-std=c++11", "-std=c++17", "-std=c++20"]),
    ] {
        if !installed(compiler) {
            continue;
        }
        for standard in standards {
            let source = Path::new(SCRATCH).join(format!("header{standard}.txt"));
            fs::write(&source, "#include <hg.h>\n#include <hg.h>\nhg_arena *none;\n").expect("a scratch file");
            let mut command = Command::new(compiler);
            command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-x", kind]);
            command.arg("-I").arg(Path::new(PACKAGE).join("include")).arg(&source);
            assert!(command.status().expect("the compiler").success(), "{command:?}");
        }
    }
}
