//! Maintenance by the host: a program without the allocator's own thread calls [`hg_alloc::tick`] from a loop that it has anyway.

use std::time::{Duration, Instant};

/// How often.
const PERIOD: Duration = Duration::from_millis(100);

/// A host's loop.
#[derive(Debug)]
pub struct Host {
    due: Instant,
}

impl Host {
    /// A host whose first step is due at once.
    pub fn new() -> Host {
        Host { due: Instant::now() }
    }

    /// To be called again and again; makes a step of maintenance when one is due.
    pub fn tick(&mut self) {
        if Instant::now() >= self.due {
            hg_alloc::tick();
            self.due = Instant::now() + PERIOD;
        }
    }
}

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}
