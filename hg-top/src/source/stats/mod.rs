//! The stats-page source: reads what the arenas of a process show of themselves, without a lock, a signal or the
//! target's help.
//!
//! | module | what |
//! |---|---|
//! | [`discover`] | which mappings are stats pages, which processes run on hg |
//! | [`memory`], [`pagemap`] | reading another process's memory, and which pages it has |
//! | [`copy`] | a copy of a page in which every block is whole |
//! | [`decode`] | from the copy to the model |
//! | [`directory`] | the processes that share an arena |
//! | [`map`], [`keeps`] | the pages of an arena's grid, and what keeps one of them |
//!
//! The target is hostile: every length, count and address is checked before use, every string is escaped. A read may take as
//! long as it pleases: whoever calls this does so in a thread that can be left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

pub mod copy;
pub mod decode;
pub mod directory;
pub mod discover;
pub mod keeps;
pub mod map;
pub mod memory;
pub mod pagemap;

use copy::{PageCopy, PageError, denied_or_gone};
use discover::Region;
use memory::Memory;

use crate::model::{Arena, FileId, Shared};
use crate::process::monotonic_ns;

/// How long the list of a process's pages is believed; finding new ones means reading its whole memory map.
const REDISCOVER: Duration = Duration::from_secs(5);

/// How long a page may stay unwritten after it was mapped.
const START: Duration = Duration::from_millis(500);

/// The arenas of one process.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Those that are its alone, by their number in the process.
    pub private: BTreeMap<u32, Arena>,
    /// Those that it shares and that were read through it.
    pub shared: BTreeMap<FileId, Shared>,
    /// All that it shares.
    pub maps: BTreeSet<FileId>,
}

/// The stats pages of one process.
pub struct StatsSource {
    pid: u32,
    regions: Vec<Region>,
    discovered: Instant,
}

impl StatsSource {
    /// Finds the pages of `pid`; an error if there are none.
    pub fn open(pid: u32) -> Result<StatsSource, PageError> {
        let source = StatsSource { pid, regions: find(pid)?, discovered: Instant::now() };
        source.await_start();
        Ok(source)
    }

    /// A process that has just started writes the magic of its page last: gives it a moment.
    fn await_start(&self) {
        let unwritten = |region: &Region| {
            let mut magic = [0; 8];
            let memory = Memory::of(self.pid);
            let read = if region.shared { Memory::read } else { Memory::read_present };
            read(memory, region.start, &mut magic).is_ok_and(|whole| whole && magic == [0; 8])
        };
        while self.discovered.elapsed() < START && self.regions.iter().all(unwritten) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Reads all pages but those in `left_out`, which are read through other processes. Blocks that keep changing come from
    /// `last`, marked as torn. An error if there are pages to be read and none of them can be.
    pub fn read(&mut self, last: &Found, left_out: &BTreeSet<FileId>) -> Result<Found, PageError> {
        if self.discovered.elapsed() > REDISCOVER {
            self.rediscover()?;
        }
        match self.read_known(last, left_out) {
            // An exec, or an arena that went away: look again before giving up.
            Err(PageError::Damaged { .. }) => {
                self.rediscover()?;
                self.read_known(last, left_out)
            }
            result => result,
        }
    }

    fn rediscover(&mut self) -> Result<(), PageError> {
        self.regions = find(self.pid)?;
        self.discovered = Instant::now();
        Ok(())
    }

    fn read_known(&self, last: &Found, left_out: &BTreeSet<FileId>) -> Result<Found, PageError> {
        let mut found = Found::default();
        let mut failure = None;
        for region in &self.regions {
            let file = region.file;
            if region.shared && left_out.contains(&file) {
                found.maps.insert(file);
                continue;
            }
            let copy = match PageCopy::take(self.pid, *region) {
                Ok(copy) => copy,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            if region.shared && decode::is_shared(&copy) {
                found.maps.insert(file);
                found.shared.insert(file, self.shared(&copy, *region, last.shared.get(&file)));
            } else {
                let number = decode::number(&copy);
                let arena = decode::arena(&copy, *region, self.pid, last.private.get(&number));
                found.private.entry(number).or_insert(arena);
            }
        }
        match failure {
            Some(error) if found.private.is_empty() && found.maps.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    fn shared(&self, copy: &PageCopy, region: Region, last: Option<&Shared>) -> Shared {
        Shared {
            number: decode::number(copy),
            arena: decode::arena(copy, region, self.pid, last.map(|last| &last.arena)),
            members: directory::members(copy, self.pid),
            reader: self.pid,
            read_at: monotonic_ns(),
            ..Shared::default()
        }
    }
}

fn find(pid: u32) -> Result<Vec<Region>, PageError> {
    let regions = discover::regions(pid).map_err(|error| denied_or_gone(pid, &error))?;
    if !regions.is_empty() {
        return Ok(regions);
    }
    // A zombie has an empty memory map.
    match crate::process::Process::state(pid) {
        Ok(state) if state != 'Z' && state != 'X' => Err(PageError::NotOnHg(pid)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(PageError::NotOnHg(pid)),
        _ => Err(PageError::Gone(pid)),
    }
}
