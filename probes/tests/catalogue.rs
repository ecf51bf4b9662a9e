//! The catalogue holds together, and what the compiler and the assembler made of it is what tracers will find.

mod common;

use std::collections::BTreeMap;

use hg_probes::{PROBES, ProbeId, maps};
use object::{Object, ObjectSection, ObjectSegment};

#[test]
fn ids_are_places_and_names_are_unique() {
    for (index, probe) in PROBES.iter().enumerate() {
        assert_eq!(probe.id as usize, index, "{}", probe.name);
        assert_eq!(ProbeId::from_u64(index as u64), Some(probe.id));
        assert_eq!(probe.id.probe().name, probe.name);
        assert!((1..=6).contains(&probe.args.len()), "{}: one to six registers", probe.name);
        assert_eq!(probe.args[0].name, "arena", "{}: the arena comes first", probe.name);
        let mut names: Vec<&str> = probe.args.iter().map(|arg| arg.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), probe.args.len(), "{}: an argument named twice", probe.name);
        assert!(probe.doc.trim().ends_with('.'), "{}: {:?}", probe.name, probe.doc);
    }
    assert_eq!(ProbeId::from_u64(PROBES.len() as u64), None);
    assert_eq!(ProbeId::from_u64(u64::MAX), None);
    let names: std::collections::BTreeSet<&str> = PROBES.iter().map(|probe| probe.name).collect();
    assert_eq!(names.len(), PROBES.len());
}

#[test]
fn every_probe_is_of_use_or_left_alone() {
    let watched = PROBES.iter().filter(|probe| maps::is_watched(probe.id)).count();
    let events = PROBES.iter().filter(|probe| maps::is_event(probe.id)).count();
    assert_eq!((watched, events), (14, 10));
    assert!(PROBES.iter().all(|probe| !maps::has_stack(probe.id) || maps::is_event(probe.id)));
}

#[test]
fn the_test_knows_every_probe() {
    assert_eq!(common::ONCE.len(), PROBES.len());
    for ((id, arguments), probe) in common::ONCE.iter().zip(PROBES) {
        assert_eq!((*id, arguments.len()), (probe.id, probe.args.len()));
    }
}

/// A note as it stands in the file.
struct Note {
    address: u64,
    semaphore: u64,
    provider: String,
    name: String,
    arguments: String,
}

/// The notes of an ELF file that is known to be honest.
fn notes(elf: &object::File<'_>) -> Vec<Note> {
    let base = elf.section_by_name(".stapsdt.base").expect("a base").address();
    let bytes = elf.section_by_name(".note.stapsdt").expect("notes").data().expect("their bytes");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize;
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (mut at, mut notes) = (0, Vec::new());
    while at < bytes.len() {
        let (name_size, size, kind) = (word(at), word(at + 4), word(at + 8));
        assert_eq!((&bytes[at + 12..at + 12 + name_size], kind), (&b"stapsdt\0"[..], 3));
        let start = at + 12 + name_size.next_multiple_of(4);
        assert_eq!(long(start + 8), base, "a base of another file");
        let mut strings = bytes[start + 24..start + size].split(|byte| *byte == 0);
        let mut string = || String::from_utf8(strings.next().expect("a string").to_vec()).expect("text");
        notes.push(Note {
            address: long(start),
            semaphore: long(start + 16),
            provider: string(),
            name: string(),
            arguments: string(),
        });
        at = start + size.next_multiple_of(4);
    }
    notes
}

#[test]
fn every_probe_has_one_site_with_its_arguments_in_registers() {
    let bytes = std::fs::read(common::fire()).expect("the example");
    let elf = object::File::parse(&*bytes).expect("ELF");
    let mut found: BTreeMap<String, Note> = BTreeMap::new();
    for note in notes(&elf) {
        assert_eq!(note.provider, "hg");
        assert!(found.insert(note.name.clone(), note).is_none(), "two sites of one probe");
    }
    assert_eq!(found.len(), PROBES.len());
    let semaphores = elf.section_by_name(".probes").expect("semaphores");
    let byte = |address: u64| {
        let holds = |segment: &object::Segment<'_, '_>| {
            (segment.address()..segment.address() + segment.size()).contains(&address)
        };
        let segment = elf.segments().find(holds).expect("a segment");
        segment.data().expect("its bytes")[(address - segment.address()) as usize]
    };
    #[cfg(target_arch = "x86_64")]
    const REGISTERS: [&str; 6] = ["8@%rdi", "8@%rsi", "8@%rdx", "8@%rcx", "8@%r8", "8@%r9"];
    #[cfg(target_arch = "aarch64")]
    const REGISTERS: [&str; 6] = ["8@x0", "8@x1", "8@x2", "8@x3", "8@x4", "8@x5"];
    let mut places = std::collections::BTreeSet::new();
    for probe in PROBES {
        let note = found.get(probe.name).unwrap_or_else(|| panic!("no site of {}", probe.name));
        assert_eq!(note.arguments, REGISTERS[..probe.args.len()].join(" "), "{}", probe.name);
        // A nop of five bytes would be made a call by some kernels, and a forked child dies of it.
        #[cfg(target_arch = "x86_64")]
        assert_eq!((byte(note.address), byte(note.address + 1)), (0x90, 0xc3), "{}: nop, ret", probe.name);
        let range = semaphores.address()..semaphores.address() + semaphores.size();
        assert!(range.contains(&note.semaphore) && note.semaphore.is_multiple_of(2), "{}", probe.name);
        assert_eq!((byte(note.semaphore), byte(note.semaphore + 1)), (0, 0), "{}: nobody listens yet", probe.name);
        assert!(places.insert(note.semaphore) && places.insert(note.address), "{}: shared with another", probe.name);
    }
}
