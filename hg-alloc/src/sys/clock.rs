//! Time: `CLOCK_MONOTONIC` in nanoseconds, from the CPU's time stamp counter where that is steady.
//!
//! Every slow path takes two to four readings, and a reading through the vDSO costs twice that of the counter (28 against
//! 13 ns in a KVM guest). So the counter is scaled once enough time has passed to know its rate to 1 in 10^5; until then,
//! and where the CPU does not promise an invariant counter, the vDSO is asked.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Long enough that the 50 ns between the two readings of a calibration are 1 in 10^6.
const CALIBRATION_NS: u64 = 50_000_000;

static START_TICKS: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per 2^32 ticks; 0 while unknown.
static SCALE: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let scale = SCALE.load(Relaxed);
    if scale == 0 {
        return calibrate();
    }
    let ticks = ticks().wrapping_sub(START_TICKS.load(Relaxed));
    START_NS.load(Relaxed) + ((u128::from(ticks) * u128::from(scale)) >> 32) as u64
}

/// Starts the calibration. Called once, by the first arena's start.
pub(crate) fn start() {
    if has_steady_ticks() {
        START_TICKS.store(ticks(), Relaxed);
        START_NS.store(monotonic_ns(), Relaxed);
    }
}

#[cold]
fn calibrate() -> u64 {
    let now = monotonic_ns();
    let start = START_NS.load(Relaxed);
    let elapsed = now.saturating_sub(start);
    if start != 0 && elapsed >= CALIBRATION_NS {
        let spent = ticks().wrapping_sub(START_TICKS.load(Relaxed));
        if let Some(scale) = (u128::from(elapsed) << 32).checked_div(u128::from(spent)) {
            SCALE.store(scale as u64, Relaxed);
        }
    }
    now
}

/// `CLOCK_MONOTONIC` as the kernel has it: what a deadline of a system call is compared with. `now_ns` drifts away from it, by
/// 1 in 10^5.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: S9, the kernel writes the one structure given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: S9, RDTSC reads a register.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Whether the counter runs at one rate in all power states, on all CPUs (CPUID 0x8000_0007, EDX bit 8).
#[cfg(target_arch = "x86_64")]
fn has_steady_ticks() -> bool {
    use core::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn has_steady_ticks() -> bool {
    false
}
