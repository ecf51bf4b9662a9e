//! The BPF object in the kernel: its maps, and its programs loaded for the kind of link this kernel has.
//!
//! aya parses the object, makes the maps and relocates the code. The load itself is ours, because aya 0.14 cannot tell the
//! kernel that a program is meant for links to many sites, and such a link is what makes quitting fast.

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{Map, MapData};
use aya_obj::Object;
use aya_obj::generated::bpf_map_type;
use hg_probes::maps::{ClassValue, LockValue, MAX_KEYS_PER_PROCESS};

use super::error::AttachError;
use super::links::LinkKind;
use super::rights::Capability;
use super::sys;

#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../hg-ebpf/hg.bpf.o");

const PROG_TYPE_KPROBE: u32 = 2;
const PROG_TYPE_TRACEPOINT: u32 = 5;

/// Memory that the values of one sums map may take, over all CPUs. Entries are allocated at load: a hit in a process that is
/// short of nothing must not fail for want of kernel memory.
const SUMS_BYTES: usize = 64 << 20;

const NEEDED: &[Capability] = &[Capability::Bpf, Capability::Perfmon];

/// The object, in the kernel.
pub(crate) struct Program {
    maps: HashMap<String, Map>,
    probe: OwnedFd,
    newtask: OwnedFd,
    multi: bool,
}

impl Program {
    /// Loads the embedded object, or the one that `HG_BPF_OBJECT` names.
    ///
    /// It is loaded for links to many sites if `multi` allows it and the kernel has them.
    ///
    /// # Errors
    /// If we may not, or the kernel's verifier refuses it.
    pub(crate) fn load(multi: bool) -> Result<Program, AttachError> {
        let bytes = object()?;
        let broken = |error: &dyn std::fmt::Display| AttachError::Load(error.to_string());
        let mut object = Object::parse(&bytes).map_err(|error| broken(&error))?;
        let mut maps = HashMap::new();
        for (name, mut map) in object.maps.drain() {
            if let Some(entries) = entries(&name) {
                map.set_max_entries(entries);
            }
            let made = MapData::create(map.clone(), &name, None).map_err(map_error)?;
            if !map.data().is_empty() {
                sys::fill(made.fd().as_fd(), map.data()).map_err(|error| broken(&error))?;
            }
            maps.insert(name, (made, map));
        }
        let text = object.functions.keys().map(|(section, _)| *section).collect();
        let relocations = maps.iter().map(|(name, (made, map))| (name.as_str(), made.fd().as_fd().as_raw_fd(), map));
        object.relocate_maps(relocations, &text).map_err(|error| broken(&error))?;
        object.relocate_calls(&text).map_err(|error| broken(&error))?;

        let load = |name: &'static str, kind, attach_type| {
            let program = object.programs.get(name).ok_or_else(|| broken(&format!("it has no program {name}")))?;
            let function = &object.functions[&program.function_key()];
            sys::load(name, kind, attach_type, &program.license, &function.instructions).map_err(|(error, log)| {
                match error.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) if log.is_empty() => {
                        AttachError::of("load the BPF program", error, NEEDED)
                    }
                    _ => AttachError::Load(format!("{name}: {error}{}", last_lines(&log))),
                }
            })
        };
        let try_multi = || load("probe", PROG_TYPE_KPROBE, sys::ATTACH_UPROBE_MULTI).ok();
        let multi = multi.then(try_multi).flatten().filter(|program| has_multi(program.as_fd()));
        let is_multi = multi.is_some();
        let probe = match multi {
            Some(program) => program,
            None => load("probe", PROG_TYPE_KPROBE, 0)?,
        };
        let newtask = load("newtask", PROG_TYPE_TRACEPOINT, 0)?;
        let maps = maps.into_iter().map(|(name, (made, map))| (name, typed(made, map.map_type()))).collect();
        Ok(Program { maps, probe, newtask, multi: is_multi })
    }

    /// Takes a map out.
    pub(crate) fn take_map(&mut self, name: &'static str) -> Result<Map, AttachError> {
        self.maps.remove(name).ok_or_else(|| AttachError::Load(format!("it has no map {name}")))
    }

    /// The program for probe sites.
    pub(crate) fn probe(&self) -> BorrowedFd<'_> {
        self.probe.as_fd()
    }

    /// The program for `task:task_newtask`.
    pub(super) fn newtask(&self) -> BorrowedFd<'_> {
        self.newtask.as_fd()
    }

    /// How it is attached.
    pub(crate) fn link_kind(&self) -> LinkKind {
        if self.multi { LinkKind::Multi } else { LinkKind::Perf }
    }

    /// Runs that the kernel skipped.
    pub(crate) fn recursion_misses(&self) -> std::io::Result<u64> {
        Ok(sys::recursion_misses(self.probe())? + sys::recursion_misses(self.newtask())?)
    }
}

/// The bytes of the object, aligned as the parser wants them.
fn object() -> Result<Cow<'static, [u8]>, AttachError> {
    match std::env::var_os("HG_BPF_OBJECT") {
        Some(path) => std::fs::read(&path)
            .map(Cow::Owned)
            .map_err(|source| AttachError::Io { doing: "read HG_BPF_OBJECT", source }),
        #[cfg(target_arch = "x86_64")]
        None => Ok(Cow::Borrowed(OBJECT)),
        #[cfg(not(target_arch = "x86_64"))]
        None => {
            Err(AttachError::Load("none was built for this machine; build one and name it in HG_BPF_OBJECT".into()))
        }
    }
}

/// Whether the kernel has links to many sites. Asked with a path that is no file: a kernel that has them says so, one that
/// has not does not even know the attach type.
fn has_multi(program: BorrowedFd<'_>) -> bool {
    let error = sys::link_multi(program, c"/", &[1], &[0], &[0]).err();
    error.and_then(|error| error.raw_os_error()) == Some(libc::EBADF)
}

/// Entries of a sums map on this machine; `None` for other maps.
fn entries(map: &str) -> Option<u32> {
    let value = match map {
        "CLASSES" => size_of::<ClassValue>(),
        "LOCKS" => size_of::<LockValue>(),
        _ => return None,
    };
    let cpus = aya::util::nr_cpus().unwrap_or(1);
    let most = 8 * MAX_KEYS_PER_PROCESS as usize;
    Some((SUMS_BYTES / (value * cpus)).clamp(1024, most) as u32)
}

/// A map under the type that aya's accessors want.
fn typed(map: MapData, kind: u32) -> Map {
    match bpf_map_type::try_from(kind) {
        Ok(bpf_map_type::BPF_MAP_TYPE_HASH) => Map::HashMap(map),
        Ok(bpf_map_type::BPF_MAP_TYPE_PERCPU_HASH) => Map::PerCpuHashMap(map),
        Ok(bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY) => Map::PerCpuArray(map),
        Ok(bpf_map_type::BPF_MAP_TYPE_ARRAY) => Map::Array(map),
        Ok(bpf_map_type::BPF_MAP_TYPE_RINGBUF) => Map::RingBuf(map),
        Ok(bpf_map_type::BPF_MAP_TYPE_STACK_TRACE) => Map::StackTraceMap(map),
        _ => Map::Unsupported(map),
    }
}

fn map_error(error: aya::maps::MapError) -> AttachError {
    let refused = match &error {
        aya::maps::MapError::SyscallError(call) => call.io_error.raw_os_error(),
        aya::maps::MapError::CreateError { io_error, .. } => io_error.raw_os_error(),
        _ => None,
    };
    match refused {
        Some(number @ (libc::EPERM | libc::EACCES)) => {
            AttachError::of("make BPF maps", std::io::Error::from_raw_os_error(number), NEEDED)
        }
        _ => AttachError::Load(error.to_string()),
    }
}

/// The last lines of a verifier's log, which hold the reason.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.trim_end().lines().collect();
    let tail = &lines[lines.len().saturating_sub(4)..];
    if tail.is_empty() { String::new() } else { format!(" ({})", tail.join(" / ")) }
}
