//! The system calls of attaching, in the form the kernel wants and aya 0.14 does not offer: `bpf` with an attach type at load
//! time and semaphores at link time, and `perf_event_open`.
//!
//! Each attribute is a `repr(C)` prefix of the kernel's; what the kernel knows beyond it, it takes for zero.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_LINK_CREATE: libc::c_long = 28;

const ATTACH_PERF_EVENT: u32 = 41;
/// Attach type of a program that one link attaches to many sites, kernel 6.6.
pub(super) const ATTACH_UPROBE_MULTI: u32 = 48;

const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// Bytes kept of what the verifier says about a program it refuses.
const LOG_BYTES: usize = 64 << 10;

/// # Safety
/// Every pointer in `attr` must be valid for what `command` does with it.
unsafe fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is valid for its size, and the caller vouches for what it points to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just given this descriptor to us alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Loads a program. The error carries what the verifier said, if it said anything.
pub(super) fn load(
    name: &str,
    prog_type: u32,
    attach_type: u32,
    license: &CStr,
    code: &[aya_obj::generated::bpf_insn],
) -> Result<OwnedFd, (io::Error, String)> {
    let mut attr = ProgLoad {
        prog_type,
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        expected_attach_type: attach_type,
        ..ProgLoad::default()
    };
    let cut = name.len().min(attr.prog_name.len() - 1);
    attr.prog_name[..cut].copy_from_slice(&name.as_bytes()[..cut]);
    // SAFETY: code and license outlive the call.
    let error = match unsafe { bpf(BPF_PROG_LOAD, &mut attr) } {
        Ok(fd) => return Ok(owned(fd)),
        Err(error) => error,
    };
    // Once more with a log: asking for it at once would make every load pay for it.
    let mut log = vec![0u8; LOG_BYTES];
    (attr.log_level, attr.log_size, attr.log_buf) = (1, LOG_BYTES as u32, log.as_mut_ptr() as u64);
    // SAFETY: code, license and log outlive the call.
    match unsafe { bpf(BPF_PROG_LOAD, &mut attr) } {
        Ok(fd) => Ok(owned(fd)),
        Err(_) => {
            log.truncate(log.iter().position(|byte| *byte == 0).unwrap_or(LOG_BYTES));
            Err((error, String::from_utf8_lossy(&log).into_owned()))
        }
    }
}

#[repr(C)]
#[derive(Default)]
struct LinkCreatePerf {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

/// Attaches a program to a perf event. The program reads `cookie` at each run.
pub(super) fn link_perf(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = LinkCreatePerf {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: event.as_raw_fd() as u32,
        attach_type: ATTACH_PERF_EVENT,
        flags: 0,
        cookie,
    };
    // SAFETY: the attribute holds no pointer.
    unsafe { bpf(BPF_LINK_CREATE, &mut attr) }.map(owned)
}

#[repr(C)]
#[derive(Default)]
struct LinkCreateMulti {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    padding: u32,
}

/// Attaches a program to many sites of one file at once, in all processes. The three slices have one length.
pub(super) fn link_multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    semaphores: &[u64],
    cookies: &[u64],
) -> io::Result<OwnedFd> {
    assert!(offsets.len() == semaphores.len() && offsets.len() == cookies.len());
    let mut attr = LinkCreateMulti {
        prog_fd: program.as_raw_fd() as u32,
        attach_type: ATTACH_UPROBE_MULTI,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        ref_ctr_offsets: semaphores.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        count: offsets.len() as u32,
        ..LinkCreateMulti::default()
    };
    // SAFETY: path and slices outlive the call, and the slices have `count` elements.
    unsafe { bpf(BPF_LINK_CREATE, &mut attr) }.map(owned)
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    len: u32,
    info: u64,
}

/// Runs of a program that the kernel skipped because it was running already on that CPU.
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: the type is made of numbers.
    let mut info: aya_obj::generated::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attr = InfoByFd {
        fd: program.as_raw_fd() as u32,
        len: size_of_val(&info) as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: `info` has `len` bytes and outlives the call.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info.recursion_misses)
}

#[repr(C)]
#[derive(Default)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Reads up to as many entries of a hash map as `keys` has room for, from `position` on, and moves `position` on. Returns
/// the number read and whether more may follow.
///
/// # Safety
/// The map's keys have `size_of::<K>()` bytes, and `values` has room for one map value, of all CPUs, per key.
pub(crate) unsafe fn lookup_batch<K: Copy>(
    map: BorrowedFd<'_>,
    position: &mut Option<u32>,
    keys: &mut [std::mem::MaybeUninit<K>],
    values: &mut [u64],
) -> io::Result<(usize, bool)> {
    let mut out = 0u32;
    let mut attr = Batch {
        in_batch: position.as_ref().map_or(0, |position| std::ptr::from_ref(position) as u64),
        out_batch: std::ptr::from_mut(&mut out) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: keys.len() as u32,
        map_fd: map.as_raw_fd() as u32,
        ..Batch::default()
    };
    // SAFETY: the buffers outlive the call, and the caller vouches for their sizes.
    let more = match unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) } {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => false,
        Err(error) => return Err(error),
    };
    *position = Some(out);
    Ok((attr.count as usize, more))
}

#[repr(C)]
#[derive(Default)]
struct Element {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Fills the only entry of a map of constants of the program, which has the size of `data`.
pub(super) fn fill(map: BorrowedFd<'_>, data: &[u8]) -> io::Result<()> {
    let key = 0u32;
    let mut attr = Element {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&key) as u64,
        value: data.as_ptr() as u64,
        ..Element::default()
    };
    // SAFETY: key and data outlive the call, and a map of constants was made from them.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Takes an entry out of a map. That there is none is no error.
///
/// # Safety
/// The map's keys have `size_of::<K>()` bytes.
pub(crate) unsafe fn delete<K: Copy>(map: BorrowedFd<'_>, key: &K) -> io::Result<()> {
    let mut attr =
        Element { map_fd: map.as_raw_fd() as u32, key: std::ptr::from_ref(key) as u64, ..Element::default() };
    // SAFETY: the key outlives the call, and the caller vouches for its size.
    match unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut attr) } {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// `struct perf_event_attr`, as far as tracepoints and uprobes need it.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    event_type: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
}

fn perf_event_open(mut attr: PerfEventAttr) -> io::Result<OwnedFd> {
    attr.size = size_of::<PerfEventAttr>() as u32;
    // All processes: that needs a CPU, but a uprobe or tracepoint is hit on all CPUs whichever is named.
    let (pid, cpu, group) = (-1i32, 0i32, -1i32);
    // SAFETY: the attribute is valid for its size; a path in it outlives the call by the caller's borrow.
    let result =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, group, PERF_FLAG_FD_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(owned(result as i32)) }
}

/// A uprobe at a file offset, in all processes, that keeps the semaphore at another file offset raised.
pub(super) fn uprobe_event(pmu: u32, path: &CStr, offset: u64, semaphore: u32) -> io::Result<OwnedFd> {
    perf_event_open(PerfEventAttr {
        event_type: pmu,
        config: u64::from(semaphore) << 32,
        config1: path.as_ptr() as u64,
        config2: offset,
        ..PerfEventAttr::default()
    })
}

/// A tracepoint by the number tracefs gives it.
pub(super) fn tracepoint_event(id: u64) -> io::Result<OwnedFd> {
    const PERF_TYPE_TRACEPOINT: u32 = 2;
    perf_event_open(PerfEventAttr {
        event_type: PERF_TYPE_TRACEPOINT,
        config: id,
        sample_period: 1,
        ..PerfEventAttr::default()
    })
}
