//! Alerts from snapshots, also without eBPF: what the stats page says now, and what changed since the last look.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use hg_probes::maps::Lost;
use hg_probes::words::{Cause, CorruptionKind, Tier, TierReason};

use super::{Kind, Sighting};
use crate::model::scope::same_arena;
use crate::model::{Arena, ArenaId, ArenaRef, Figures, Lock, Member, MonotonicNs, Shared, Snapshot};
use crate::{process, remedy, unit};

/// How long memory may be on its way to the system.
const MOST_LIMBO: Duration = Duration::from_secs(5);

/// What a snapshot says, compared with the one before it. `limbo` remembers since when memory is on its way.
pub(super) fn sightings(
    now: &Snapshot,
    before: Option<&Snapshot>,
    limbo: &mut BTreeMap<ArenaId, MonotonicNs>,
) -> Vec<Sighting> {
    let mut found = Vec::new();
    let lost = now.lost_events();
    let more = lost.saturating_sub(before.map_or(0, Snapshot::lost_events));
    if more > 0 {
        let evidence = format!("{} probe hits lost: {}", unit::count(lost), lost_causes(now));
        found.push(Sighting::new(Kind::ProbesDropped, 0, "", evidence, now.time).times(more));
    }
    limbo.retain(|id, _| now.arena(*id).is_some());
    for of in now.arenas() {
        let Some(reader) = of.reader(now) else { continue };
        let look = Look {
            pid: of.process.identity.pid,
            arena: of.arena,
            earlier: before.and_then(|before| same_arena(before, &of)),
            traced: reader.traced,
            time: now.time,
            before: before.map_or(now.time, |before| before.time),
        };
        look.torn(&mut found);
        let Some(figures) = &of.arena.figures else { continue };
        look.states(figures, now.at, &mut found);
        let since = limbo.entry(of.id).or_insert(now.at);
        match figures.limbo {
            0 => *since = now.at,
            bytes => look.limbo(bytes, Duration::from_nanos(now.at.saturating_sub(*since)), &mut found),
        }
        look.counters(figures, &mut found);
        match before.and_then(|before| before.arena(of.id)?.shared).zip(of.shared) {
            Some((earlier, shared)) if shared.members.is_some() => look.waits(shared, earlier, &mut found),
            _ => look.stalls(&of, now, &mut found),
        }
    }
    found
}

/// One arena now and before.
struct Look<'a> {
    pid: u32,
    arena: &'a Arena,
    earlier: Option<&'a Arena>,
    traced: bool,
    time: SystemTime,
    /// When the snapshot before was taken.
    before: SystemTime,
}

impl Look<'_> {
    fn seen(&self, kind: Kind, subject: impl Into<String>, evidence: String) -> Sighting {
        Sighting::new(kind, self.pid, subject, evidence, self.time)
    }

    fn torn(&self, found: &mut Vec<Sighting>) {
        let (torn, name) = (self.arena.torn, &self.arena.name);
        if torn > 0 {
            let evidence = format!("{torn} blocks of arena {name} changed at each attempt");
            found.push(self.seen(Kind::StatsTorn, name.clone(), evidence));
        }
    }

    /// States that last: they are told of as long as they do.
    fn states(&self, figures: &Figures, now: MonotonicNs, found: &mut Vec<Sighting>) {
        let name = &self.arena.name;
        if figures.grow_blocked {
            let why = figures.blocked_cause.map_or_else(String::new, |cause| format!(": {}", cause.label()));
            let since = Duration::from_nanos(now.saturating_sub(figures.blocked_since));
            let since = if figures.blocked_since > 0 { format!(", for {}", unit::age(since)) } else { String::new() };
            let (committed, reserved) = (unit::bytes(figures.committed), unit::bytes(figures.reserved));
            let evidence = format!("arena {name} cannot grow beyond {committed} of {reserved}{why}{since}");
            let sighting = self.seen(Kind::GrowBlocked, "", evidence).remedy(remedy::of_cause(figures.blocked_cause));
            found.push(sighting.lasting(self.before));
        }
        if figures.pin_wanted && figures.pin_errno != 0 {
            let error = unit::os_error(figures.pin_errno);
            let (pinned, committed) = (unit::bytes(figures.pinned), unit::bytes(figures.committed));
            let evidence = format!("arena {name}: {pinned} of {committed} locked into RAM: {error}");
            let sighting = self.seen(Kind::Unpinned, name.clone(), evidence).remedy(remedy::of_pin(figures.pin_errno));
            found.push(sighting.lasting(self.before));
        }
        if let Some(reason) = fallback(figures) {
            let label = |tier: Option<Tier>| tier.map_or("unknown", Tier::label);
            let (wanted, got) = (label(figures.tier_wanted), label(figures.tier));
            let evidence = format!("arena {name}: {got} instead of {wanted}: {}", reason.label());
            let sighting = self.seen(Kind::TierFallback, name.clone(), evidence);
            let remedy = remedy::of_tier(Some(reason)).unwrap_or(sighting.next_step);
            found.push(sighting.remedy(remedy).lasting(self.before));
        }
    }

    fn limbo(&self, bytes: u64, since: Duration, found: &mut Vec<Sighting>) {
        if since > MOST_LIMBO {
            let (name, bytes, since) = (&self.arena.name, unit::bytes(bytes), unit::age(since));
            let evidence = format!("arena {name}: {bytes} on the way to the system for {since}");
            found.push(self.seen(Kind::Limbo, name.clone(), evidence).lasting(self.before));
        }
    }

    /// Refused calls and failed allocations. Traced processes report these by events; before the first snapshot nobody did.
    fn counters(&self, figures: &Figures, found: &mut Vec<Sighting>) {
        let earlier = self.earlier.and_then(|arena| arena.figures.as_ref());
        if self.traced && earlier.is_some() {
            return;
        }
        let when = if earlier.is_none() { "before hg-top looked" } else { "by the stats page" };
        for (number, more) in risen(&figures.corruptions, earlier.map(|figures| &figures.corruptions)) {
            let kind = CorruptionKind::from_u64(number).map_or("unknown kind", CorruptionKind::label);
            let evidence = format!("refused: {more} × {kind}, {when}");
            found.push(self.seen(Kind::Corruption, kind, evidence).times(more));
        }
        let deaths = figures.owner_deaths.saturating_sub(earlier.map_or(0, |figures| figures.owner_deaths));
        if deaths > 0 {
            let name = &self.arena.name;
            let evidence =
                format!("{deaths} × a process died with a lock of arena {name}, which was put right, {when}");
            found.push(self.seen(Kind::OwnerDead, name.clone(), evidence).times(deaths));
        }
        for (number, more) in risen(&figures.allocs_failed, earlier.map(|figures| &figures.allocs_failed)) {
            let cause = Cause::from_u64(number).map_or("unknown cause", Cause::label);
            let evidence = format!("{more} allocations failed: {cause}, {when}");
            found.push(self.seen(Kind::AllocFailed, cause, evidence).times(more));
        }
    }

    /// Waits that processes of a shared arena told of in its directory, while they still wait.
    fn waits(&self, shared: &Shared, earlier: &Shared, found: &mut Vec<Sighting>) {
        if self.traced {
            return;
        }
        let members = || shared.members.iter().flatten();
        let new = |member: &Member| {
            let before = earlier.same(member).map_or(0, |before| before.counts.stalls);
            member.counts.stalls.saturating_sub(before)
        };
        let more = members().map(new).fold(0, u64::saturating_add);
        let newest = members().filter(|member| new(member) > 0).filter_map(|member| Some((member, member.stall?)));
        let Some((member, stall)) = newest.max_by_key(|(_, stall)| stall.at) else { return };
        // Who has the lock is not told there; a process that is stopped is worth a look.
        let is_stopped = |pid| process::Process::state(pid).is_ok_and(|state| matches!(state, 'T' | 't'));
        let stopped = members().find(|member| member.pid.is_some_and(is_stopped));
        let name = |member: &Member| match member.role.as_str() {
            "" => member.shown_pid().to_string(),
            role => format!("{} ({role})", member.shown_pid()),
        };
        let (lock, ns) = (stall.lock, unit::ns(stall.ns));
        let suspect = stopped.map_or_else(String::new, |stopped| format!("; {} is stopped", name(stopped)));
        let evidence = format!("{lock} stalled {more} ×, {ns} for {}, by the directory{suspect}", name(member));
        let about = stopped.unwrap_or(member);
        let sighting =
            Sighting::new(Kind::LockStall, about.shown_pid(), format!("{lock} waited for"), evidence, self.time)
                .role(Some(about.role.as_str()).filter(|role| !role.is_empty()))
                .times(more)
                .stuck(stopped.is_some());
        found.push(if stopped.is_some() { sighting.remedy(remedy::STOPPED) } else { sighting });
    }

    fn stalls(&self, of: &ArenaRef<'_>, now: &Snapshot, found: &mut Vec<Sighting>) {
        let Some(earlier) = self.earlier.filter(|_| !self.traced) else { return };
        let stalls = |lock: &Lock| lock.total.as_ref().map_or(0, |both| both.hold.stalls + both.wait.stalls);
        for ((lock, reason), taken) in &self.arena.locks {
            let more = stalls(taken).saturating_sub(earlier.locks.get(&(*lock, *reason)).map_or(0, stalls));
            let Some(total) = taken.total.as_ref().filter(|_| more > 0) else { continue };
            let evidence = format!(
                "{lock} stalled {more} × for {}, by the stats page; longest hold {} by tid {}",
                reason.label(),
                unit::ns(total.hold.max_ns),
                of.thread(now, total.hold.max_tid)
            );
            found.push(self.seen(Kind::LockStall, format!("{lock} {}", reason.label()), evidence).times(more));
        }
    }
}

/// Why less backs an arena than was asked for, where somebody could do something about it. What the administrator or the
/// policy decided is no alert.
fn fallback(figures: &Figures) -> Option<TierReason> {
    use TierReason::{AdviceRefused, NotBacked, NotOffered, PoolEmpty};
    let less = figures.tier != Some(Tier::None) && figures.tier != figures.tier_wanted;
    figures.tier_reason.filter(|reason| less && matches!(reason, AdviceRefused | NotBacked | NotOffered | PoolEmpty))
}

/// Which entries of a list of counters rose, and by how much.
fn risen<'a>(now: &'a [u64], before: Option<&'a Vec<u64>>) -> impl Iterator<Item = (u64, u64)> + 'a {
    now.iter().enumerate().filter_map(move |(index, now)| {
        let more = now.saturating_sub(before.and_then(|before| before.get(index)).copied().unwrap_or(0));
        (more > 0).then_some((index as u64, more))
    })
}

/// Why hits were lost: `ring full 12, map full 3`.
pub fn lost_causes(snapshot: &Snapshot) -> String {
    const CAUSES: [(Lost, &str); Lost::COUNT as usize] = [
        (Lost::RingFull, "ring full"),
        (Lost::MapFull, "map full"),
        (Lost::KeysSpent, "too many keys of one process"),
        (Lost::FilterFull, "too many processes"),
        (Lost::Recursion, "recursion"),
    ];
    let causes = CAUSES.iter().map(|(cause, name)| (name, snapshot.lost[*cause as usize]));
    causes.filter(|(_, lost)| *lost > 0).map(|(name, lost)| format!("{name} {lost}")).collect::<Vec<_>>().join(", ")
}
