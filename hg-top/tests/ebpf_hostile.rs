//! Files and processes that lie get a clear answer, in no time, and no more memory than an honest one.

#[path = "../../probes/tests/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hg_top::attach::AttachError;
use hg_top::attach::notes::{self, NoteError};
use hg_top::attach::objects;
use hg_top::source::ebpf::EbpfSource;

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hg-hostile-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Scratch(path)
    }

    fn file(&self, bytes: &[u8]) -> File {
        let path = self.0.join("file");
        fs::write(&path, bytes).expect("written");
        File::open(path).expect("opened")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn honest() -> Vec<u8> {
    fs::read(common::fire()).expect("the example")
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

/// Offset in the file of the section header of `.note.stapsdt`, and of its contents.
fn note_section(bytes: &[u8]) -> (usize, usize) {
    use object::{LittleEndian as Le, elf::FileHeader64, read::elf::FileHeader, read::elf::SectionHeader};
    let header = FileHeader64::<Le>::parse(bytes).expect("ELF");
    let sections = header.sections(Le, bytes).expect("sections");
    let (index, section) = sections.section_by_name(Le, b".note.stapsdt").expect("notes");
    let place = header.e_shoff.get(Le) as usize + index.0 * 64;
    (place, section.sh_offset(Le) as usize)
}

#[test]
fn an_honest_file_has_one_site_for_each_watched_probe() {
    let sites = notes::sites(&File::open(common::fire()).expect("the example")).expect("sites");
    assert_eq!(sites.len(), 14);
    let bytes = honest();
    for site in sites {
        assert_eq!(bytes[site.offset as usize], 0x90, "a nop of one byte at {site:?}");
        assert_eq!(bytes[site.semaphore as usize..][..2], [0, 0]);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let scratch = Scratch::new("truncated");
    let bytes = honest();
    // The section headers stand at the end: without their last byte nothing can be found.
    let mut lengths = vec![0, 1, 4, 16, 63, 64, 65, 1000, 4096, bytes.len() / 2, bytes.len() - 1];
    lengths.extend((0..64).map(|i| i * bytes.len() / 64));
    let path = scratch.0.join("file");
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path).expect("a file");
    file.write_all_at(&bytes, 0).expect("written");
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    for length in lengths {
        file.set_len(length as u64).expect("cut");
        assert!(matches!(notes::sites(&file), Err(NoteError::Elf(_))), "{length} bytes");
    }
}

#[test]
fn lengths_and_addresses_that_lie_are_errors() {
    let scratch = Scratch::new("lying");
    let honest = honest();
    let (header, note) = note_section(&honest);
    let with = |offset: usize, value: &[u8]| {
        let mut bytes = honest.clone();
        put(&mut bytes, offset, value);
        notes::sites(&scratch.file(&bytes))
    };
    let (size, place) = (header + 32, header + 24);
    let elf = |result: Result<_, NoteError>| matches!(result, Err(NoteError::Elf(_)));
    assert!(elf(with(note, &u32::MAX.to_le_bytes())), "name of 4 GiB");
    assert!(elf(with(note, &0xffff_fffcu32.to_le_bytes())), "name whose padding wraps");
    assert!(elf(with(note + 4, &u32::MAX.to_le_bytes())), "description of 4 GiB");
    assert!(elf(with(note + 4, &3u32.to_le_bytes())), "description shorter than its addresses");
    assert!(elf(with(note + 4, &24u32.to_le_bytes())), "description without strings");
    assert!(elf(with(note + 20, &u64::MAX.to_le_bytes())), "site at the end of the address space");
    assert!(elf(with(note + 36, &u64::MAX.to_le_bytes())), "semaphore there");
    assert!(elf(with(size, &u64::MAX.to_le_bytes())), "notes of 2^64 bytes");
    assert!(elf(with(size, &(64u64 << 30).to_le_bytes())), "notes of 64 GiB");
    assert!(elf(with(place, &u64::MAX.to_le_bytes())), "notes at the end of the offsets");
    assert!(elf(with(0x28, &u64::MAX.to_le_bytes())), "section headers there");
    assert!(elf(with(0x20, &(u64::MAX - 7).to_le_bytes())), "program headers there");
    assert!(elf(with(0x38, &u16::MAX.to_le_bytes())), "65535 program headers");
    assert!(elf(with(0x3c, &u16::MAX.to_le_bytes())), "65535 sections");
    assert!(elf(with(4, &[1])), "32 bits");
    assert!(elf(with(5, &[2])), "the other byte order");
    assert!(elf(with(0, b"#!/b")), "a script");
    assert_eq!(with(0x3c, &[0, 0]), Err(NoteError::NoProbes), "no section");
    assert_eq!(with(header + 4, &1u32.to_le_bytes()), Err(NoteError::NoProbes), "a section of another type");
    let strings = note + 12 + 8 + 24;
    assert_eq!(&honest[strings..strings + 8], b"hg\0grow\0");
    // A site named twice would count every hit twice.
    let next = note
        + 12
        + 8
        + (u32::from_le_bytes(honest[note + 4..note + 8].try_into().unwrap()) as usize).next_multiple_of(4);
    assert_eq!(with(next + 20, &honest[note + 20..note + 28]).map(|sites| sites.len()), Ok(13), "one site named twice");
    assert_eq!(with(strings, b"hj").map(|sites| sites.len()), Ok(13), "one note of another provider");
    assert_eq!(with(strings + 3, b"glow").map(|sites| sites.len()), Ok(13), "an unknown probe");
    assert_eq!(with(strings + 8, b"4@").map(|sites| sites.len()), Ok(13), "arguments elsewhere");
    assert_eq!(with(note + 20, &[0; 8]).map(|sites| sites.len()), Ok(13), "a site that the linker dropped");
    assert!(elf(with(note + 20, &honest[note + 36..note + 44])), "a site in data");
    assert!(elf(with(note + 36, &honest[note + 20..note + 28])), "a semaphore in code");
    assert_eq!(with(note + 36, &[0; 8]).map(|sites| sites.len()), Ok(13), "no semaphore");
}

#[test]
fn damaged_bytes_never_panic() {
    let scratch = Scratch::new("damaged");
    let honest = honest();
    let (header, note) = note_section(&honest);
    // A small generator of our own: the run is the same each time.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let path = scratch.0.join("file");
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path).expect("a file");
    file.write_all_at(&honest, 0).expect("written");
    let mut refused = 0;
    for _ in 0..3000 {
        let (from, span) = [(0, 64 * 13), (header & !63, 192), (note, 1200)][(random() % 3) as usize];
        let place = from + random() as usize % span;
        let value = random().to_le_bytes();
        let width = 1 + random() as usize % 8;
        file.write_all_at(&value[..width], place as u64).expect("damaged");
        refused += usize::from(notes::sites(&file).is_err());
        file.write_all_at(&honest[place..place + width], place as u64).expect("restored");
    }
    assert!(refused > 100, "{refused} of 3000: the damage did not reach what is read");
    assert_eq!(notes::sites(&file).map(|sites| sites.len()), Ok(14));
}

#[test]
fn huge_and_sparse_files_cost_nothing() {
    let scratch = Scratch::new("sparse");
    drop(scratch.file(&honest()));
    let file = File::options().write(true).read(true).open(scratch.0.join("file")).expect("the file");
    file.set_len(1 << 40).expect("a terabyte of nothing");
    assert_eq!(notes::sites(&file).map(|sites| sites.len()), Ok(14));
}

#[test]
fn only_regular_files_are_opened() {
    let scratch = Scratch::new("special");
    let fifo = scratch.0.join("fifo");
    let path = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: the path is terminated.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    // Opening a FIFO that nobody writes to would wait for ever.
    assert!(objects::open(&fifo).expect("looked at").is_none());
    assert!(objects::open(Path::new("/dev/zero")).expect("looked at").is_none());
    assert!(objects::open(&scratch.0).expect("looked at").is_none());
    let socket = scratch.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    assert!(objects::open(&socket).expect("looked at").is_none());
    assert!(objects::open(common::fire()).expect("opened").is_some());
    assert!(objects::open(&scratch.0.join("nothing")).is_err());
}

#[test]
fn processes_that_cannot_be_watched_say_why() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("processes_that_cannot_be_watched_say_why", why);
    }
    let attach = |pid| EbpfSource::attach(&[pid]).map(|source| source.sites());
    // A program without probes, with the number of files that were looked at.
    let mut sleep = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
    std::thread::sleep(std::time::Duration::from_millis(50));
    let error = attach(sleep.id()).expect_err("no probes");
    assert!(matches!(error, AttachError::NoProbes { looked_at: 1.., .. }), "{error}");
    assert!(error.to_string().contains("runs no code with probes of hg"), "{error}");
    sleep.kill().expect("killed");
    // Dead and not waited for, then gone.
    let error = attach(sleep.id()).expect_err("a zombie");
    assert!(matches!(error, AttachError::NoProcess(_) | AttachError::NoProbes { .. }), "{error}");
    let pid = sleep.id();
    sleep.wait().expect("waited for");
    let error = attach(pid).expect_err("gone");
    assert_eq!(error.to_string(), format!("process {pid} is gone"));
    // One of several: the others are watched, and the problem is told.
    let fire = common::Fire::start(&["once"]);
    let source = EbpfSource::attach(&[pid, fire.pid()]).expect("attached to one");
    assert_eq!(source.processes(), [fire.pid()]);
    assert_eq!(source.sites().problems, [format!("process {pid}: process {pid} is gone")]);
    fire.end();
}

#[test]
fn copies_of_the_library_are_attached_each_once() {
    if let Some(why) = common::cannot_trace() {
        return common::skipped("copies_of_the_library_are_attached_each_once", why);
    }
    let scratch = Scratch::new("copies");
    // The name holds what a terminal would obey.
    let copy = scratch.0.join("fire \x1b[31m");
    fs::copy(common::fire(), &copy).expect("copied");
    File::open(&copy).and_then(|file| file.sync_all()).expect("written");
    let (mut one, mut other) = (common::Fire::start(&["once"]), common::Fire::start_as(&copy, &["once"]));
    let third = common::Fire::start(&["once"]);
    let mut source = EbpfSource::attach(&[one.pid(), other.pid(), third.pid()]).expect("attached");
    let sites = source.sites();
    assert_eq!((sites.files.len(), sites.attached, sites.found), (2, 28, 28), "{sites:?}");
    assert!(sites.files.iter().all(|file| file.chars().all(|c| !c.is_control())), "{sites:?}");
    // A running file that is deleted can still be watched by those that run it.
    fs::remove_file(&copy).expect("deleted");
    one.fire();
    other.fire();
    let sample = source.poll().expect("a sample");
    let of = |pid| sample.events.iter().filter(|seen| seen.event.tgid == pid).count();
    assert_eq!((of(one.pid()), of(other.pid()), of(third.pid())), (10, 10, 0));
}
