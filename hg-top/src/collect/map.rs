//! Reads page maps in a thread of its own: a large arena must not hold up the screen, and memory of a hostile target may
//! answer no read at all. At most one request is under way.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::model::map::{Detail, Page, PageMap};
use crate::model::{ArenaId, Figures, Snapshot};
use crate::process::Process as Proc;
use crate::source::stats::copy::denied_or_gone;
use crate::source::stats::{keeps, map};

/// How long an answer may take before it is said that there is none.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is to be read.
#[derive(Clone, Debug)]
pub struct Request {
    /// Of which arena.
    pub arena: ArenaId,
    /// Through which process it is read.
    pub pid: u32,
    /// Start of the process: another of the same pid is not read.
    pub start_ticks: u64,
    /// The arena's figures, which say where its records lie.
    pub figures: Figures,
    /// The map, if it need not be read again.
    pub known: Option<Arc<PageMap>>,
    /// Pages to look at closely.
    pub pages: Range<usize>,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Answer {
    /// As in the request.
    pub arena: ArenaId,
    /// The map and what keeps the pages, or why there is none.
    pub found: Result<(Arc<PageMap>, Option<Detail>), String>,
}

/// The thread that reads.
pub struct MapReader {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
    wake: UnixStream,
    asked: Option<Instant>,
}

impl MapReader {
    /// Starts it.
    pub fn start() -> io::Result<MapReader> {
        let (requests, incoming) = channel::<Request>();
        let (outgoing, answers) = channel();
        let (wake, mut ready) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let work = move || {
            for request in incoming {
                let answer = Answer { arena: request.arena, found: read(request) };
                // Nobody takes it: hg-top is about to end.
                if outgoing.send(answer).is_err() || ready.write_all(&[1]).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("hg-top-map".into()).spawn(work)?;
        Ok(MapReader { requests, answers, wake, asked: None })
    }

    /// Asks, unless a request is under way.
    pub fn ask(&mut self, request: Request) {
        if self.asked.is_none() && self.requests.send(request).is_ok() {
            self.asked = Some(Instant::now());
        }
    }

    /// The answer, if it has come.
    pub fn answer(&mut self) -> Option<Answer> {
        self.acknowledge();
        let answer = self.answers.try_recv().ok()?;
        self.asked = None;
        Some(answer)
    }

    /// Empties the pipe: a full one would hold the thread up.
    fn acknowledge(&self) {
        let mut bytes = [0; 8];
        while (&self.wake).read(&mut bytes).is_ok_and(|read| read > 0) {}
    }

    /// Asks, and waits for the answer: `None` if it does not come in time.
    pub fn read(&mut self, request: Request) -> Option<Answer> {
        self.ask(request);
        let answer = self.answers.recv_timeout(PATIENCE).ok()?;
        self.acknowledge();
        self.asked = None;
        Some(answer)
    }

    /// Whether a request has had no answer for too long.
    pub fn stuck(&self) -> bool {
        self.asked.is_some_and(|asked| asked.elapsed() > PATIENCE)
    }

    /// Readable when an answer has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The pages of an arena, and what keeps each of them.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The map.
    pub map: Arc<PageMap>,
    /// What keeps the pages that are not wholly free, by their number.
    pub details: BTreeMap<usize, Detail>,
}

/// Pages by arena; or why there are none.
pub type Maps = BTreeMap<ArenaId, Result<Pages, String>>;

/// Pages that are looked at closely, of one arena.
const MAX_DETAILS: usize = 8192;

/// The pages of all arenas of a snapshot.
pub fn read_all(snapshot: &Snapshot) -> io::Result<Maps> {
    let mut maps = Maps::new();
    for of in snapshot.arenas() {
        let (Some(figures), Some(reader)) = (&of.arena.figures, of.reader(snapshot)) else { continue };
        let first = Request {
            arena: of.id,
            pid: reader.identity.pid,
            start_ticks: reader.identity.start_ticks,
            figures: figures.clone(),
            known: None,
            pages: 0..0,
        };
        // A thread each: one that is stuck does not answer for the next arena.
        maps.insert(of.id, read_pages(&mut MapReader::start()?, first));
    }
    Ok(maps)
}

fn read_pages(reader: &mut MapReader, first: Request) -> Result<Pages, String> {
    let silent = || "the process's memory does not let itself be read within 5 s".to_owned();
    let (map, _) = reader.read(first.clone()).ok_or_else(silent)?.found?;
    let mut details = BTreeMap::new();
    let kept = |(number, page): (usize, &Page)| (page.slices.span + page.slices.large > 0).then_some(number);
    for page in map.pages.iter().enumerate().filter_map(kept).take(MAX_DETAILS) {
        let request = Request { known: Some(map.clone()), pages: page..page + 1, ..first.clone() };
        if let (_, Some(detail)) = reader.read(request).ok_or_else(silent)?.found? {
            details.insert(page, detail);
        }
    }
    Ok(Pages { map, details })
}

fn read(request: Request) -> Result<(Arc<PageMap>, Option<Detail>), String> {
    let Request { pid, start_ticks, figures, known, pages, .. } = request;
    let same = || Proc::start_ticks(pid).is_ok_and(|ticks| ticks == start_ticks);
    let gone = || format!("process {pid} ended");
    let failed = |error: &io::Error| denied_or_gone(pid, error).to_string();
    if !same() {
        return Err(gone());
    }
    let map = match known {
        Some(map) => map,
        None => match map::read(pid, &figures).map_err(|error| failed(&error))? {
            Some(map) => Arc::new(map),
            None => return Err("its stats page tells of no records of the grid".into()),
        },
    };
    let detail = keeps::look(pid, &figures, &map, pages).map_err(|error| failed(&error))?;
    // Whatever was read belongs to this process only if it is still there.
    if same() { Ok((map, detail)) } else { Err(gone()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Records;

    fn request(pid: u32, start_ticks: u64, figures: Figures) -> Request {
        Request { arena: ArenaId::Private(pid, 1), pid, start_ticks, figures, known: None, pages: 0..1 }
    }

    #[test]
    fn a_process_that_is_gone_or_another_or_has_no_records() {
        let mut reader = MapReader::start().unwrap();
        let me = std::process::id();
        let ticks = Proc::start_ticks(me).unwrap();
        let mut read = |request| reader.read(request).unwrap().found.unwrap_err();
        assert!(read(request(0x3fff_ffff, 1, Figures::default())).contains("ended"));
        assert!(read(request(me, ticks + 1, Figures::default())).contains("ended"));
        assert!(read(request(me, ticks, Figures::default())).contains("no records"));
        let nowhere =
            Records { runs: 8, spans: 8, descriptors: u64::MAX, top: u64::MAX, top_at: 8, ..Records::default() };
        let figures = Figures { page_bytes: 2 << 20, slice_bytes: 32 << 10, records: nowhere, ..Figures::default() };
        let found = reader.read(request(me, ticks, figures)).unwrap().found;
        let (map, detail) = found.unwrap();
        assert_eq!(map.total().slices.damaged, map::MAX_SLICES, "nothing there can be read");
        assert!(map.left_out > 1 << 40 && detail.is_some());
        for _ in 0..2000 {
            assert!(reader.read(request(me, ticks, Figures::default())).is_some(), "the thread is held up");
        }
        assert!(reader.answer().is_none() && !reader.stuck());
    }
}
