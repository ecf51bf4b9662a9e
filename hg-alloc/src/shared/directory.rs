//! Who uses an arena: a record for each process, and one for each thread, in the arena's own memory.
//!
//! A thread takes a record at its first call, and holds the robust mutex in it as long as it lives; so the kernel tells when it
//! does not. The record has what may be in nobody else's hands: the cell of the call that it is in, and a batch between two
//! caches. A record of a dead thread is looked after (`recover.rs`) before it is somebody else's.
//!
//! Lock: the grid's, to take a new place. Words of a record are written by its thread, then by who holds its mutex.

use super::Arena;
use super::mutex::{Mutex, Taken};
use crate::sys::{clock, text, thread};
use core::sync::atomic::{AtomicU64, Ordering::*};
use hg_probes::directory::{PROCESSES, ProcessRecord, THREADS, ThreadRecord, state};
use hg_probes::words::{LockId, Reason};

/// Value of `used` in a record that is somebody's.
const USED: u32 = 1;

impl Arena {
    /// The calling thread's record, taken now if it has none yet. `None` in a signal handler that came in the middle of that,
    /// and where there are too many threads.
    #[inline(always)]
    pub(super) fn record(&self) -> Option<&'static ThreadRecord> {
        if let Some(record) = self.hot.record() {
            return Some(record);
        }
        self.take_record()
    }

    #[cold]
    fn take_record(&self) -> Option<&'static ThreadRecord> {
        let (process, index) = self.take_places().or_else(|| {
            // Full, perhaps of the dead: where nobody ticks, nobody looked for them. Not in a handler that interrupted a holder,
            // who would be waited for.
            if thread::rank() == 0 {
                self.recover_dead();
            }
            (0..PROCESSES).for_each(|index| self.bury_process(index, None));
            self.take_places()
        })?;
        let record = self.thread(index)?;
        record.tid.store(thread::tid(), Relaxed);
        record.process.store(process as u32, Relaxed);
        for word in [&record.batch_len, &record.busy_first, &record.busy_count] {
            word.store(0, Relaxed);
        }
        record.in_flight.store(0, Relaxed);
        record.sample_left.store(0, Relaxed);
        record.slot.store(0, Relaxed);
        record.used.store(USED, Release);
        thread::set_record(self.index, core::ptr::from_ref(record) as usize);
        Some(record)
    }

    /// A place for the calling process, and one for the thread, whose mutex it has then.
    fn take_places(&self) -> Option<(usize, usize)> {
        let core = self.core();
        let process = self.take_process()?;
        let known = core.grid.threads.load(Acquire) as usize;
        if let Some(index) = (0..known.min(THREADS)).find(|index| self.try_take(*index)) {
            return Some((process, index));
        }
        let grid = core.grid.lock.lock(self, Reason::Policy)?;
        let index = core.grid.threads.load(Relaxed) as usize;
        let mutex = Mutex::of(&self.thread(index)?.alive);
        mutex.initialise();
        mutex.try_lock();
        grid.set(&core.grid.threads, index as u32 + 1);
        Some((process, index))
    }

    /// Takes the mutex of a record that is nobody's. One whose thread died is left to `recover`.
    fn try_take(&self, index: usize) -> bool {
        let Some(record) = self.thread(index).filter(|record| record.used.load(Relaxed) == 0) else { return false };
        let mutex = Mutex::of(&record.alive);
        match mutex.try_lock() {
            Taken::Yes if record.used.load(Relaxed) == 0 => true,
            // A thread that died before it used the record.
            Taken::FromDead => {
                mutex.consistent();
                let unused = record.used.load(Relaxed) == 0;
                if !unused {
                    mutex.unlock();
                }
                unused
            }
            Taken::Yes => {
                mutex.unlock();
                false
            }
            Taken::No => false,
        }
    }

    /// A thread's record.
    pub(super) fn thread(&self, index: usize) -> Option<&'static ThreadRecord> {
        let at = self.tables + self.layout.threads + index * size_of::<ThreadRecord>();
        // SAFETY: S12, there are THREADS records.
        (index < THREADS).then(|| unsafe { &*(at as *const ThreadRecord) })
    }

    /// The number of a record.
    pub(super) fn index_of(&self, record: &ThreadRecord) -> usize {
        (core::ptr::from_ref(record) as usize - self.tables - self.layout.threads) / size_of::<ThreadRecord>()
    }

    /// Records that are in use or were.
    pub(super) fn threads(&self) -> impl Iterator<Item = &'static ThreadRecord> {
        let count = self.core().grid.threads.load(Acquire) as usize;
        (0..count.min(THREADS)).filter_map(|index| self.thread(index))
    }

    /// Whether the thread of a record lives.
    pub(super) fn thread_lives(&self, index: usize) -> bool {
        self.thread(index)
            .is_some_and(|record| record.used.load(Relaxed) == USED && Mutex::of(&record.alive).owner_lives())
    }

    fn process_at(&self, index: usize) -> Option<&'static ProcessRecord> {
        let at = self.tables + self.layout.processes + index * size_of::<ProcessRecord>();
        // SAFETY: S12, there are PROCESSES records.
        (index < PROCESSES).then(|| unsafe { &*(at as *const ProcessRecord) })
    }

    /// The record of the process of a thread's record.
    fn process_of(&self, record: &ThreadRecord) -> Option<&'static ProcessRecord> {
        self.process_at(record.process.load(Relaxed) as usize)
    }

    /// The record of the calling process, taken now if it has none yet.
    pub(super) fn process(&self) -> Option<&'static ProcessRecord> {
        self.record().and_then(|record| self.process_of(record))
    }

    /// Counts something that the calling process did, if it has a record: none is taken for this, in the middle of taking one.
    pub(super) fn count(&self, counter: impl FnOnce(&ProcessRecord) -> &AtomicU64, amount: u64) {
        if let Some(process) = self.hot.record().and_then(|record| self.process_of(record)) {
            counter(process).fetch_add(amount, Relaxed);
        }
    }

    /// The record of the calling process, taken now if it has none.
    fn take_process(&self) -> Option<usize> {
        let pid = thread::pid();
        let start = start_ticks();
        let _grid = self.core().grid.lock.lock(self, Reason::Policy)?;
        let is_own =
            |record: &ProcessRecord| record.pid.load(Relaxed) == pid && record.start_ticks.load(Relaxed) == start;
        let find = |wanted: u32| {
            (0..PROCESSES).find(|index| {
                self.process_at(*index).is_some_and(|record| match record.state.load(Relaxed) {
                    state::LIVE => wanted == state::LIVE && is_own(record),
                    other => wanted == other,
                })
            })
        };
        if let Some(own) = find(state::LIVE) {
            return Some(own);
        }
        let index = find(state::FREE).or_else(|| find(state::DEAD))?;
        let record = self.process_at(index)?;
        for word in [
            &record.refills,
            &record.flushes,
            &record.large_allocs,
            &record.large_frees,
            &record.grows,
            &record.shrinks,
            &record.failed,
            &record.corruptions,
            &record.repairs,
            &record.recovered,
            &record.stalls,
            &record.stall_ns,
            &record.stall_at_ns,
        ] {
            word.store(0, Relaxed);
        }
        record.set_role("");
        record.cpus.store(0, Relaxed);
        record.pid.store(pid, Relaxed);
        record.start_ticks.store(start, Relaxed);
        record.state.store(state::LIVE, Release);
        Some(index)
    }

    /// Marks a process dead if no thread of it is left here, but perhaps that of `except`, and it is gone.
    pub(super) fn bury_process(&self, index: usize, except: Option<&ThreadRecord>) {
        let Some(process) = self.process_at(index).filter(|process| process.state.load(Acquire) == state::LIVE) else {
            return;
        };
        let has_threads = self.threads().any(|thread| {
            thread.used.load(Relaxed) == USED
                && thread.process.load(Relaxed) as usize == index
                && except.is_none_or(|except| !core::ptr::eq(thread, except))
        });
        if !has_threads && is_gone(process) {
            process.state.store(state::DEAD, Release);
        }
    }

    /// Says what the calling process does, for whoever looks: at most 64 bytes, whole characters.
    pub fn set_role(&self, role: &str) {
        if let Some(process) = self.process() {
            process.set_role(role);
        }
    }

    /// Counts a wait or a hold over the threshold.
    pub(super) fn note_stall(&self, lock: LockId, ns: u64) {
        // Not taken for this: the caller may hold a lock.
        if let Some(process) = self.hot.record().and_then(|record| self.process_of(record)) {
            process.stalls.fetch_add(1, Relaxed);
            process.stall_ns.store(ns, Relaxed);
            process.stall_at_ns.store(clock::now_ns(), Relaxed);
            process.stall_lock.store(lock.0, Relaxed);
        }
    }
}

/// When this process started, clock ticks after boot; 0 if the kernel does not tell.
fn start_ticks() -> u64 {
    look_at(b"self").map_or(0, |(_, ticks)| ticks)
}

/// Whether a process is there no more, or only for its parent to see how it ended. Of another pid namespace this tells nothing;
/// but a process without a thread in the directory loses its counters at most.
fn is_gone(process: &ProcessRecord) -> bool {
    let mut digits = [0; 20];
    let pid = text::decimal(process.pid.load(Relaxed).into(), &mut digits);
    look_at(pid.as_bytes())
        .is_none_or(|(state, ticks)| matches!(state, b'Z' | b'X') || ticks != process.start_ticks.load(Relaxed))
}

/// The state of a process, a letter, and when it started, clock ticks after boot.
fn look_at(pid: &[u8]) -> Option<(u8, u64)> {
    let mut found = None;
    text::lines(&text::Path::<128>::new().with(b"/proc/").with(pid).with(b"/stat"), |line| {
        // The name in parentheses may hold anything; the start is the 20th field behind it.
        let rest = line.iter().rposition(|byte| *byte == b')').and_then(|end| line.get(end + 2..)).unwrap_or_default();
        let ticks = rest.split(|byte| *byte == b' ').nth(19).and_then(text::number);
        found = rest.first().copied().zip(ticks);
        false
    });
    found
}
