//! Attached programs: made one link per file where the kernel has links to many sites, else one perf event per site; and
//! let go without waiting.
//!
//! Links go to the inode behind an open descriptor, in all processes. The kernel raises the semaphores itself, now and in
//! processes that map the file later, and lowers them when the link goes.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::error::AttachError;
use super::notes::Site;
use super::program::Program;
use super::rights::Capability;
use super::sys;
use super::tracefs::Tracefs;

const PMU: &str = "/sys/bus/event_source/devices/uprobe";

const NEEDED: &[Capability] = &[Capability::Perfmon, Capability::Bpf];

/// How programs are attached to sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// One link for all sites of a file, kernel 6.6.
    Multi,
    /// A perf event and a link for each site.
    Perf,
}

/// Everything that is attached. Dropping it detaches, in the background.
#[derive(Default)]
pub(crate) struct Links {
    fds: Vec<OwnedFd>,
}

impl Links {
    /// Attaches the program to sites of a file. The attach cookie is the probe's number.
    ///
    /// # Errors
    /// If the kernel refuses; nothing of the file is attached then.
    pub(crate) fn add_sites(&mut self, program: &Program, file: &File, sites: &[Site]) -> Result<(), AttachError> {
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let refused = |error| AttachError::of("attach to a probe", error, NEEDED);
        if program.link_kind() == LinkKind::Multi {
            let column = |of: fn(&Site) -> u64| sites.iter().map(of).collect::<Vec<u64>>();
            let (offsets, cookies) = (column(|site| site.offset), column(|site| site.probe as u64));
            let semaphores = column(|site| u64::from(site.semaphore));
            self.fds.push(sys::link_multi(program.probe(), &path, &offsets, &semaphores, &cookies).map_err(refused)?);
            return Ok(());
        }
        let pmu = pmu()?;
        let mut fds = Vec::with_capacity(2 * sites.len());
        for site in sites {
            let event = sys::uprobe_event(pmu, &path, site.offset, site.semaphore).map_err(refused)?;
            fds.push(sys::link_perf(program.probe(), event.as_fd(), site.probe as u64).map_err(refused)?);
            fds.push(event);
        }
        self.fds.append(&mut fds);
        Ok(())
    }

    /// Attaches the program that follows children.
    ///
    /// # Errors
    /// If there is no tracefs, the kernel's record is unknown, or the kernel refuses.
    pub(crate) fn add_newtask(&mut self, program: &Program) -> io::Result<()> {
        let event = sys::tracepoint_event(Tracefs::open()?.newtask()?)?;
        self.fds.push(sys::link_perf(program.newtask(), event.as_fd(), 0)?);
        self.fds.push(event);
        Ok(())
    }
}

impl Drop for Links {
    /// Closing takes the kernel up to 100 ms a link. So the descriptors go to a process of their own: ours are closed while
    /// its copies live, which costs nothing, and then it closes the last ones by its exit.
    fn drop(&mut self) {
        if self.fds.is_empty() {
            return;
        }
        // SAFETY: both children only make system calls that are safe after a fork of a threaded process, and end by
        // `_exit`. The first one is waited for at once and leaves the second to init.
        unsafe {
            match libc::fork() {
                0 => {
                    if libc::fork() == 0 {
                        // A pipe or terminal that hg-top writes to must not stay open for the closing's sake.
                        for fd in 0..=2 {
                            libc::close(fd);
                        }
                        // Give hg-top time to close its copies first, so that this exit is the one that pays.
                        libc::usleep(20_000);
                    }
                    libc::_exit(0)
                }
                // No process to be had: the wait is ours then.
                -1 => {}
                child => {
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
            }
        }
        self.fds.clear();
    }
}

/// The number of the kernel's uprobe PMU.
///
/// # Errors
/// If it has none that keeps semaphores.
pub(crate) fn pmu() -> Result<u32, AttachError> {
    let read = |name: &str| fs::read_to_string(format!("{PMU}/{name}")).ok();
    let number = read("type").and_then(|text| text.trim().parse().ok()).ok_or(AttachError::NoUprobes(PMU))?;
    // In this place since the kernel has had it at all (4.20).
    match read("format/ref_ctr_offset") {
        Some(format) if format.trim() == "config:32-63" => Ok(number),
        _ => Err(AttachError::NoUprobes("ref_ctr_offset of the uprobe PMU")),
    }
}
