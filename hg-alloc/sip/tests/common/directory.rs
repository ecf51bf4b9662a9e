//! The directory of a running server's shared arena, read from outside as a tracer does.

use hg_probes::directory::{PROCESSES, ProcessRecord, state};
use hg_probes::page::{Header, kind};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// Reads a structure of atomics out of a process.
fn read<T>(memory: &File, address: u64) -> Box<T> {
    let mut bytes = vec![0u8; size_of::<T>()];
    memory.read_exact_at(&mut bytes, address).expect("memory of the server");
    let mut value = Box::<T>::new_uninit();
    let place: *mut MaybeUninit<T> = &raw mut *value;
    // SAFETY: the types read are structures of atomic numbers, for which all bytes are values; the sizes are equal.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len());
        value.assume_init()
    }
}

/// The roles of the processes that use the shared arena of `pid`, by process.
pub(crate) fn roles(pid: u32) -> BTreeMap<u32, String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("memory");
    let pages = maps.lines().filter(|line| line.contains("/memfd:hg.stats"));
    let starts = pages.map(|line| u64::from_str_radix(line.split('-').next().expect("a start"), 16).expect("a number"));
    let headers = starts.map(|start| read::<Header>(&memory, start));
    let header = headers.into_iter().find(|header| header.kind.load(Relaxed) == kind::SHARED).expect("a shared arena");
    let records: Box<[ProcessRecord; PROCESSES]> = read(&memory, header.processes_address.load(Relaxed));
    let live = records.iter().filter(|record| record.state.load(Relaxed) == state::LIVE);
    live.map(|record| {
        let bytes: Vec<u8> = record.role.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        (record.pid.load(Relaxed), String::from_utf8_lossy(&bytes[..end]).into_owned())
    })
    .collect()
}
