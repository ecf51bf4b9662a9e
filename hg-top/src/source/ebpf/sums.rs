//! A map of per-CPU sums, read in batches and added up.

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Map, MapData};
use hg_probes::maps::{ClassKey, ClassValue, HistogramValue, LockKey, LockValue};
use hg_probes::page::BUCKETS;

use crate::attach::{AttachError, SourceError, sys};

/// Keys asked for at once.
const BATCH: usize = 64;

/// What a sums map holds per key and CPU.
///
/// # Safety
/// The type is `repr(C)` and made of `u64` alone, so any words are a value of it.
pub(super) unsafe trait Value: Copy {
    /// Nothing counted.
    const ZERO: Self;

    /// Adds what another CPU counted.
    fn add(&mut self, other: &Self);
}

// SAFETY: five words.
unsafe impl Value for ClassValue {
    const ZERO: Self = ClassValue { refills: 0, reused: 0, carved: 0, flushes: 0, flushed: 0 };

    fn add(&mut self, other: &Self) {
        let ClassValue { refills, reused, carved, flushes, flushed } = self;
        // The target chose the numbers: sums of them may wrap, and must not panic.
        *refills = refills.wrapping_add(other.refills);
        *reused = reused.wrapping_add(other.reused);
        *carved = carved.wrapping_add(other.carved);
        *flushes = flushes.wrapping_add(other.flushes);
        *flushed = flushed.wrapping_add(other.flushed);
    }
}

const ZERO_HISTOGRAM: HistogramValue = HistogramValue { count: 0, sum_ns: 0, max_ns: 0, buckets: [0; BUCKETS] };

// SAFETY: two histograms, each three words and an array of words.
unsafe impl Value for LockValue {
    const ZERO: Self = LockValue { hold: ZERO_HISTOGRAM, wait: ZERO_HISTOGRAM };

    fn add(&mut self, other: &Self) {
        for (sum, part) in [(&mut self.hold, &other.hold), (&mut self.wait, &other.wait)] {
            sum.count = sum.count.wrapping_add(part.count);
            sum.sum_ns = sum.sum_ns.wrapping_add(part.sum_ns);
            sum.max_ns = sum.max_ns.max(part.max_ns);
            for (bucket, more) in sum.buckets.iter_mut().zip(part.buckets) {
                *bucket = bucket.wrapping_add(more);
            }
        }
    }
}

/// A key of a sums map.
///
/// # Safety
/// The type is `repr(C)` and made of `u32` alone, so any words are a value of it.
pub(super) unsafe trait Key: Copy + Ord {}

// SAFETY: three words of 32 bits.
unsafe impl Key for ClassKey {}
// SAFETY: four words of 32 bits.
unsafe impl Key for LockKey {}

/// A sums map and the buffers to read it with.
pub(super) struct Sums<K, V> {
    name: &'static str,
    map: MapData,
    cpus: usize,
    keys: Vec<MaybeUninit<K>>,
    values: Vec<u64>,
    of: PhantomData<V>,
}

impl<K: Key, V: Value> Sums<K, V> {
    pub(super) fn new(name: &'static str, map: Map) -> Result<Self, AttachError> {
        let Map::PerCpuHashMap(map) = map else {
            return Err(AttachError::Load(format!("map {name} is no per-CPU hash")));
        };
        let cpus = aya::util::nr_cpus().map_err(|(_, source)| AttachError::Io { doing: "count the CPUs", source })?;
        let info = map.info().map_err(|error| AttachError::Load(error.to_string()))?;
        if (info.key_size() as usize, info.value_size() as usize) != (size_of::<K>(), size_of::<V>()) {
            return Err(AttachError::Load(format!("map {name} is of another version")));
        }
        let mut sums = Sums { name, map, cpus, keys: Vec::new(), values: Vec::new(), of: PhantomData };
        sums.make_room(BATCH);
        Ok(sums)
    }

    fn make_room(&mut self, keys: usize) {
        self.keys.resize(keys, MaybeUninit::uninit());
        self.values.resize(keys * self.cpus * size_of::<V>() / 8, 0);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd().as_fd()
    }

    fn error(&self, source: io::Error) -> SourceError {
        SourceError::Map { map: self.name, source }
    }

    /// Every key with the sum of all CPUs.
    pub(super) fn read(&mut self) -> Result<BTreeMap<K, V>, SourceError> {
        let mut sums = BTreeMap::new();
        let mut position = None;
        loop {
            let mut keys = std::mem::take(&mut self.keys);
            let mut values = std::mem::take(&mut self.values);
            // SAFETY: `new` compared the sizes of key and value, and `make_room` made the buffers fit.
            let result = unsafe { sys::lookup_batch(self.fd(), &mut position, &mut keys, &mut values) };
            (self.keys, self.values) = (keys, values);
            let (count, more) = match result {
                Ok(result) => result,
                // A bucket of the kernel's table holds more entries than fit: once more with room for them.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && self.keys.len() < 1 << 16 => {
                    self.make_room(2 * self.keys.len());
                    continue;
                }
                Err(error) => return Err(self.error(error)),
            };
            let words = self.cpus * size_of::<V>() / 8;
            for (key, values) in self.keys.iter().zip(self.values.chunks_exact(words)).take(count) {
                // SAFETY: the kernel wrote the first `count` keys.
                let key = unsafe { key.assume_init() };
                let mut sum = V::ZERO;
                for value in values.chunks_exact(size_of::<V>() / 8) {
                    // SAFETY: the chunk has the size of a `V`, and any words are one.
                    sum.add(unsafe { &*value.as_ptr().cast::<V>() });
                }
                sums.insert(key, sum);
            }
            if !more {
                return Ok(sums);
            }
        }
    }

    /// Gives up a key.
    pub(super) fn remove(&self, key: &K) -> Result<(), SourceError> {
        // SAFETY: `new` compared the size of the key.
        unsafe { sys::delete(self.fd(), key) }.map_err(|error| self.error(error))
    }
}
