//! What the libraries look like from outside: exactly the functions of the header, all of one version, and nothing of malloc;
//! flags that keep the shared one loaded for ever (a thread's restartable sequence may point into it).

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use object::elf::{self, FileHeader64};
use object::read::archive::ArchiveFile;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

type File<'a> = ElfFile64<'a, Endianness>;

fn with_library(look: impl FnOnce(&File<'_>, &[u8])) {
    let bytes = fs::read(common::libraries().join("libhg.so.0")).expect("the library");
    look(&File::parse(&*bytes).expect("an ELF file"), &bytes);
}

/// Functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(Path::new(common::PACKAGE).join("include/hg.h")).expect("the header");
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#']));
    let names = code.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        (name.starts_with("hg_") && !line.starts_with(' ')).then(|| name.to_owned())
    });
    names.collect()
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
        let named = tag == elf::DT_NEEDED || tag == elf::DT_SONAME;
        (tag, d.d_val.get(endian), if named { text(d) } else { None })
    };
    entries.iter().map(entry).collect()
}

#[test]
fn exports_are_the_functions_of_the_header_and_nothing_else() {
    let declared = declared();
    assert!(
        declared.len() > 30 && declared.contains("hg_malloc") && declared.contains("hg_set_callbacks"),
        "{declared:?}"
    );
    with_library(|file, _| {
        let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
        let exported: BTreeSet<_> = defined.map(|symbol| symbol.name().expect("a name").to_owned()).collect();
        assert_eq!(exported, declared);
    });
}

#[test]
fn every_export_has_the_version_of_the_interface() {
    with_library(|file, bytes| {
        let endian = file.endian();
        let header = FileHeader64::<Endianness>::parse(bytes).expect("an ELF header");
        let sections = header.sections(endian, bytes).expect("sections");
        let versions = sections.versions(endian, bytes).expect("readable").expect("symbol versions");
        let table = sections.symbols(endian, bytes, elf::SHT_DYNSYM).expect("dynamic symbols");
        let mut seen = 0;
        for (index, symbol) in table.enumerate() {
            let name = symbol.st_name.get(endian);
            let name = table.strings().get(name).expect("a name");
            if name.starts_with(b"hg_") {
                let version =
                    versions.version(versions.version_index(endian, index)).expect("known").expect("versioned");
                assert_eq!(version.name(), b"HG_0", "{}", String::from_utf8_lossy(name));
                seen += 1;
            }
        }
        assert_eq!(seen, declared().len());
    });
}

#[test]
fn no_symbol_of_malloc_is_defined_in_either_library() {
    let family =
        ["malloc", "free", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign", "_Znwm", "_ZdlPv"];
    with_library(|file, _| {
        let mut defined = file.symbols().filter(|symbol| symbol.is_definition());
        let found = defined.find(|symbol| symbol.name().is_ok_and(|name| family.contains(&name)));
        assert!(found.is_none(), "{found:?}");
    });
    let bytes = fs::read(common::libraries().join("libhg.a")).expect("the archive");
    let archive = ArchiveFile::parse(&*bytes).expect("an archive");
    let mut hg_malloc = false;
    for member in archive.members() {
        let data = member.expect("a member").data(&*bytes).expect("its bytes");
        let Ok(file) = object::File::parse(data) else { continue };
        for symbol in file.symbols().filter(|symbol| symbol.is_definition() && symbol.is_global()) {
            let name = symbol.name().expect("a name");
            assert!(!family.contains(&name), "{name}");
            hg_malloc |= name.split('@').next() == Some("hg_malloc");
        }
    }
    assert!(hg_malloc, "libhg.a has hg_malloc");
}

#[test]
fn it_stays_loaded_and_has_a_name_of_its_own() {
    with_library(|file, bytes| {
        let entries = dynamic(file, bytes);
        let flags = entries.iter().find(|entry| entry.0 == elf::DT_FLAGS_1).map_or(0, |entry| entry.1);
        assert_ne!(flags & u64::from(elf::DF_1_NODELETE), 0, "linked with -z nodelete");
        assert!(entries.iter().all(|entry| ![elf::DT_TEXTREL, elf::DT_RPATH, elf::DT_RUNPATH].contains(&entry.0)));
        let name = entries.iter().find(|entry| entry.0 == elf::DT_SONAME).and_then(|entry| entry.2.as_deref());
        assert_eq!(name, Some("libhg.so.0"));
        let needed: BTreeSet<_> =
            entries.iter().filter(|entry| entry.0 == elf::DT_NEEDED).filter_map(|entry| entry.2.as_deref()).collect();
        let expected = ["libc.so.6", "ld-linux-x86-64.so.2", "libgcc_s.so.1"].into();
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
