//! What a dead thread leaves: found, and given back.
//!
//! Locks put themselves right (`lock.rs`). What remains are a dead thread's busy pages, and its *suspects*: the entries in its
//! record, of cells that perhaps nobody else has. Most stand in a cache by now, or are somebody's: a record may name a cell too
//! much, never too little. So a suspect is lost only if its state is CACHED and it is in no front cache, not in the transfer cache, and in no
//! living thread's record.
//!
//! That can be told while all others run: the class's front caches are stopped, and every sequence that began before is waited
//! for; from then on, and while the class's lock is held, a cell of the class cannot enter a cache. A living thread that has the
//! suspect has it in its record until it is LIVE, or until it gets the lock. So if two looks at all records, each after a look
//! at a state that is CACHED, do not find it, nobody has it. (One look would not do: between its two halves a thread may hand
//! the cell out, and free it again.)

use super::Arena;
use super::core::{Entry, TRANSFER};
use super::lock::Guard;
use super::mutex::{Mutex, Taken};
use crate::cell::CACHED;
use crate::size_class::COUNT;
use crate::sys::{rseq, thread};
use core::sync::atomic::Ordering::*;
use hg_probes::catalogue::args;
use hg_probes::directory::{BATCH, ThreadRecord};
use hg_probes::emit;
use hg_probes::words::{LockId, Reason};

/// What a search for dead threads found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Threads that ended or were killed, and whose records are free again.
    pub threads: u32,
    /// Cells that only they had.
    pub cells: u32,
    /// Pages that they were committing or giving back.
    pub pages: u32,
    /// Threads whose record is kept, because something could not be told yet: the next search goes on.
    pub kept: u32,
}

impl Arena {
    /// Looks for threads that ended, and gives back what only they had. Any process may call it at any time; others run on. It may
    /// move the calling thread to other CPUs for a moment.
    pub fn recover(&self) -> Recovered {
        // To stop front caches takes a record.
        self.record();
        self.recover_dead()
    }

    /// The same, by a thread that may have no record yet: what only such a thread could tell is kept.
    pub(super) fn recover_dead(&self) -> Recovered {
        let mut found = Recovered::default();
        let own = thread::record(self.index);
        self.core().somebody_died.store(0, Relaxed);
        self.take_left_locks();
        for record in self.threads().filter(|record| core::ptr::from_ref(*record) as usize != own) {
            if record.used.load(Acquire) == 0 {
                continue;
            }
            let mutex = Mutex::of(&record.alive);
            match mutex.try_lock() {
                Taken::No => continue,
                Taken::Yes => {}
                Taken::FromDead => mutex.consistent(),
            }
            if record.used.load(Acquire) != 0 {
                self.recover_record(record, &mut found);
            }
            mutex.unlock();
        }
        found
    }

    /// Puts right what stands under locks that dead owners left, where nobody did yet.
    fn take_left_locks(&self) {
        let core = self.core();
        if core.grid.lock.is_left() {
            drop(core.grid.lock.lock(self, Reason::Drain));
        }
        for (class, pool) in core.pools.iter().enumerate() {
            if pool.lock.is_left() {
                drop(self.lock_class(class, Reason::Drain));
            }
        }
    }

    /// Gives back what the dead thread of a record had. Under the record's mutex.
    fn recover_record(&self, record: &ThreadRecord, found: &mut Recovered) {
        found.pages += self.abandon_pages(record) as u32;
        self.settle_slot(record);
        let mut kept = false;
        for class in 0..COUNT {
            if !entries(record).any(|entry| self.locate(class, entry).is_some()) {
                continue;
            }
            // Under the lock: what a dead owner had done to states and to the transfer cache is undone by then.
            let is_suspect = |entry: &Entry| self.is_cached(class, *entry);
            let guard = self.lock_class(class, Reason::Drain);
            let seen =
                guard.is_some() && entries(record).filter(is_suspect).all(|entry| self.is_seen_in_cache(class, entry));
            drop(guard);
            if seen {
                continue;
            }
            match self.settle_suspects(class, record) {
                Some(cells) => found.cells += cells,
                None => kept = true,
            }
        }
        if kept {
            found.kept += 1;
            return;
        }
        found.threads += 1;
        self.recount_fronts();
        self.open_stopped_by(record);
        self.bury_process(record.process.load(Relaxed) as usize, Some(record));
        record.batch_len.store(0, Relaxed);
        record.in_flight.store(0, Relaxed);
        record.used.store(0, Release);
    }

    /// Opens what the dead thread of a record stopped.
    fn open_stopped_by(&self, record: &ThreadRecord) {
        let word = self.index_of(record) as u32 + 1;
        for class in 0..COUNT {
            if self.core().pool(class).stopped_by.load(Relaxed) == word {
                // The record's mutex is ours: to the lock's next owner its thread seems to live.
                let guard = self.core().pool(class).lock.lock_again(self, Reason::Drain);
                if guard.is_from_dead() {
                    self.finish_for_dead(&guard, class);
                }
                self.thaw(guard, class);
            }
        }
    }

    /// Whether an entry is of this class, and its cell is CACHED.
    fn is_cached(&self, class: usize, entry: Entry) -> bool {
        self.locate(class, entry).is_some() && self.state(entry).is_some_and(|state| state.load(Acquire) == CACHED)
    }

    /// Whether an entry stands in a cache now: then it is not lost, whatever becomes of it. It may be missed in a front cache.
    /// Under the class's lock.
    fn is_seen_in_cache(&self, class: usize, entry: Entry) -> bool {
        let in_front = |block: usize| {
            (0..self.front_length(block, class))
                .any(|index| self.front_entry(block, class, index).load(Relaxed) == entry.0)
        };
        let in_deferred = || self.core().deferred.iter().any(|word| word.load(Relaxed) == entry.0);
        (0..self.layout.blocks).any(in_front) || self.is_in_transfer(class, entry) || in_deferred()
    }

    fn is_in_transfer(&self, class: usize, entry: Entry) -> bool {
        let pool = self.core().pool(class);
        let length = (pool.transfer_len.load(Relaxed) as usize).min(TRANSFER);
        pool.transfer.iter().take(length).any(|word| word.load(Relaxed) == entry.0)
    }

    /// Gives back the suspects of a class that are lost. `None` if that cannot be told now.
    fn settle_suspects(&self, class: usize, record: &ThreadRecord) -> Option<u32> {
        let guard = self.freeze(class)?;
        let mut cells = 0;
        for entry in entries(record) {
            let suspect = self.is_cached(class, entry) && !self.is_seen_in_cache(class, entry);
            let lost = suspect
                && !self.is_in_living_hands(entry, record)
                && self.is_cached(class, entry)
                && !self.is_in_living_hands(entry, record);
            if lost {
                self.put_central(&guard, class, entry);
                guard.commit();
                cells += 1;
            } else if suspect && self.is_cached(class, entry) {
                // In the hands of a thread that may have pushed it just before: the next search sees.
                self.thaw(guard, class);
                return None;
            }
        }
        self.thaw(guard, class);
        if cells > 0 {
            self.stats_page().header.recovered.fetch_add(cells.into(), Relaxed);
            self.count(|process| &process.recovered, cells.into());
            let (lock, dead_tid) = (LockId::class(self.cell_size(class)), record.tid.load(Relaxed));
            emit::owner_dead(|| args::owner_dead { arena: self.number, lock, dead_tid, cells_recovered: cells });
        }
        Some(cells)
    }

    /// Whether a thread that lives, or whose record somebody looks after, has an entry in its record.
    fn is_in_living_hands(&self, entry: Entry, except: &ThreadRecord) -> bool {
        self.threads().any(|record| {
            !core::ptr::eq(record, except)
                && record.used.load(Acquire) != 0
                && Mutex::of(&record.alive).owner_lives()
                && (record.in_flight.load(Acquire) == entry.0
                    || record.batch.iter().take(batch_len(record)).any(|word| word.load(Acquire) == entry.0))
        })
    }

    /// Stops a class's front caches, waits for all sequences that began before, and puts all cells in them back into their spans.
    /// `None` if that cannot be done: somebody else is at it, a CPU is out of reach, or the calling thread has no record yet to
    /// say who stopped them. Ends with [`thaw`](Self::thaw).
    pub(super) fn freeze(&self, class: usize) -> Option<Guard<'_>> {
        let (pool, record) = (self.core().pool(class), self.hot.record()?);
        let guard = self.lock_class(class, Reason::Drain)?;
        let stopper = (pool.stopped_by.load(Relaxed) as usize).checked_sub(1);
        if stopper.is_some_and(|stopper| self.thread_lives(stopper)) {
            return None;
        }
        pool.stopped_by.store(self.index_of(record) as u32 + 1, Release);
        self.stop_fronts(class);
        drop(guard);
        let quiet = self.wait_for_sequences(class);
        let guard = loop {
            match self.lock_class(class, Reason::Drain) {
                Some(guard) => break guard,
                None => thread::yield_now(),
            }
        };
        if !quiet {
            self.thaw(guard, class);
            return None;
        }
        for block in 0..self.layout.blocks {
            let top = &self.head(block, class).top;
            while let Some(index) = self.front_length(block, class).checked_sub(1) {
                let entry = Entry(self.front_entry(block, class, index).load(Relaxed));
                guard.commit();
                guard.set(top, index as u32);
                self.put_central(&guard, class, entry);
            }
        }
        guard.commit();
        Some(guard)
    }

    /// Lets everybody use a class's front caches again.
    pub(super) fn thaw(&self, guard: Guard, class: usize) {
        self.open_fronts(class);
        self.core().pool(class).stopped_by.store(0, Release);
        drop(guard);
    }

    /// Waits until no thread is in a sequence that began before the call on any array that was used: in a private arena by the
    /// kernel's fence, in a shared one by running on each CPU for a moment, as whoever was in a sequence there was switched out
    /// and begins anew. False if a CPU cannot be reached.
    fn wait_for_sequences(&self, class: usize) -> bool {
        if !self.is_shared() {
            return self.id_is_standin() || rseq::fence();
        }
        let mut used = (0..self.layout.blocks).filter(|block| self.front_is_used(*block, class)).peekable();
        if used.peek().is_none() {
            return true;
        }
        let Some(before) = thread::affinity() else { return false };
        let reached = used.all(|cpu| thread::run_on(cpu) && self.block().is_none_or(|block| block == cpu));
        thread::set_affinity(&before);
        reached
    }

    /// A class's lock; what its dead owner had begun in two parts is finished first, and front caches that a dead thread
    /// stopped are opened.
    pub(super) fn lock_class(&self, class: usize, reason: Reason) -> Option<Guard<'_>> {
        let pool = self.core().pool(class);
        let guard = pool.lock.lock(self, reason)?;
        if guard.is_from_dead() {
            self.finish_for_dead(&guard, class);
        }
        if let Some(stopper) = (pool.stopped_by.load(Relaxed) as usize).checked_sub(1)
            && !self.thread_lives(stopper)
        {
            self.open_fronts(class);
            pool.stopped_by.store(0, Release);
        }
        Some(guard)
    }

    /// Counts a lock that was put right.
    pub(super) fn note_repair(&self, lock: LockId, dead_tid: u32) {
        self.core().somebody_died.store(1, Relaxed);
        self.stats_page().header.owner_deaths.fetch_add(1, Relaxed);
        emit::owner_dead(|| args::owner_dead { arena: self.number, lock, dead_tid, cells_recovered: 0 });
    }
}

/// All entries in a record: those of its batch, and the cell in flight.
fn entries(record: &ThreadRecord) -> impl Iterator<Item = Entry> {
    let batch = record.batch.iter().take(batch_len(record));
    batch.chain([&record.in_flight]).map(|word| Entry(word.load(Acquire))).filter(|entry| entry.0 != 0)
}

/// Number of entries in a record's batch.
pub(super) fn batch_len(record: &ThreadRecord) -> usize {
    (record.batch_len.load(Acquire) as usize).min(BATCH)
}
