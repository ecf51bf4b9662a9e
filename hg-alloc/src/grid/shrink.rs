//! Giving memory back: free runs that were used before go to the system, in two phases.
//!
//! Under the lock a run is taken out of its pool, so that nobody can get it; without the lock the system call is made;
//! under the lock the run becomes Released, or Dirty again if the kernel refused. At no time is it in no pool and not
//! counted: `releasing` tells a fork of it.
//!
//! What a page needs before it goes, and which parts of it may go, `backing/release.rs` knows.

use super::runs::{Bins, Pool};
use super::tables::Kind;
use super::{Grid, SharedGrid};
use crate::backing::pages::Change;
use crate::backing::release;
use crate::size_class::SLICE;
use crate::sys::clock;
use core::sync::atomic::Ordering::Relaxed;
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::words::{Cause, Reason};

/// Runs given back by one call; more stay for the next.
const BUDGET: u32 = 4096;

/// Chunks of cell states that stay where free memory stays (1 MiB).
const KEPT_CHUNKS: usize = 64;

/// Runs whose records one call gives back.
const RUNS: usize = 64;

impl SharedGrid {
    /// Gives free memory back until at most `keep` slices of it are left, or the floor is reached. Returns the bytes.
    pub(crate) fn shrink(&self, keep: u32, cause: Cause) -> u64 {
        self.shrink_by(u32::MAX, keep, cause)
    }

    /// Slices that were free throughout the last epoch of maintenance, and those free now; a new epoch begins.
    pub(crate) fn begin_epoch(&self) -> (u32, u32) {
        let Some(mut grid) = self.lock.lock(Reason::Policy) else { return (0, 0) };
        let free = grid.free_slices();
        (core::mem::replace(&mut grid.low_water, free), free)
    }

    /// Committed slices that nobody has.
    pub(crate) fn free_slices(&self) -> u32 {
        self.lock.lock(Reason::Policy).map_or(0, |grid| grid.free_slices())
    }

    /// As [`shrink`](Self::shrink), but at most `most` slices.
    pub(crate) fn shrink_by(&self, most: u32, keep: u32, cause: Cause) -> u64 {
        let start = clock::now_ns();
        // A request about to fail needs the free memory joined, whatever is to stay committed.
        let to_floor = !matches!(cause, Cause::Exhausted | Cause::Pressure);
        let splits = matches!(cause, Cause::Idle | Cause::Trim | Cause::Pressure);
        let mut last_bytes = 0;
        let mut given = 0;
        for _ in 0..BUDGET {
            let Some(mut grid) = self.lock.lock(Reason::Shrink) else { break };
            let left = most.saturating_sub((given / SLICE as u64) as u32).min(grid.above_floor(to_floor));
            let Some((head, length)) = grid.candidate(keep, left, splits) else { break };
            grid.tables.set_run(head, Kind::Busy, length);
            grid.releasing += 1;
            grid.limbo += length;
            grid.publish();
            let tables = grid.tables;
            drop(grid);

            let gone = release::give_back(&tables, head, length);
            tables.give_back_records(head, length);

            let mut grid = self.lock.lock_again(Reason::Shrink);
            grid.releasing = grid.releasing.saturating_sub(1);
            grid.limbo = grid.limbo.saturating_sub(length);
            grid.put_back(Pool::Released, head, gone);
            grid.put_back(Pool::Dirty, head + gone, length - gone);
            let header = grid.page.map(|page| &page.header);
            let change = grid.pages.settle(&tables, head, gone, header);
            last_bytes = grid.committed_bytes();
            grid.publish();
            drop(grid);
            Change::tell(change, self.lock.arena());
            given += u64::from(gone) * SLICE as u64;
            if gone < length {
                break;
            }
        }
        // After what holds memory: at the floor, what holds none is what stays.
        let left = most.saturating_sub((given / SLICE as u64) as u32);
        given += self.release_fresh(left, keep, to_floor, &mut last_bytes);
        if given > 0 || keep == 0 {
            let halved = self.has_halved();
            if keep == 0 || halved {
                self.give_back_records();
            }
            self.give_back_chunks(if keep == 0 || halved { 0 } else { KEPT_CHUNKS });
        }
        if given > 0 {
            let arena = self.lock.arena();
            self.count_shrink();
            emit::shrink(|| args::shrink {
                arena,
                old_bytes: last_bytes + given,
                new_bytes: last_bytes,
                cause,
                ns: clock::now_ns().saturating_sub(start),
            });
        }
        given
    }

    /// Whether less than half is committed of what was when this was last so: a reason to look after tables.
    fn has_halved(&self) -> bool {
        self.lock.lock(Reason::Shrink).is_some_and(|mut grid| {
            let halved = grid.committed_slices() < grid.table_mark / 2;
            if halved {
                grid.table_mark = grid.committed_slices();
            }
            halved
        })
    }

    /// Counts memory that was never touched since it was committed as given back, but for `keep` slices: it holds none. Some
    /// runs per hold of the lock, `most` slices in all. Returns the bytes.
    fn release_fresh(&self, most: u32, keep: u32, to_floor: bool, committed: &mut u64) -> u64 {
        let mut given = 0;
        for _ in 0..BUDGET / RUNS as u32 {
            let Some(mut grid) = self.lock.lock(Reason::Shrink) else { break };
            let tables = grid.tables;
            let mut moved = 0;
            for _ in 0..RUNS {
                let spare = grid.bins.slices(Pool::Fresh).saturating_sub(keep).min(grid.above_floor(to_floor));
                let left = most.saturating_sub(((given + moved) / SLICE as u64) as u32).min(spare);
                let longest = grid.bins.longest(&tables, Pool::Fresh).filter(|_| left > 0);
                let Some((head, length)) = longest else { break };
                let wanted = length.min(left);
                // A huge page of which a part is in use holds the rest as well.
                let part = release::releasable(&tables, head + length - wanted, wanted, false);
                let Some((first, taken)) = part else { break };
                grid.bins.remove(&tables, Pool::Fresh, head);
                grid.put_back(Pool::Fresh, head, first - head);
                grid.put_back(Pool::Fresh, first + taken, head + length - first - taken);
                grid.bins.insert(&tables, Pool::Released, first, taken);
                grid.pages.uncommit(&tables, first, taken);
                moved += u64::from(taken) * SLICE as u64;
            }
            if moved == 0 {
                break;
            }
            *committed = grid.committed_bytes();
            grid.publish();
            given += moved;
        }
        given
    }

    /// Gives back the records of the longest runs that hold no memory any more: pieces that went one by one left theirs.
    fn give_back_records(&self) {
        let Some(mut grid) = self.lock.lock(Reason::Shrink) else { return };
        let tables = grid.tables;
        let mut runs = [(0, 0); RUNS];
        for run in &mut runs {
            let Some((head, length)) = grid.bins.longest(&tables, Pool::Released) else { break };
            grid.bins.remove(&tables, Pool::Released, head);
            tables.set_run(head, Kind::Busy, length);
            *run = (head, length);
        }
        let length = runs.iter().map(|(_, length)| length).sum::<u32>();
        grid.releasing += 1;
        grid.limbo_released += length;
        grid.publish();
        drop(grid);

        let taken = runs.iter().filter(|(_, length)| *length > 0);
        taken.clone().for_each(|(head, length)| tables.give_back_records(*head, *length));

        let mut grid = self.lock.lock_again(Reason::Shrink);
        grid.releasing = grid.releasing.saturating_sub(1);
        grid.limbo_released = grid.limbo_released.saturating_sub(length);
        taken.for_each(|(head, length)| grid.bins.insert(&tables, Pool::Released, *head, *length));
        grid.publish();
    }

    fn count_shrink(&self) {
        if let Some(grid) = self.lock.lock(Reason::Policy)
            && let Some(page) = grid.page
        {
            page.header.shrinks.store(page.header.shrinks.load(Relaxed) + 1, Relaxed);
        }
    }
}

impl Grid {
    /// Slices that may be given back before the floor is reached.
    fn above_floor(&self, to_floor: bool) -> u32 {
        let committed = self.committed_slices();
        if to_floor { committed.saturating_sub(self.floor) } else { committed }
    }

    /// Takes the next run to give back out of its pool, at most `most` slices, if more than `keep` slices are free. Of a run
    /// that is not taken whole its end goes, as far as the pages that it lies on allow (`backing/release.rs`). Where some are to
    /// stay, the longest do: they serve more requests.
    fn candidate(&mut self, keep: u32, most: u32, splits: bool) -> Option<(u32, u32)> {
        let most = self.bins.slices(Pool::Dirty).saturating_sub(keep).min(most);
        let next = if keep == 0 { Bins::longest } else { Bins::shortest };
        let (head, length) = next(&self.bins, &self.tables, Pool::Dirty).filter(|_| most > 0)?;
        let wanted = length.min(most);
        let (first, taken) = release::releasable(&self.tables, head + length - wanted, wanted, splits)?;
        let end = first + taken;
        self.bins.remove(&self.tables, Pool::Dirty, head);
        self.put_back(Pool::Dirty, head, first - head);
        self.put_back(Pool::Dirty, end, head + length - end);
        Some((first, taken))
    }
}
