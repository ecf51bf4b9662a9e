//! Worker CPUs: `HG_CPUS` narrows where the server's processes may run.
//!
//! Either one wish for all (`auto`, or a list such as `0-3,8`), which is chosen in the main process before it forks and applied first
//! thing in the child; or wishes by role (`udp receiver=0-3;timer=auto`: a role begins with the text), which the thread of
//! `tend.rs` applies once the server has named the process. `auto` is the CPU, of those that the process may use, which
//! fewest processes of this server were given. A wish only takes CPUs away; if none would be left, a line says so, and the process
//! stays as it is.
//!
//! Occupants are counted in the main process alone, by the thread that forks and by the one that tends.

use crate::domain::SHM;
use crate::report::report;
use crate::settings::variable;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use hg_probes::directory::{PROCESSES, ProcessRecord};

/// CPUs that a list can name.
const CPUS: usize = 1024;

/// Processes that were given a CPU: `cpu << 32 | pid`, 0 for a free place.
static OCCUPANTS: [AtomicU64; PROCESSES] = [const { AtomicU64::new(0) }; PROCESSES];

/// Whether a wish was told to be impossible: one line is enough.
static WARNED: AtomicBool = AtomicBool::new(false);

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Set([u64; CPUS / 64]);

/// What is wished for a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Auto,
    List(Set),
}

impl Set {
    const EMPTY: Set = Set([0; CPUS / 64]);

    fn has(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    fn add(&mut self, cpu: usize) -> Option<()> {
        *self.0.get_mut(cpu / 64)? |= 1 << (cpu % 64);
        Some(())
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Those of a list such as `0-3,8`.
    fn parse(text: &str) -> Option<Set> {
        let mut set = Set::EMPTY;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first > last {
                return None;
            }
            (first..=last).try_for_each(|cpu| set.add(cpu))?;
        }
        Some(set)
    }

    /// Those that a process may use, 0 for the calling one.
    fn of(pid: u32) -> Option<Set> {
        let mut set = Set::EMPTY;
        // SAFETY: the kernel writes at most the bytes of the set.
        let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, pid, CPUS / 8, &raw mut set) };
        (bytes > 0).then_some(set)
    }

    /// Makes a process use these alone.
    fn give(&self, pid: u32) -> bool {
        // SAFETY: the kernel reads the bytes of the set.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, pid, CPUS / 8, &raw const *self) == 0 }
    }
}

impl Wish {
    fn parse(text: &str) -> Option<Wish> {
        match text.trim() {
            "auto" => Some(Wish::Auto),
            list => Set::parse(list).map(Wish::List),
        }
    }

    /// What the variable says for a role, or for processes of all roles.
    fn in_text(text: &str, role: Option<&str>) -> Option<Wish> {
        text.split(';').find_map(|part| match (part.split_once('='), role) {
            (Some((prefix, cpus)), Some(role)) if role.starts_with(prefix.trim()) => Wish::parse(cpus),
            (None, None) => Wish::parse(part),
            _ => None,
        })
    }

    /// What is left of `allowed`; none if nothing is.
    fn narrow(self, allowed: Set) -> Option<Set> {
        let mut left = Set::EMPTY;
        match self {
            Wish::Auto => left.add(least_occupied(&allowed)?)?,
            Wish::List(list) => {
                left.0.iter_mut().zip(list.0).zip(allowed.0).for_each(|((left, list), allowed)| *left = list & allowed);
            }
        }
        (left.count() > 0).then_some(left)
    }
}

/// Tells of parts of the variable that cannot be understood. At the start.
pub(crate) fn check() {
    let Some(text) = variable(c"HG_CPUS") else { return };
    let is_known = |part: &str| Wish::parse(part.split_once('=').map_or(part, |(_, cpus)| cpus)).is_some();
    if let Some(part) = text.split(';').find(|part| !is_known(part)) {
        report!(Error, "HG_CPUS: {part}: want auto, CPUs such as 0-3,8, or ROLE= before either; not used");
    }
}

/// What the next child is to be given, chosen in its parent.
pub(crate) fn choose() -> Option<Set> {
    let wish = Wish::in_text(variable(c"HG_CPUS")?, None)?;
    let left = wish.narrow(Set::of(0)?);
    if left.is_none() {
        warn();
    }
    left
}

/// In the child: takes what was chosen.
pub(crate) fn take(set: &Set) {
    if set.give(0) {
        // SAFETY: getpid has no preconditions.
        note(unsafe { libc::getpid() } as u32, set);
    }
}

/// In the parent: counts the child on what was chosen.
pub(crate) fn count(pid: u32, set: &Set) {
    if set.count() == 1 {
        occupy(pid, set);
    }
}

/// Gives a process what its role is to have, if it was given nothing yet.
pub(crate) fn apply(record: &ProcessRecord, role: &str) {
    if record.cpus.load(Relaxed) != 0 {
        return;
    }
    let Some(wish) = variable(c"HG_CPUS").and_then(|text| Wish::in_text(text, Some(role))) else { return };
    let pid = record.pid.load(Relaxed);
    let Some(allowed) = Set::of(pid) else { return };
    match wish.narrow(allowed) {
        Some(set) if set.give(pid) => {
            count(pid, &set);
            note(pid, &set);
        }
        Some(_) => {}
        None => warn(),
    }
}

fn warn() {
    if !WARNED.swap(true, Relaxed) {
        report!(Error, "HG_CPUS: none of these CPUs may be used here; processes stay as they are");
    }
}

/// Writes how many CPUs a process was given where hg-top looks for it.
fn note(pid: u32, set: &Set) {
    let Some(records) = SHM.processes() else { return };
    if let Some(record) = records.iter().find(|record| record.pid.load(Relaxed) == pid) {
        let cpus: &AtomicU32 = &record.cpus;
        cpus.store(set.count(), Relaxed);
    }
}

fn is_alive(pid: u32) -> bool {
    // SAFETY: signal 0 is none.
    unsafe { libc::kill(pid as i32, 0) == 0 }
}

fn occupy(pid: u32, set: &Set) {
    let Some(cpu) = (0..CPUS).find(|cpu| set.has(*cpu)) else { return };
    let is_free = |word: u64| word == 0 || word as u32 == pid || !is_alive(word as u32);
    if let Some(place) = OCCUPANTS.iter().find(|place| is_free(place.load(Relaxed))) {
        place.store((cpu as u64) << 32 | u64::from(pid), Relaxed);
    }
}

/// The CPU of a set that fewest processes were given; the lowest of several.
fn least_occupied(set: &Set) -> Option<usize> {
    let mut counts = [0u16; CPUS];
    for word in OCCUPANTS.iter().map(|place| place.load(Relaxed)).filter(|word| *word != 0 && is_alive(*word as u32)) {
        if let Some(count) = counts.get_mut((word >> 32) as usize) {
            *count += 1;
        }
    }
    (0..CPUS).filter(|cpu| set.has(*cpu)).min_by_key(|cpu| counts[*cpu])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Set {
        Set::parse(text).expect("a list")
    }

    #[test]
    fn lists_name_cpus_and_ranges() {
        assert_eq!((0..16).filter(|cpu| set("0-2, 8,10").has(*cpu)).collect::<std::vec::Vec<_>>(), [0, 1, 2, 8, 10]);
        for bad in ["", "a", "3-1", "1,", "1024", "-1", "0-"] {
            assert_eq!(Set::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn wishes_are_for_all_or_by_role() {
        let text = "udp receiver=0-3;timer=auto";
        assert_eq!(Wish::in_text(text, Some("udp receiver child=0")), Some(Wish::List(set("0-3"))));
        assert_eq!(Wish::in_text(text, Some("timer")), Some(Wish::Auto));
        assert_eq!(Wish::in_text(text, Some("ctl handler")), None);
        assert_eq!(Wish::in_text(text, None), None);
        assert_eq!(Wish::in_text("auto", None), Some(Wish::Auto));
        assert_eq!(Wish::in_text("auto", Some("timer")), None);
    }

    #[test]
    fn a_wish_only_takes_away() {
        assert_eq!(Wish::List(set("2-5")).narrow(set("0-3")), Some(set("2,3")));
        assert_eq!(Wish::List(set("4-5")).narrow(set("0-3")), None);
        assert_eq!(Wish::Auto.narrow(Set::EMPTY), None);
    }

    #[test]
    fn auto_is_the_least_occupied() {
        let own = std::process::id();
        assert_eq!(Wish::Auto.narrow(set("6,7")), Some(set("6")));
        occupy(own, &set("6"));
        assert_eq!(Wish::Auto.narrow(set("6,7")), Some(set("7")));
    }
}
