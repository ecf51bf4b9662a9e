//! The grid read run by run, for reports: some runs per hold of the lock, and the next call goes on where the last one
//! ended. In between runs may split and join, so a report is a picture of many moments.
//!
//! Called by `elastic/pinned.rs`.

use super::SharedGrid;
use super::tables::Kind;
use hg_probes::words::Reason;

/// Slices that one call looks at in search of a run's head: between two calls the one to go on with may have gone.
const SEARCH: u32 = 256;

/// A run, or slices of which none was a head.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) kind: Kind,
    pub(crate) head: u32,
    pub(crate) slices: u32,
}

impl Stretch {
    pub(crate) const NONE: Stretch = Stretch { kind: Kind::None, head: 0, slices: 0 };
}

impl SharedGrid {
    /// Copies the runs from a slice on in one hold of the lock, and tells how many. None: the slice is behind the last one.
    pub(crate) fn copy_runs(&self, from: u32, runs: &mut [Stretch]) -> usize {
        let Some(grid) = self.lock.lock(Reason::Policy) else { return 0 };
        let mut next = from;
        let mut copied = 0;
        for run in runs {
            if next >= grid.top {
                break;
            }
            let head = grid.tables.kind(next);
            let (kind, slices) = match head {
                Kind::None | Kind::FreeTail => {
                    let end = next.saturating_add(SEARCH).min(grid.top);
                    let found =
                        (next..end).find(|slice| !matches!(grid.tables.kind(*slice), Kind::None | Kind::FreeTail));
                    (Kind::None, found.unwrap_or(end) - next)
                }
                kind => (kind, grid.tables.length(next).clamp(1, grid.top - next)),
            };
            *run = Stretch { kind, head: next, slices };
            copied += 1;
            next += slices;
            if kind == Kind::None {
                break;
            }
        }
        copied
    }
}
