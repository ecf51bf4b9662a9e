//! A page that several processes share, with a directory of them: a parent, two children, one that died, and one whose pid came
//! again. Or a directory that lies, or answers nothing.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use hg_probes::directory::{PROCESSES, ProcessRecord, state};
use hg_probes::page::{StatsPage, feature, kind};
use hg_probes::words::LockId;

/// Shared memory that each process touches, bytes: spans and large objects of the page.
const USED: usize = 24 << 20;

/// The page of an arena that this process and two children of it use.
pub(crate) fn honest(page: &StatsPage) {
    let directory = mark(page);
    page.header.owner_deaths.store(3, Relaxed);
    page.header.recovered.store(5, Relaxed);
    page.header.stranded_bytes.store(640, Relaxed);
    let user = memory(USED);
    enter(&directory[0], "main");
    directory[0].repairs.store(3, Relaxed);
    directory[0].recovered.store(5, Relaxed);
    let first = child(&directory[1], 1, user);
    child(&directory[2], 2, user);
    enter(&directory[3], "killed");
    directory[3].pid.store(4_000_000, Relaxed);
    directory[3].state.store(state::DEAD, Relaxed);
    // The pid of a living process, which started later than this one did.
    enter(&directory[4], "its pid came again");
    directory[4].pid.store(first, Relaxed);
    directory[4].start_ticks.store(directory[1].start_ticks.load(Relaxed) - 1, Relaxed);
    touch(user);
}

/// The same where every record is as wrong as it can be.
pub(crate) fn lying(page: &StatsPage) {
    let directory = mark(page);
    let bytes = size_of_val(directory);
    // SAFETY: the mapping is ours alone, as long as the records, and any bytes are one.
    unsafe { std::ptr::write_bytes(std::ptr::from_ref(directory).cast_mut().cast::<u8>(), 0xff, bytes) };
    for (place, record) in directory.iter().enumerate() {
        record.state.store(if place % 2 == 0 { state::LIVE } else { u32::MAX }, Relaxed);
    }
    for (word, bytes) in directory[0].role.iter().zip([*b"\x1b[2Jrole", *b"\n\x07\xff\0\0\0\0\0"]) {
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
    page.header.owner_deaths.store(u64::MAX, Relaxed);
    page.header.stranded_bytes.store(u64::MAX, Relaxed);
}

/// The directory lies at an address where nothing is, or that overflows, or in memory that answers nothing.
pub(crate) fn elsewhere(page: &StatsPage, address: u64) {
    mark(page);
    page.header.processes_address.store(address, Relaxed);
}

fn mark(page: &StatsPage) -> &'static [ProcessRecord] {
    let address = memory(PROCESSES * size_of::<ProcessRecord>());
    page.header.kind.store(kind::SHARED, Relaxed);
    page.header.arena.store(2, Relaxed);
    page.header.features.fetch_or(feature::DIRECTORY, Relaxed);
    page.header.processes_address.store(address as u64, Relaxed);
    // SAFETY: a new mapping as long as the records; zero is a valid value of every field.
    unsafe { std::slice::from_raw_parts(address.cast::<ProcessRecord>(), PROCESSES) }
}

/// Memory that children share.
fn memory(length: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of our own.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    assert!(address != libc::MAP_FAILED, "no mapping");
    address.cast()
}

fn touch(memory: *mut u8) {
    for offset in (0..USED).step_by(4096) {
        // SAFETY: inside the mapping of that length; others write the same.
        unsafe { (*memory.add(offset).cast::<AtomicU64>()).store(1, Relaxed) };
    }
}

/// Enters this process.
fn enter(record: &ProcessRecord, role: &str) {
    record.pid.store(std::process::id(), Relaxed);
    record.start_ticks.store(start_ticks(), Relaxed);
    record.set_role(role);
    record.refills.store(100, Relaxed);
    record.state.store(state::LIVE, Relaxed);
}

/// Field 22 of `stat`.
fn start_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = stat.rsplit(')').next().and_then(|after| after.split_whitespace().nth(19)?.parse().ok());
    field.expect("it is there")
}

/// Forks a child that enters itself, touches the memory, and lives as long as this process.
fn child(record: &ProcessRecord, place: usize, user: *mut u8) -> u32 {
    // SAFETY: this process has one thread, so the child is as good as it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child");
    if pid > 0 {
        while record.state.load(Relaxed) == state::FREE {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        return pid as u32;
    }
    // SAFETY: it only asks for a signal when the parent ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    touch(user);
    record.stalls.store(place as u64, Relaxed);
    record.stall_ns.store(4_200_000, Relaxed);
    record.stall_at_ns.store(super::monotonic_ns(), Relaxed);
    record.stall_lock.store(LockId::class(64).0, Relaxed);
    record.cpus.store(place as u32, Relaxed);
    enter(record, &format!("worker {place}"));
    loop {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}
