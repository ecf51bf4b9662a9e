//! Probe sites of an ELF file, from its SystemTap notes.
//!
//! The file belongs to a watched process and may be anything: every length, offset and sum is checked, what does not fit
//! ends in an error and never in a panic, and no more than a bounded number of bytes is read, whatever the headers say.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use hg_probes::{Probe, ProbeId, maps};
use object::elf::{FileHeader64, PF_W, PF_X, PT_LOAD, SHT_NOTE};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian as Le, ReadCache, ReadCacheOps, ReadRef};

/// The provider of our probes.
const PROVIDER: &[u8] = b"hg";

/// Bytes of notes that are read: some 10 000 sites.
const MAX_NOTE_BYTES: u64 = 1 << 20;

/// Sections and program headers that are looked at.
const MAX_HEADERS: usize = 4096;

/// Bytes of one file that are read in all.
const MAX_READ: u64 = 8 << 20;

/// Sites that one file may have: a probe has one site in each copy of the allocator that was linked in.
pub const MAX_SITES: usize = 1024;

const NOTE_TYPE: u32 = 3;
const NOTE_NAME: &[u8] = b"stapsdt\0";

/// Why a file has no usable sites.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// It is no ELF file of 64 bits and this byte order, or it lies about itself.
    #[error("damaged or foreign ELF file: {0}")]
    Elf(&'static str),
    /// It is an ELF file without notes of provider `hg`.
    #[error("no probes of provider hg")]
    NoProbes,
    /// It has such notes, but none that this version can read.
    #[error("probes of provider hg, but none of them as this version knows them ({0} others)")]
    Unknown(usize),
}

/// Where a probe can be attached in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Which probe.
    pub probe: ProbeId,
    /// Its instruction, as an offset in the file.
    pub offset: u64,
    /// Its semaphore, as an offset in the file.
    pub semaphore: u32,
}

/// The sites of our probes in `file`, one per probe and copy of the allocator.
///
/// # Errors
/// If the file has none, or is not what it says it is.
pub fn sites(file: &File) -> Result<Vec<Site>, NoteError> {
    let cache = ReadCache::new(Capped { file, left: MAX_READ });
    let elf = Elf::parse(&cache)?;
    let mut found = Found::default();
    for section in &elf.note_sections {
        elf.notes(section, &mut found)?;
    }
    match (found.sites.is_empty(), found.unknown) {
        (false, _) => Ok(found.sites),
        (true, 0) => Err(NoteError::NoProbes),
        (true, unknown) => Err(NoteError::Unknown(unknown)),
    }
}

#[derive(Default)]
struct Found {
    sites: Vec<Site>,
    unknown: usize,
}

/// A loaded part of the file.
struct Segment {
    address: u64,
    offset: u64,
    file_size: u64,
    flags: u32,
}

struct Elf<'a, R: ReadRef<'a>> {
    data: R,
    segments: Vec<Segment>,
    /// Offset and size of each section of SystemTap notes.
    note_sections: Vec<(u64, u64)>,
    /// Address of `.stapsdt.base`, against which prelinked notes are corrected.
    base: u64,
    _data: std::marker::PhantomData<&'a ()>,
}

impl<'a, R: ReadRef<'a>> Elf<'a, R> {
    fn parse(data: R) -> Result<Self, NoteError> {
        let damaged = |what| move |_| NoteError::Elf(what);
        let header = FileHeader64::<Le>::parse(data).map_err(damaged("no header"))?;
        let endian = header.endian().map_err(damaged("byte order"))?;
        if usize::from(header.e_phnum.get(endian)) > MAX_HEADERS
            || usize::from(header.e_shnum.get(endian)) > MAX_HEADERS
        {
            return Err(NoteError::Elf("too many headers"));
        }
        let segments = header
            .program_headers(endian, data)
            .map_err(damaged("program headers"))?
            .iter()
            .filter(|segment| segment.p_type(endian) == PT_LOAD)
            .map(|segment| Segment {
                address: segment.p_vaddr(endian),
                offset: segment.p_offset(endian),
                file_size: segment.p_filesz(endian),
                flags: segment.p_flags(endian),
            })
            .collect();
        // A count of 0 with a table elsewhere means that the first section holds a larger one: more than we look at.
        if header.e_shnum.get(endian) == 0 {
            return Err(NoteError::NoProbes);
        }
        let sections = header.sections(endian, data).map_err(damaged("section headers"))?;
        let mut elf = Elf { data, segments, note_sections: Vec::new(), base: 0, _data: std::marker::PhantomData };
        for section in sections.iter() {
            // Names of foreign sections may be anything; only ours have to be readable.
            match sections.section_name(endian, section) {
                Ok(b".note.stapsdt") if section.sh_type(endian) == SHT_NOTE => {
                    elf.note_sections.push((section.sh_offset(endian), section.sh_size(endian)));
                }
                Ok(b".stapsdt.base") => elf.base = section.sh_addr(endian),
                _ => {}
            }
        }
        Ok(elf)
    }

    /// Walks the notes of one section.
    fn notes(&self, &(offset, size): &(u64, u64), found: &mut Found) -> Result<(), NoteError> {
        if size > MAX_NOTE_BYTES {
            return Err(NoteError::Elf("notes larger than 1 MiB"));
        }
        let bytes =
            self.data.read_bytes_at(offset, size).map_err(|()| NoteError::Elf("notes beyond the end of the file"))?;
        let mut rest = Cursor(bytes);
        while !rest.0.is_empty() {
            let (name, kind, description) = rest.note().ok_or(NoteError::Elf("a note longer than its section"))?;
            if kind == NOTE_TYPE && name == NOTE_NAME {
                self.note(Cursor(description), found)?;
            }
        }
        Ok(())
    }

    /// Reads one note: address, base, semaphore, then provider, name and arguments as strings.
    fn note(&self, mut note: Cursor<'_>, found: &mut Found) -> Result<(), NoteError> {
        let short = || NoteError::Elf("a note too short");
        let (address, base, semaphore) =
            (note.u64().ok_or_else(short)?, note.u64().ok_or_else(short)?, note.u64().ok_or_else(short)?);
        let (provider, name, arguments) =
            (note.string().ok_or_else(short)?, note.string().ok_or_else(short)?, note.string().ok_or_else(short)?);
        if provider != PROVIDER {
            return Ok(());
        }
        // A linker that drops the site of a probe nobody fires leaves the note.
        if address == 0 {
            return Ok(());
        }
        let known = hg_probes::PROBES.iter().find(|probe| probe.name.as_bytes() == name);
        let readable = |probe: &&Probe| semaphore != 0 && arguments == expected_arguments(probe.args.len()).as_bytes();
        let Some(probe) = known.filter(readable) else {
            found.unknown += 1;
            return Ok(());
        };
        if found.sites.len() >= MAX_SITES {
            return Err(NoteError::Elf("more than 1024 sites"));
        }
        let moved = self.base.wrapping_sub(base);
        let offset = self
            .file_offset(address.wrapping_add(moved), PF_X)
            .ok_or(NoteError::Elf("a probe outside of the file's code"))?;
        let semaphore = self
            .file_offset(semaphore.wrapping_add(moved), PF_W)
            .ok_or(NoteError::Elf("a semaphore outside of the file's data"))?;
        let semaphore = u32::try_from(semaphore).map_err(|_| NoteError::Elf("a semaphore beyond 4 GiB"))?;
        let site = Site { probe: probe.id, offset, semaphore };
        // Only a lying file names a site twice; attaching twice would count every hit twice.
        if maps::is_watched(site.probe) && !found.sites.iter().any(|other| other.offset == offset) {
            found.sites.push(site);
        }
        Ok(())
    }

    /// Where an address lies in the file, in a segment that is loaded with these rights.
    fn file_offset(&self, address: u64, flags: u32) -> Option<u64> {
        self.segments.iter().filter(|segment| segment.flags & flags != 0).find_map(|segment| {
            let within = address.checked_sub(segment.address)?;
            if within < segment.file_size { segment.offset.checked_add(within) } else { None }
        })
    }
}

/// The argument string of a probe of ours: the registers of the calling convention, 8 bytes each.
pub fn expected_arguments(count: usize) -> String {
    #[cfg(target_arch = "aarch64")]
    const REGISTERS: [&str; 6] = ["x0", "x1", "x2", "x3", "x4", "x5"];
    #[cfg(not(target_arch = "aarch64"))]
    const REGISTERS: [&str; 6] = ["%rdi", "%rsi", "%rdx", "%rcx", "%r8", "%r9"];
    let arguments: Vec<String> = REGISTERS.iter().take(count).map(|register| format!("8@{register}")).collect();
    arguments.join(" ")
}

/// What is left of a run of bytes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    /// Up to the next zero, which is taken too.
    fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let string = self.take(end)?;
        self.take(1)?;
        Some(string)
    }

    /// Name, type and description of the next note. Both parts are padded to 4 bytes, the last of a section maybe not.
    fn note(&mut self) -> Option<(&'a [u8], u32, &'a [u8])> {
        let (name_size, size, kind) = (self.u32()?, self.u32()?, self.u32()?);
        let name = self.padded(name_size)?;
        let description = self.padded(size)?;
        Some((name, kind, description))
    }

    fn padded(&mut self, size: u32) -> Option<&'a [u8]> {
        let size = usize::try_from(size).ok()?;
        let part = self.take(size)?;
        let padding = size.wrapping_neg() % 4;
        self.0 = self.0.get(padding..).unwrap_or_default();
        Some(part)
    }
}

/// A file of which only so many bytes may be read: headers that lie cost an error, not memory.
struct Capped<'a> {
    file: &'a File,
    left: u64,
}

impl ReadCacheOps for Capped<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(drop)
    }

    fn seek(&mut self, pos: u64) -> Result<u64, ()> {
        Seek::seek(&mut self.file, SeekFrom::Start(pos)).map_err(drop)
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        self.spend(buf.len())?;
        Read::read(&mut self.file, buf).map_err(drop)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), ()> {
        self.spend(buf.len())?;
        Read::read_exact(&mut self.file, buf).map_err(drop)
    }
}

impl Capped<'_> {
    fn spend(&mut self, bytes: usize) -> Result<(), ()> {
        self.left = self.left.checked_sub(bytes as u64).ok_or(())?;
        Ok(())
    }
}
