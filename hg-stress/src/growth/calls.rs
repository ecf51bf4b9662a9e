//! Calls of the allocator that took long, and how much of that they spent on a CPU.
//!
//! A hold lies within a call. One that was longer than the call's own time on a CPU was made longer by whoever took the
//! CPU away: its holder was preempted or stopped. That is all the proof there is: histograms do not tell it.

use std::sync::{Mutex, PoisonError};

/// A call that took longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The thread.
    pub tid: u32,
    /// `CLOCK_MONOTONIC` before it, ns.
    pub from_ns: u64,
    /// And after it.
    pub to_ns: u64,
    /// Time that the thread had a CPU meanwhile, ns.
    pub cpu_ns: u64,
}

/// What all threads saw.
#[derive(Debug, Default)]
pub struct Calls(Mutex<Vec<Call>>);

impl Calls {
    /// Room for so many, so that noting one takes no memory while the load runs.
    pub fn with_capacity(calls: usize) -> Calls {
        Calls(Mutex::new(Vec::with_capacity(calls)))
    }

    /// Makes a call; notes it if it took longer than `limit_ns`.
    pub fn time<R>(&self, tid: u32, limit_ns: u64, call: impl FnOnce() -> R) -> R {
        let (from_ns, cpu) = (now_ns(libc::CLOCK_MONOTONIC), now_ns(libc::CLOCK_THREAD_CPUTIME_ID));
        let result = call();
        let to_ns = now_ns(libc::CLOCK_MONOTONIC);
        if to_ns - from_ns > limit_ns {
            let cpu_ns = now_ns(libc::CLOCK_THREAD_CPUTIME_ID) - cpu;
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Call { tid, from_ns, to_ns, cpu_ns });
        }
        result
    }

    /// All of them.
    pub fn into_inner(self) -> Vec<Call> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a hold was long, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its call had a CPU for less than the limit: the holder was preempted or stopped. How long it had one, ns.
    OffCpu(u64),
    /// Its call had a CPU for longer than the limit; so may the hold. How long, ns.
    Busy(u64),
    /// No call of the load's threads lies around it.
    Unknown,
}

/// Looks for the call around the end of a hold by `tid`.
pub fn cause(calls: &[Call], tid: u32, at_ns: u64, limit_ns: u64) -> Cause {
    // The allocator scales the time stamp counter to the clock: the two differ by some microseconds.
    const SKEW_NS: u64 = 100_000;
    let around = |call: &&Call| call.tid == tid && call.from_ns <= at_ns + SKEW_NS && at_ns <= call.to_ns + SKEW_NS;
    match calls.iter().filter(around).map(|call| call.cpu_ns).max() {
        Some(cpu_ns) if cpu_ns <= limit_ns => Cause::OffCpu(cpu_ns),
        Some(cpu_ns) => Cause::Busy(cpu_ns),
        None => Cause::Unknown,
    }
}

/// A clock of the kernel, ns.
pub fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_matched_with_the_call_around_it() {
        let call = |tid, from_ns, cpu_ns| Call { tid, from_ns, to_ns: from_ns + 500_000, cpu_ns };
        let calls = [call(1, 10_000_000, 20_000), call(2, 10_000_000, 400_000), call(1, 20_000_000, 400_000)];
        assert_eq!(cause(&calls, 1, 10_400_000, 200_000), Cause::OffCpu(20_000));
        assert_eq!(cause(&calls, 2, 10_400_000, 200_000), Cause::Busy(400_000));
        assert_eq!(cause(&calls, 1, 20_100_000, 200_000), Cause::Busy(400_000));
        assert_eq!(cause(&calls, 1, 15_000_000, 200_000), Cause::Unknown);
        assert_eq!(cause(&calls, 3, 10_400_000, 200_000), Cause::Unknown);
    }

    #[test]
    fn sleeping_is_not_being_on_a_cpu() {
        let calls = Calls::with_capacity(4);
        calls.time(1, 1_000_000, || std::thread::sleep(std::time::Duration::from_millis(5)));
        calls.time(1, 1_000_000_000, || ());
        let [call] = calls.into_inner()[..] else { panic!("one call") };
        assert!(call.to_ns - call.from_ns >= 5_000_000 && call.cpu_ns < 2_000_000, "{call:?}");
    }
}
