//! Sums per class and lock.
//!
//! A missing key is created from zeros with `BPF_NOEXIST` and looked up again, so whoever loses a race to create it adds to
//! the winner's entry instead of wiping it. The entries are preallocated: creating one never fails for want of memory, only
//! for want of entries, and that is counted.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    macros::map,
    maps::{Array, PerCpuHashMap},
};
use hg_probes::{
    maps::{ClassKey, ClassValue, HistogramValue, LockKey, LockValue, Lost, MAX_KEYS_PER_PROCESS, Watched},
    page::BUCKETS,
};

use crate::{
    lost::lost,
    word::{add, fetch_add, raise, take},
};

/// hg-top sets the number of entries by the number of CPUs when it loads the program.
#[map]
static CLASSES: PerCpuHashMap<ClassKey, ClassValue> = PerCpuHashMap::with_max_entries(1024, 0);

/// As [`CLASSES`].
#[map]
static LOCKS: PerCpuHashMap<LockKey, LockValue> = PerCpuHashMap::with_max_entries(1024, 0);

/// Zeros to create an entry of [`LOCKS`] from: a value is larger than a program's stack.
#[map]
static ZERO_LOCK: Array<LockValue> = Array::with_max_entries(1, 0);

/// As [`ZERO_LOCK`].
#[map]
static ZERO_CLASS: Array<ClassValue> = Array::with_max_entries(1, 0);

const EEXIST: i32 = -17;

const _: () = assert!(BUCKETS.is_power_of_two());

#[inline(always)]
pub(crate) fn refill(watched: *mut Watched, key: &ClassKey, reused: u64, carved: u64) {
    let Some(value) = entry(&CLASSES, &ZERO_CLASS, key, watched) else { return };
    // SAFETY: the pointer came from the map.
    unsafe {
        add(&raw mut (*value).refills, 1);
        add(&raw mut (*value).reused, reused);
        add(&raw mut (*value).carved, carved);
    }
}

#[inline(always)]
pub(crate) fn flush(watched: *mut Watched, key: &ClassKey, cells: u64) {
    let Some(value) = entry(&CLASSES, &ZERO_CLASS, key, watched) else { return };
    // SAFETY: the pointer came from the map.
    unsafe {
        add(&raw mut (*value).flushes, 1);
        add(&raw mut (*value).flushed, cells);
    }
}

#[inline(always)]
pub(crate) fn waited(watched: *mut Watched, key: &LockKey, ns: u64) {
    let Some(value) = entry(&LOCKS, &ZERO_LOCK, key, watched) else { return };
    // SAFETY: the pointer came from the map.
    unsafe { record(&raw mut (*value).wait, ns) };
}

#[inline(always)]
pub(crate) fn held(watched: *mut Watched, key: &LockKey, ns: u64) {
    let Some(value) = entry(&LOCKS, &ZERO_LOCK, key, watched) else { return };
    // SAFETY: the pointer came from the map.
    unsafe { record(&raw mut (*value).hold, ns) };
}

/// The entry of a key on this CPU, created if the process may still create keys.
#[inline(always)]
fn entry<K, V>(map: &PerCpuHashMap<K, V>, zero: &Array<V>, key: &K, watched: *mut Watched) -> Option<*mut V> {
    if let Some(value) = map.get_ptr_mut(key) {
        return Some(value);
    }
    // SAFETY: the pointer came from the map of watched processes.
    let keys = unsafe { &raw mut (*watched).keys };
    // SAFETY: as above.
    if unsafe { fetch_add(keys, 1) } >= u64::from(MAX_KEYS_PER_PROCESS) {
        // SAFETY: as above.
        unsafe { take(keys, 1) };
        lost(Lost::KeysSpent);
        return None;
    }
    // SAFETY: nobody writes the zeros.
    let zeros = zero.get_ptr(0).map(|zeros| unsafe { &*zeros })?;
    if let Err(error) = map.insert(key, zeros, u64::from(BPF_NOEXIST)) {
        // SAFETY: as above.
        unsafe { take(keys, 1) };
        if error != EEXIST {
            lost(Lost::MapFull);
            return None;
        }
    }
    map.get_ptr_mut(key)
}

/// Adds a duration to a histogram.
///
/// # Safety
/// `histogram` lies in a live map value.
#[inline(always)]
unsafe fn record(histogram: *mut HistogramValue, ns: u64) {
    let bucket = hg_probes::page::bucket(ns) & (BUCKETS - 1);
    // SAFETY: as this function demands, and the index is masked.
    unsafe {
        add(&raw mut (*histogram).count, 1);
        add(&raw mut (*histogram).sum_ns, ns);
        add((&raw mut (*histogram).buckets).cast::<u64>().add(bucket), 1);
        raise(&raw mut (*histogram).max_ns, ns);
    }
}
