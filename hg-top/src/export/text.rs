//! Compact tables for pipes and for terminals without a screen: what the views show, one after the other.

use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::json::Beside;
use crate::model::reconcile::Sum;
use crate::model::scope::Scope;
use crate::model::timeline::{Basis, Timeline};
use crate::model::{EbpfState, Snapshot};
use crate::unit::{age, bytes, class_size, clock, count, ns, percent, rate};
use crate::view::arena::kind;

/// The latest events that are printed.
const MAX_EVENTS: usize = 30;

/// The locks that are printed: those held longest in all.
const MAX_LOCKS: usize = 30;

/// The newest snapshot as text. Rates need two snapshots; until then they are `-`.
pub fn render(timeline: &Timeline, beside: Beside<'_>) -> String {
    let mut text = String::new();
    if let Some(latest) = timeline.latest() {
        // Writing to a string cannot fail.
        let _ = write(&mut text, latest, timeline, beside);
    }
    text
}

fn write(out: &mut String, latest: &Snapshot, timeline: &Timeline, beside: Beside<'_>) -> fmt::Result {
    let Beside { events, alerts, .. } = beside;
    let ebpf = match &latest.ebpf {
        EbpfState::On { attached, found } => format!("eBPF {attached}/{found} sites"),
        EbpfState::Off(why) => format!("eBPF off: {why}"),
    };
    writeln!(out, "hg-top {} UTC · {ebpf} · lost {}", time(latest.time), latest.lost_events())?;
    for process in latest.processes.values() {
        let identity = &process.identity;
        let up = age(process.uptime(process.exited.unwrap_or(latest.time)));
        let role = latest.said_role(identity.pid).unwrap_or(&identity.role);
        write!(out, "process {} {} · {role} · up {up}", identity.pid, identity.comm)?;
        if process.exited.is_some() {
            write!(out, " · EXITED, last figures")?;
        }
        if let Some(error) = &process.page_error {
            write!(out, " · {error}")?;
        }
        writeln!(out)?;
    }
    summary(out, latest)?;
    arenas(out, latest)?;
    for of in latest.arenas() {
        super::arena::figures(out, &of, latest.at)?;
        if let Some(map) = beside.maps.and_then(|maps| maps.get(&of.id)) {
            super::arena::map(out, map)?;
        }
        if let Some(shared) = of.shared {
            super::shared::members(out, shared, latest.at)?;
        }
    }
    classes(out, latest, timeline)?;
    locks(out, latest, timeline)?;
    let older = events.len().saturating_sub(MAX_EVENTS);
    if older > 0 {
        writeln!(out, "\n({older} older events: -O json has them)")?;
    }
    for event in &events[older..] {
        writeln!(out, "event {} {} {} {}", time(event.time), event.probe.name, event.pid, event.meaning())?;
    }
    for alert in alerts.all() {
        let (kind, since) = (alert.kind.label(), time(alert.since));
        writeln!(out, "alert {kind} {} {} × since {since}: {}", alert.pid, alert.count, alert.evidence)?;
        writeln!(out, "      next: {}", alert.next_step)?;
    }
    Ok(())
}

fn summary(out: &mut String, latest: &Snapshot) -> fmt::Result {
    let sum = Sum::of(latest, Scope::All);
    writeln!(out, "\nMEMORY")?;
    for (sign, name, part) in [
        (' ', "live cells", sum.live_cells),
        ('+', "large objects", sum.large),
        ('+', "cached cells", sum.cached),
        ('+', "free cells in spans", sum.free_cells),
        ('+', "free pages, dirty", sum.free_dirty),
        ('+', "tables", sum.tables),
        ('=', "hg", sum.hg()),
        ('+', "files and shared", sum.files),
    ] {
        writeln!(out, "{sign} {name:<22} {:>9}  {:>5}", bytes(part), percent(part, sum.kernel))?;
    }
    let difference = sum.difference();
    let (sign, what) = if difference < 0 { ('-', sum.excess()) } else { ('+', "stacks and other maps") };
    writeln!(out, "{sign} {what:<22} {:>9}", bytes(difference.unsigned_abs()))?;
    let kernel = if sum.once { "RSS, shared once" } else { "RSS + hugetlb" };
    writeln!(out, "= {kernel:<22} {:>9}  by the kernel", bytes(sum.kernel))
}

fn arenas(out: &mut String, latest: &Snapshot) -> fmt::Result {
    writeln!(
        out,
        "\n{:>7} {:<12} {:<9} {:<24} {:>9} {:>9} {:>9} {:>5} {:>5}",
        "PID", "ARENA", "KIND", "TIER", "COMMITTED", "RESERVED", "PINNED", "GROWN", "SHRUNK"
    )?;
    for of in latest.arenas() {
        let Some(f) = &of.arena.figures else { continue };
        let label = |tier: Option<hg_probes::words::Tier>| tier.map_or("?", |tier| tier.label());
        let why = f.tier_reason.map_or("?", |reason| reason.label());
        let tier = format!("{} → {} ({why})", label(f.tier_wanted), label(f.tier));
        let pid = of.process.identity.pid;
        writeln!(
            out,
            "{:>7} {:<12} {:<9} {tier:<24} {:>9} {:>9} {:>9} {:>5} {:>5}",
            of.shared.map_or(pid.to_string(), |shared| format!("× {}", shared.count().0)),
            of.arena.name,
            kind(f),
            bytes(f.committed),
            bytes(f.reserved),
            bytes(f.pinned),
            count(f.grows),
            count(f.shrinks)
        )?;
    }
    Ok(())
}

fn classes(out: &mut String, latest: &Snapshot, timeline: &Timeline) -> fmt::Result {
    let base = timeline.base(Basis::PerSecond);
    let seconds = base.map(|base| timeline.seconds_since(base));
    writeln!(
        out,
        "\n{:>7} {:>7} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>6}",
        "SIZE", "LIVE", "BYTES", "CACHED", "REUSED/s", "CARVED/s", "REFILL/s", "FLUSH/s", "FULL"
    )?;
    for (size, sum) in Scope::All.classes(latest, base) {
        let counters = sum.class.total.unwrap_or_default();
        if counters.refills == 0 && sum.class.cells == 0 {
            continue;
        }
        let live = sum.live.unwrap_or(0);
        let per_second = |of: fn(&crate::model::Counters) -> u64| {
            rate(sum.change.zip(seconds).map(|(change, seconds)| of(&change) as f64 / seconds))
        };
        writeln!(
            out,
            "{:>7} {:>7} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>6}{}",
            class_size(size),
            sum.live.map_or("-".into(), count),
            bytes(live.saturating_mul(size.into())),
            count(sum.class.cached()),
            per_second(|c| c.reused),
            per_second(|c| c.carved),
            per_second(|c| c.refills),
            per_second(|c| c.flushes),
            percent(live, sum.class.cells),
            if sum.class.torn { " torn" } else { "" }
        )?;
    }
    Ok(())
}

fn locks(out: &mut String, latest: &Snapshot, timeline: &Timeline) -> fmt::Result {
    writeln!(
        out,
        "\n{:<12} {:<6} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}",
        "LOCK", "REASON", "COUNT", "WAITp50", "p99", "max", "HOLDp50", "p99", "max", "STALLS"
    )?;
    let time = |value: Option<u64>| value.map_or("-".into(), ns);
    let mut locks: Vec<_> = Scope::All.locks(latest, timeline.base(Basis::PerSecond)).into_iter().collect();
    locks.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.total.hold.sum_ns));
    let more = locks.len().saturating_sub(MAX_LOCKS);
    for ((lock, reason), sum) in locks.into_iter().take(MAX_LOCKS) {
        let (wait, hold) = (&sum.total.wait, &sum.total.hold);
        writeln!(
            out,
            "{:<12} {:<6} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}{}",
            lock.to_string(),
            reason.label(),
            count(hold.count),
            time(wait.percentile(50.0)),
            time(wait.percentile(99.0)),
            ns(wait.max_ns),
            time(hold.percentile(50.0)),
            time(hold.percentile(99.0)),
            ns(hold.max_ns),
            count(hold.stalls.saturating_add(wait.stalls)),
            if sum.torn { " torn" } else { "" }
        )?;
    }
    if more > 0 {
        writeln!(out, "({more} locks that were held less: -O json has them)")?;
    }
    Ok(())
}

fn time(time: SystemTime) -> String {
    clock(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}
