//! Arenas in a file: for processes that have nothing in common but that file, found by its name or passed as a descriptor.
//!
//! ```text
//! | stats page | guard | tables | guard | user memory | guard |
//! ```
//! One mapping, which lies at the same addresses in every process: the first one chooses them far from where programs and
//! libraries are mapped, and the head of the tables says so to the others. Whoever opens a file is of the same user; still
//! everything that the file says is checked against what this version would have written.
//!
//! Lock: none. Callers: `named.rs`, and hosts that pass descriptors.

use super::core::{Core, FINGERPRINT, MAGIC, VERSION};
use super::create::{self, Place, handles};
use super::fill;
use super::layout::Layout;
use super::options::{self, Error, Options};
use super::{ARENAS, Arena, named};
use crate::sys::file::{File, Identity};
use crate::sys::memory::{self, HUGE_PAGE};
use crate::sys::{Errno, env, thread};
use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};
use hg_probes::page::{self, StatsPage};

/// Bytes of the file before the guard in front of the tables.
const STATS: usize = size_of::<StatsPage>().next_multiple_of(HUGE_PAGE);

/// Where a mapping may begin: first where nothing else is usually mapped, then, for emulators that know small addresses only,
/// below that.
const REGIONS: [(u64, u64); 2] = [(0x2000_0000_0000, 0x5000_0000_0000), (0x0200_0000_0000, 0x0e00_0000_0000)];

/// Places that are tried in each region.
const TRIES: usize = 8;

/// Numbers of arenas in files, drawn: they are the same in all processes, so they must not meet those that each process gives.
const FIRST_NUMBER: u32 = 100_000;
const NUMBERS: u32 = 900_000;

/// The greatest number of CPUs that is believed.
const MOST_CPUS: u32 = 8192;

/// What this process knows of the file of each handle.
struct Known {
    device: AtomicU64,
    /// Not 0 once the handle is one of an arena in a file.
    inode: AtomicU64,
    /// A descriptor that was kept, or -1.
    kept: AtomicI32,
}

static KNOWN: [Known; ARENAS] =
    [const { Known { device: AtomicU64::new(0), inode: AtomicU64::new(0), kept: AtomicI32::new(-1) } }; ARENAS];

/// Makes a shared arena whose descriptor can be passed to other processes ([`Arena::pass_on`]).
pub fn create_passed(options: &Options) -> Result<&'static Arena, Error> {
    let file = File::memory(page::NAME)?;
    let arena = create_in(&file, options)?;
    file.seal()?;
    if let Some(known) = KNOWN.get(arena.index) {
        known.kept.store(file.into_number(), Release);
    }
    Ok(arena)
}

/// Opens the arena of a descriptor that [`Arena::pass_on`] gave in another process; it stays the caller's.
pub fn open_descriptor(number: i32) -> Result<&'static Arena, Error> {
    open_in(&File::duplicate(number)?)
}

/// Makes a shared arena in an empty file.
pub(super) fn create_in(file: &File, options: &Options) -> Result<&'static Arena, Error> {
    let arena = create::create_at(options, |bytes| {
        let bytes = STATS.checked_add(bytes).ok_or(Errno(libc::ENOMEM))?;
        file.resize(bytes)?;
        let stats = map_somewhere(file, bytes)?;
        // What is written first must be there: a full file system would kill by a signal.
        memory::populate(stats, STATS)
            .and_then(|()| memory::populate(stats + STATS + HUGE_PAGE, size_of::<Core>()))
            .inspect_err(|_| memory::unmap(stats, bytes))?;
        let number = FIRST_NUMBER + thread::random() as u32 % NUMBERS;
        Ok(Place { mapping: stats + STATS, stats, in_file: true, number: Some(number) })
    })?;
    remember(arena, file.identity()?);
    Ok(arena)
}

/// Opens the arena in a file of which nothing is known.
pub(super) fn open_in(file: &File) -> Result<&'static Arena, Error> {
    let identity = file.identity()?;
    if !identity.is_regular() || !file.is_in_memory() || !file.is_writable() {
        return Err(Error::NotAnArena);
    }
    if !identity.is_own() {
        return Err(Error::Unsafe);
    }
    if let Some(arena) = known(identity) {
        return Ok(arena);
    }
    let head = Head::read(file, identity.bytes).ok_or(Error::NotAnArena)?;
    match memory::map_file(head.stats, identity.bytes as usize, file.number()) {
        Ok(()) => {}
        // By another thread that is just opening the same, perhaps.
        Err(Errno(libc::EEXIST)) => return opened_meanwhile(identity).ok_or(Error::AddressTaken),
        Err(errno) => return Err(errno.into()),
    }
    let place = Place { mapping: head.stats + STATS, stats: head.stats, in_file: true, number: None };
    let arena = create::open_at(place, head.layout, head.cap_bytes, head.flags).inspect_err(|_| {
        memory::unmap(head.stats, identity.bytes as usize);
    })?;
    remember(arena, identity);
    Ok(arena)
}

/// What the head of the tables says, checked.
struct Head {
    stats: usize,
    cap_bytes: usize,
    flags: u32,
    layout: Layout,
}

impl Head {
    fn read(file: &File, bytes: u64) -> Option<Head> {
        let (mut page, mut core) = ([0; 64], [0; 128]);
        if !file.read_at(&mut page, 0) || !file.read_at(&mut core, (STATS + HUGE_PAGE) as u64) {
            return None;
        }
        let long = |at: usize| Some(u64::from_le_bytes(core.get(at..at + 8)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(core.get(at..at + 4)?.try_into().ok()?));
        let is_page =
            page.starts_with(&page::MAGIC.to_le_bytes()) && page.get(8..12) == Some(&page::VERSION.to_le_bytes());
        let cap_bytes = long(offset_of!(Core, cap_bytes))?;
        let cpus = word(offset_of!(Core, cpus))?;
        let stats = long(offset_of!(Core, stats))? as usize;
        let flags = word(offset_of!(Core, flags))?;
        let is_known = is_page
            && long(offset_of!(Core, magic))? == MAGIC
            && word(offset_of!(Core, version))? == VERSION
            && long(offset_of!(Core, fingerprint))? == FINGERPRINT
            && options::is_cap(cap_bytes)
            && fill::is_in_file(flags)
            // Each CPU that we may run on has to have its front caches.
            && (env::possible_cpus()..=MOST_CPUS as usize).contains(&(cpus as usize));
        if !is_known {
            return None;
        }
        let layout = Layout::new(cap_bytes as usize, cpus as usize);
        let tables = stats.checked_add(STATS + HUGE_PAGE)?;
        let user = tables.checked_add(layout.bytes + HUGE_PAGE)?;
        let end = user.checked_add(cap_bytes as usize + HUGE_PAGE)?;
        let is_placed = stats.is_multiple_of(HUGE_PAGE)
            && REGIONS.iter().any(|(from, to)| *from <= stats as u64 && end as u64 <= *to)
            && long(offset_of!(Core, tables))? == tables as u64
            && long(offset_of!(Core, user))? == user as u64
            && (end - stats) as u64 == bytes;
        is_placed.then_some(Head { stats, cap_bytes: cap_bytes as usize, flags, layout })
    }
}

/// Maps a file where nothing else is.
fn map_somewhere(file: &File, bytes: usize) -> Result<usize, Errno> {
    for (from, to) in REGIONS {
        let places = (to - from).saturating_sub(bytes as u64) / HUGE_PAGE as u64;
        for _ in 0..TRIES {
            let address = (from + thread::random() % places * HUGE_PAGE as u64) as usize;
            match memory::map_file(address, bytes, file.number()) {
                Ok(()) => return Ok(address),
                // Taken, or not for programs under this emulator.
                Err(Errno(libc::EEXIST | libc::EINVAL | libc::ENOMEM)) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Err(Errno(libc::ENOMEM))
}

fn remember(arena: &Arena, identity: Identity) {
    if let Some(known) = KNOWN.get(arena.index) {
        known.device.store(identity.device, Relaxed);
        known.inode.store(identity.inode, Release);
    }
}

impl Known {
    fn is(&self, identity: Identity) -> bool {
        self.inode.load(Acquire) == identity.inode && self.device.load(Relaxed) == identity.device
    }
}

/// The handle of a file that is open already.
fn known(identity: Identity) -> Option<&'static Arena> {
    handles().find(|arena| KNOWN.get(arena.index).is_some_and(|known| known.is(identity)))
}

fn opened_meanwhile(identity: Identity) -> Option<&'static Arena> {
    (0..100).find_map(|_| {
        known(identity).or_else(|| {
            thread::pause(100_000);
            None
        })
    })
}

impl Arena {
    /// A new descriptor of an arena in a file, close-on-exec and the caller's, to be passed to a process of the same user.
    pub fn pass_on(&self) -> Result<i32, Error> {
        let known = KNOWN.get(self.index).filter(|known| known.inode.load(Acquire) != 0).ok_or(Error::NotPassed)?;
        let file = match known.kept.load(Acquire) {
            -1 => named::file_of(self)?,
            // A daemon closes all descriptors, and another file may have the number now.
            number => File::duplicate(number).map_err(|_| Error::Absent)?,
        };
        if known.is(file.identity()?) { Ok(file.into_number()) } else { Err(Error::Absent) }
    }
}
