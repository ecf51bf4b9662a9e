//! What every OpenSIPS exports, whichever allocators it was built with: sizes, the table of processes, thresholds, the log's level.

use crate::symbols::{self, variable};
use core::ffi::{CStr, c_int, c_long, c_ulong, c_void};
use core::ptr::null_mut;

/// See the module.
pub(super) struct Facts {
    pub(super) pkg_bytes: *mut c_ulong,
    pub(super) shm_bytes: *mut c_ulong,
    processes: Option<*mut *mut c_void>,
    /// The threshold of pkg's events, and what raises them.
    pkg_threshold: Option<(*mut c_long, unsafe extern "C" fn())>,
    /// The level that dumps are logged at, and the log's own.
    dump_level: Option<(*mut c_int, *mut *mut c_int)>,
    /// Whether callers tell where they are.
    pub(super) has_sites: bool,
}

// SAFETY: pointers to variables of the executable, which is mapped as long as the process lives.
unsafe impl Sync for Facts {}

impl Facts {
    /// Finds them; else the name of what is missing, or of what this library cannot take over.
    pub(super) fn find() -> Result<Facts, &'static CStr> {
        // Builds that count memory by module keep an index in each block.
        if [c"shm_stats_get_index", c"fm_stats_get_index"].iter().any(|name| symbols::find(name).is_some()) {
            return Err(c"built with SHM_EXTRA_STATS");
        }
        // SAFETY: it takes nothing and returns nothing.
        let check = unsafe { symbols::function(c"pkg_threshold_check") };
        Ok(Facts {
            pkg_bytes: variable(c"pkg_mem_size").ok_or(c"pkg_mem_size")?,
            shm_bytes: variable(c"shm_mem_size").ok_or(c"shm_mem_size")?,
            processes: variable(c"pt"),
            pkg_threshold: variable(c"event_pkg_threshold").zip(check),
            dump_level: variable(c"memdump").zip(variable(c"log_level")),
            // What builds with debugging arguments alone have: the log of shm's blocks, or second forms of functions.
            has_sites: [c"shm_dbg_mem_init", c"fm_malloc_dbg", c"qm_malloc_dbg"]
                .iter()
                .any(|name| symbols::find(name).is_some()),
        })
    }

    /// The table of processes; null until the core sets it, then a block of shared memory.
    pub(super) fn table(&self) -> *mut c_void {
        // SAFETY: a variable of the executable.
        self.processes.map_or(null_mut(), |table| unsafe { *table })
    }

    /// What the server's own allocators do after each call for pkg: events of its threshold.
    #[inline(always)]
    pub(super) fn check_pkg_threshold(&self) {
        if let Some((threshold, check)) = self.pkg_threshold {
            // SAFETY: a variable of the executable, and its function, called where its own allocators would.
            unsafe {
                if *threshold != 0 {
                    check();
                }
            }
        }
    }

    /// Whether a dump shows up in the server's log now; always, where the server does not say.
    pub(super) fn is_dump_logged(&self) -> bool {
        self.dump_level.is_none_or(|(dump, log)| {
            // SAFETY: variables of the executable; the log's level is a pointer that the core keeps valid.
            unsafe { *dump <= **log }
        })
    }
}
