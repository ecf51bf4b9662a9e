//! What the library looks like from outside: exactly the symbols of `exports.txt`, nothing that needs a TLS call or an
//! unexpected library, and flags that keep it loaded for ever (a thread's restartable sequence may point into it).

mod common;

use std::collections::BTreeSet;
use std::fs;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

/// Bytes of thread-local storage a preloaded library may take of the small surplus that the loader reserves.
const TLS_BYTES: u64 = 64;

type File<'a> = ElfFile64<'a, Endianness>;

fn with_library(look: impl FnOnce(&File<'_>, &[u8])) {
    let bytes = fs::read(common::library()).expect("the library");
    look(&File::parse(&*bytes).expect("an ELF file"), &bytes);
}

/// Tags and values of the dynamic section.
fn dynamic(file: &File<'_>, bytes: &[u8]) -> Vec<(u32, u64, Option<String>)> {
    let endian = file.endian();
    let header = FileHeader64::<Endianness>::parse(bytes).expect("an ELF header");
    let sections = header.sections(endian, bytes).expect("sections");
    let (entries, link) = sections.dynamic(endian, bytes).expect("readable").expect("a dynamic section");
    let strings = sections.strings(endian, bytes, link).expect("strings");
    let text =
        |d: &elf::Dyn64<Endianness>| String::from_utf8_lossy(d.string(endian, strings).ok()?).into_owned().into();
    let entry = |d: &elf::Dyn64<Endianness>| {
        let tag = d.tag32(endian).unwrap_or(0);
        (tag, d.d_val.get(endian), if tag == elf::DT_NEEDED { text(d) } else { None })
    };
    entries.iter().map(entry).collect()
}

#[test]
fn exports_are_the_malloc_family_and_the_operators_and_nothing_else() {
    with_library(|file, _| {
        let exported: BTreeSet<_> = file
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition())
            .map(|symbol| symbol.name().expect("a name").to_owned())
            .collect();
        let golden = include_str!("exports.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(exported, golden.map(str::to_owned).collect());
    });
}

#[test]
fn thread_local_storage_is_tiny_and_needs_no_call() {
    with_library(|file, _| {
        let endian = file.endian();
        let tls = file.elf_program_headers().iter().filter(|h| h.p_type(endian) == elf::PT_TLS);
        assert!(tls.map(|h| h.p_memsz(endian)).sum::<u64>() <= TLS_BYTES);
        let imports: Vec<_> = file.dynamic_symbols().filter(|s| s.is_undefined()).map(|s| s.name().unwrap()).collect();
        assert!(imports.contains(&"memcpy") || imports.contains(&"syscall"), "imports are seen at all: {imports:?}");
        for call in ["__tls_get_addr", "__cxa_thread_atexit_impl", "pthread_key_create", "dlopen"] {
            assert!(!imports.contains(&call), "{call} may call malloc, or runs when the thread is half gone");
        }
    });
}

#[test]
fn it_stays_loaded_and_needs_the_c_library_alone() {
    with_library(|file, bytes| {
        let entries = dynamic(file, bytes);
        let flags = entries.iter().find(|entry| entry.0 == elf::DT_FLAGS_1).map_or(0, |entry| entry.1);
        assert_ne!(flags & u64::from(elf::DF_1_NODELETE), 0, "linked with -z nodelete");
        assert!(entries.iter().all(|entry| ![elf::DT_TEXTREL, elf::DT_RPATH, elf::DT_RUNPATH].contains(&entry.0)));
        let needed: BTreeSet<_> = entries.iter().filter_map(|entry| entry.2.as_deref()).collect();
        let expected = ["libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"].into();
        assert!(needed.contains("libc.so.6") && needed.is_subset(&expected), "{needed:?}");
    });
}

#[test]
fn no_stack_or_segment_is_writable_and_executable() {
    with_library(|file, _| {
        let endian = file.endian();
        let both = elf::PF_W | elf::PF_X;
        assert!(file.elf_program_headers().iter().all(|h| h.p_flags(endian) & both != both));
    });
}
