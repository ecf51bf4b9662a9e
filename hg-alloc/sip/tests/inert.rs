//! The library in programs that are no servers, and in servers that it does not know: it does nothing, and says so once.

mod common;

use common::{SCRATCH, installed, library};
use std::path::Path;
use std::process::{Command, Output};

fn output(command: &mut Command) -> Output {
    command.env("LD_PRELOAD", library()).output().expect("a program")
}

#[test]
fn other_programs_do_not_notice() {
    // A shell that forks and executes, and programs that read options and open files.
    let script = "getopt -o ab: -- -a -b 1; sh -c 'sort /etc/passwd | head -n 1'; ls -ld /; (exit 3); echo $?";
    let with = output(Command::new("sh").args(["-c", script]));
    let without = Command::new("sh").args(["-c", script]).output().expect("sh");
    assert!(with.status.success());
    assert_eq!(String::from_utf8_lossy(&with.stderr), "");
    assert_eq!(with.stdout, without.stdout);
}

/// Compiles a program that exports what a server does.
fn pretender(name: &str, source: &str) -> Option<std::path::PathBuf> {
    installed("cc")?;
    let (file, program) = (Path::new(SCRATCH).join(format!("{name}.c")), Path::new(SCRATCH).join(name));
    std::fs::write(&file, source).expect("a source");
    let status = Command::new("cc").args(["-rdynamic", "-Wall", "-Werror", "-o"]).arg(&program).arg(&file).status();
    assert!(status.expect("cc").success());
    Some(program)
}

#[test]
fn a_kamailio_of_another_layout_is_left_alone_with_one_line() {
    let source = "void *_shm_root[23], *_pkg_root[17]; unsigned long shm_mem_size, pkg_mem_size;\n\
                  int main(void) { return _shm_root[3] || _pkg_root[3]; }";
    let Some(program) = pretender("other-kamailio", source) else { return };
    let with = output(&mut Command::new(program));
    let text = String::from_utf8_lossy(&with.stderr);
    assert!(with.status.success());
    assert!(text.starts_with("hg: this Kamailio's memory interface is not known (_pkg_root 136 bytes"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn an_opensips_without_the_variables_is_left_alone_with_one_line() {
    let source = "void *shm_block, *mem_block; int main(void) { return shm_block || mem_block; }";
    let Some(program) = pretender("other-opensips", source) else { return };
    let with = output(&mut Command::new(program));
    let text = String::from_utf8_lossy(&with.stderr);
    assert!(with.status.success());
    assert!(text.starts_with("hg: this OpenSIPS's memory interface is not known ("), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
