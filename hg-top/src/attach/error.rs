//! What can go wrong between a process id and attached probes; each answer says what, where, why, and what now.

use std::io;

use super::rights::{Capability, Refusal};

/// Why a process cannot be watched through eBPF. The stats page can be read all the same unless the process is gone.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no such process.
    #[error("process {0} is gone")]
    NoProcess(u32),
    /// The kernel refuses to.
    #[error("not permitted to {doing}: {refusal}; figures of the stats page only")]
    NotPermitted {
        /// What was refused.
        doing: &'static str,
        /// Why, as far as it can be told.
        refusal: Refusal,
    },
    /// None of the process's files has probes that can be read.
    #[error("process {pid} runs no code with probes of hg (looked at {looked_at} files{}); figures of the stats page only", list(.reasons))]
    NoProbes {
        /// Process.
        pid: u32,
        /// Files with executable mappings.
        looked_at: usize,
        /// Files that had something like probes, and why they are no use.
        reasons: Vec<String>,
    },
    /// The kernel has no uprobes.
    #[error("this kernel has no uprobes (CONFIG_UPROBE_EVENTS, looked for {0}); figures of the stats page only")]
    NoUprobes(&'static str),
    /// hg-top runs in a container's process namespace, where the kernel's process ids cannot be told.
    #[error(
        "hg-top runs in a pid namespace of its own, but the kernel names processes by those of the host; \
             run hg-top on the host; figures of the stats page only"
    )]
    PidNamespace,
    /// The BPF object does not load.
    #[error("the BPF program does not load: {0}; figures of the stats page only")]
    Load(String),
    /// There are more processes than one program can watch.
    #[error("more than {} processes to watch", hg_probes::maps::MAX_PROCESSES)]
    TooMany,
    /// Something else failed.
    #[error("cannot {doing}: {source}; figures of the stats page only")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl AttachError {
    /// The error of a step that needs `wanted`.
    pub(crate) fn of(doing: &'static str, source: io::Error, wanted: &[Capability]) -> AttachError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => AttachError::NotPermitted { doing, refusal: Refusal::look(wanted) },
            _ => AttachError::Io { doing, source },
        }
    }

    /// Whether rights are what is missing: hg-top's exit code tells it apart.
    pub fn is_permission(&self) -> bool {
        matches!(self, AttachError::NotPermitted { .. } | AttachError::PidNamespace)
    }
}

fn list(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!("; {}", reasons.join("; ")) }
}

/// Why a source that was attached gives no figures now.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A kernel map cannot be read.
    #[error("cannot read the kernel map {map}: {source}")]
    Map {
        /// Its name.
        map: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
