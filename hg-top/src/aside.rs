//! Work that may never return, done in threads that can be left behind.
//!
//! A watched process owns the memory that is read of it. Where it answers page faults itself, or holds up its own memory map,
//! a read lasts as long as it pleases, so no thread that draws or answers keys does one. A thread that is left behind costs
//! its stack until its work returns; it keeps nobody from ending.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long the work on one thing may take before it is said that it does not answer.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// The same for a process that is read for the first time: it may have just started.
pub const FIRST: Duration = Duration::from_secs(1);

/// How often one who waits looks whether to go on waiting.
const STEP: Duration = Duration::from_millis(50);

/// Things of a list that may fail to answer before the rest of it is given up.
const MAX_SILENT: usize = 4;

/// Work under way.
#[derive(Debug)]
pub struct Aside<T> {
    answer: Receiver<T>,
    since: Instant,
}

impl<T: Send + 'static> Aside<T> {
    /// Starts it; `bell` rings when it is done.
    pub fn start(bell: &Bell, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Aside<T>> {
        let (done, answer) = channel();
        let ring = bell.ring.clone();
        thread(move || {
            // Nobody takes it: hg-top is about to end. A bell that cannot be rung is ringing already.
            if done.send(work()).is_ok() {
                let _ = (&*ring).write(&[1]);
            }
        })?;
        Ok(Aside { answer, since: Instant::now() })
    }

    /// What came of it, if it is done by `end` and before `stop` says that nobody wants to know.
    pub fn wait(&self, end: Option<Instant>, stop: impl Fn() -> bool) -> Option<T> {
        while !stop() && end.is_none_or(|end| Instant::now() < end) {
            match self.answer.recv_timeout(STEP) {
                Err(RecvTimeoutError::Timeout) => {}
                answer => return answer.ok(),
            }
        }
        None
    }

    /// What came of it, if it is done.
    pub fn answer(&self) -> Option<T> {
        self.answer.try_recv().ok()
    }

    /// When it was started.
    pub fn since(&self) -> Instant {
        self.since
    }
}

/// Does `work` on each of `items`, one after the other: what came of each, in their order, and `None` for those on which the
/// work did not return. After some of these the rest is not tried.
pub fn each<I, T>(items: &[I], work: fn(I) -> T) -> io::Result<Vec<Option<T>>>
where
    I: Copy + Send + 'static,
    T: Send + 'static,
{
    let mut found = Vec::with_capacity(items.len());
    for _ in 0..MAX_SILENT {
        let (done, answers) = channel();
        let rest = items[found.len()..].to_vec();
        let count = rest.len();
        thread(move || {
            for item in rest {
                if done.send(work(item)).is_err() {
                    return;
                }
            }
        })?;
        found.extend((0..count).map_while(|_| answers.recv_timeout(PATIENCE).ok()).map(Some));
        if found.len() == items.len() {
            break;
        }
        found.push(None);
    }
    found.resize_with(items.len(), || None);
    Ok(found)
}

fn thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("hg-top-read".into()).spawn(work).map(drop)
}

/// Readable when something is done.
#[derive(Debug)]
pub struct Bell {
    ring: Arc<UnixStream>,
    heard: UnixStream,
}

impl Bell {
    /// A silent one.
    pub fn new() -> io::Result<Bell> {
        let (ring, heard) = UnixStream::pair()?;
        // Neither side may be held up by a full or an empty pipe.
        ring.set_nonblocking(true)?;
        heard.set_nonblocking(true)?;
        Ok(Bell { ring: Arc::new(ring), heard })
    }

    /// Readable when it was rung.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }

    /// Silences it.
    pub fn acknowledge(&self) {
        let mut bytes = [0; 64];
        while (&self.heard).read(&mut bytes).is_ok_and(|read| read > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::readable;

    /// Takes far longer than anybody waits.
    fn long(item: u32) -> u32 {
        if item.is_multiple_of(10) {
            std::thread::sleep(Duration::from_secs(30));
        }
        item + 1
    }

    #[test]
    fn the_bell_rings_when_work_is_done() {
        let bell = Bell::new().unwrap();
        let stuck = Aside::start(&bell, || long(10)).unwrap();
        let begin = Instant::now();
        let quick = Aside::start(&bell, || long(1)).unwrap();
        assert_eq!(crate::wake::wait([Some(bell.fd())], Duration::from_secs(10)), [true]);
        assert!((quick.answer(), stuck.answer()) == (Some(2), None));
        bell.acknowledge();
        assert!(!readable(bell.fd()) && begin.elapsed() < Duration::from_secs(10));
        assert!(stuck.since() <= begin);
        let quick = Aside::start(&bell, || long(1)).unwrap();
        assert_eq!(quick.wait(None, || false), Some(2));
        let end = Instant::now() + Duration::from_millis(10);
        assert!((stuck.wait(Some(end), || false), stuck.wait(None, || true)) == (None, None));
    }

    #[test]
    fn a_bell_that_nobody_hears_holds_up_nothing() {
        let bell = Bell::new().unwrap();
        while (&*bell.ring).write(&[1; 4096]).is_ok() {}
        let aside = Aside::start(&bell, || 7).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        let mut answer = None;
        while answer.is_none() && Instant::now() < end {
            answer = aside.answer();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(answer, Some(7));
        bell.acknowledge();
        assert!(!readable(bell.fd()));
    }

    #[test]
    fn one_that_does_not_answer_does_not_hide_the_others() {
        assert_eq!(each(&[1, 2, 10, 3], long).unwrap(), [Some(2), Some(3), None, Some(4)]);
        assert_eq!(each(&[], long).unwrap(), []);
        let begin = Instant::now();
        let many: Vec<u32> = (1..=100).map(|item| item * 10).collect();
        assert!(each(&many, long).unwrap().iter().all(Option::is_none));
        assert!(begin.elapsed() < 2 * PATIENCE * MAX_SILENT as u32, "{:?}", begin.elapsed());
    }
}
