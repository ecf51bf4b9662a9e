//! The ring buffer of rare events, and the stacks that belong to them.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{MapData, RingBuf, StackTraceMap};
use hg_probes::maps::Event;

use super::RareEvent;
use crate::attach::SourceError;

/// Events taken at once: a target that fires without pause must not keep hg-top here.
const MOST: usize = 8192;

/// Stacks by their id.
type Stacks = HashMap<u32, Vec<u64>>;

pub(super) struct Events {
    ring: RingBuf<MapData>,
    stacks: StackTraceMap<MapData>,
    /// Stacks read in this and the last drain. A stack is taken out of the kernel as it is read, so another event with
    /// the same one finds it here.
    read: [Stacks; 2],
}

impl Events {
    pub(super) fn new(ring: RingBuf<MapData>, stacks: StackTraceMap<MapData>) -> Events {
        Events { ring, stacks, read: Default::default() }
    }

    /// The events that have come since the last time.
    pub(super) fn drain(&mut self) -> Result<Vec<RareEvent>, SourceError> {
        self.read.swap(0, 1);
        self.read[0].clear();
        let mut events = Vec::new();
        while events.len() < MOST {
            let Some(item) = self.ring.next() else { break };
            if item.len() < size_of::<Event>() {
                continue;
            }
            // SAFETY: the item has at least the size of an event, and any bytes are one.
            let event = unsafe { item.as_ptr().cast::<Event>().read_unaligned() };
            drop(item);
            events.push(RareEvent {
                event,
                stack: u32::try_from(event.stack).map_or_else(|_| Vec::new(), |id| self.stack(id)),
            });
        }
        Ok(events)
    }

    fn stack(&mut self, id: u32) -> Vec<u64> {
        if let Ok(trace) = self.stacks.get(&id, 0) {
            let stack: Vec<u64> = trace.frames().iter().map(|frame| frame.ip).collect();
            // The kernel refuses another stack in the same place, so places have to be given back.
            let _ = self.stacks.remove(&id);
            self.read[0].insert(id, stack);
        }
        let [now, before] = &self.read;
        now.get(&id).or_else(|| before.get(&id)).cloned().unwrap_or_default()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
