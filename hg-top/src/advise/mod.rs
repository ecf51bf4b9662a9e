//! Advice: how large an arena should be, what should back it and whether it can be pinned, from what it really reached.
//!
//! The peaks are the arena's own, kept at the moment they happen and never sampled, so a spike between two looks counts.
//! Each advice says how sure it is and why not surer.

use std::time::Duration;

use hg_probes::words::{Cause, Tier, TierReason};

pub mod host;
pub mod record;
pub mod run;
pub mod what_if;

pub use host::Host;

use crate::model::{Figures, MonotonicNs};
use crate::remedy;
use crate::unit;

/// Memory is committed in granules of so many bytes; an arena whose peak is below one gets by with [`SMALL_GRANULE`].
const GRANULE: u64 = 16 << 20;

/// The granule of a small arena, bytes.
const SMALL_GRANULE: u64 = 256 << 10;

/// Number of the process's own arena; those made by handle have greater ones.
const OWN: u32 = 1;

/// A process that is up for less has not shown what it needs.
const SHORT: Duration = Duration::from_secs(600);

/// One that is up for less may have more to show.
const PROVISIONAL: Duration = Duration::from_secs(2 * 3600);

/// How sure an advice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sure {
    /// The peak is no good guide yet.
    Low,
    /// It may still change.
    Medium,
    /// It has stood for long.
    High,
}

impl Sure {
    /// The word shown.
    pub fn label(self) -> &'static str {
        match self {
            Sure::Low => "low",
            Sure::Medium => "medium",
            Sure::High => "high",
        }
    }
}

/// A remark on one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `size`, `tier`, `pin`, `growth`.
    pub topic: &'static str,
    /// What there is to say.
    pub text: String,
    /// What to type, where that helps.
    pub command: Option<String>,
}

/// The advice for an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Whether the arena is the process's own, whose size a setting of hg gives; else it is up to who makes the arena.
    pub own: bool,
    /// Bytes to commit at the start.
    pub init: u64,
    /// Bytes that it may grow to.
    pub cap: u64,
    /// How sure that is.
    pub sure: Sure,
    /// Why not surer.
    pub doubts: Vec<String>,
    /// What it goes by.
    pub evidence: String,
    /// Remarks.
    pub findings: Vec<Finding>,
}

impl Advice {
    /// `INIT:CAP` as a program takes it: `HG_SIZE=352m:640m`, or `INIT:CAP=352m:640m` where its host has words of its own.
    pub fn setting(&self) -> String {
        let name = if self.own { "HG_SIZE" } else { "INIT:CAP" };
        format!("{name}={}:{}", size(self.init), size(self.cap))
    }
}

/// The advice for an arena with these figures at `now`; `before` are earlier ones, if there are. `None` while it never held
/// anything.
pub fn advise(figures: &Figures, before: Option<&Figures>, now: MonotonicNs, host: &Host) -> Option<Advice> {
    let used_peak = figures.used_peak.max(figures.used());
    if used_peak == 0 {
        return None;
    }
    let granule = if used_peak < GRANULE { SMALL_GRANULE } else { GRANULE };
    let up = |bytes: u64| bytes.div_ceil(granule).saturating_mul(granule);
    // INIT is never given back. An eighth more than ever was in use starts without a growth; but where most of the peak is
    // idle now it was a spike, which an arena grows for and gives back after. Twice the peak is room for what was not seen.
    let spike = figures.used() < used_peak / 2;
    let base = if spike { figures.used().max(figures.floor) } else { used_peak };
    let init = up(base.saturating_add(base / 8).max(granule));
    // No arena does with less than a granule of address space.
    let cap = up(used_peak.saturating_mul(2)).max(up(figures.committed_peak)).max(GRANULE);
    let up_time = Duration::from_nanos(now.saturating_sub(figures.created_at));
    let (sure, mut doubts) = doubts(figures, before, used_peak, up_time);
    if spike {
        doubts.push("less than half of the peak is in use now: INIT goes by what is, CAP by the peak".into());
    }
    let evidence = format!(
        "{} were in use and {} committed at the peak, in {}; the floor is {}",
        unit::bytes(used_peak),
        unit::bytes(figures.committed_peak),
        unit::age(up_time),
        unit::bytes(figures.floor)
    );
    let findings = [tier(figures, init, host), pin(figures, host), growth(figures)].into_iter().flatten().collect();
    Some(Advice { own: figures.number <= OWN, init, cap, sure, doubts, evidence, findings })
}

fn doubts(figures: &Figures, before: Option<&Figures>, used_peak: u64, up: Duration) -> (Sure, Vec<String>) {
    let mut sure = Sure::High;
    let mut doubts = Vec::new();
    let mut doubt = |level: Sure, text: String| {
        sure = sure.min(level);
        doubts.push(text);
    };
    if up < SHORT {
        doubt(Sure::Low, format!("up for {} only: ask again after a day of load", unit::age(up)));
    } else if up < PROVISIONAL {
        doubt(Sure::Medium, format!("up for {} only: provisional", unit::age(up)));
    }
    let rose = before.is_some_and(|before| before.used_peak < figures.used_peak);
    if rose || figures.used() >= used_peak - used_peak / 50 {
        doubt(Sure::Low, "the peak is still rising: it is where the load is now".into());
    }
    let refused = figures.refused();
    if refused > 0 {
        let times = unit::count(refused);
        doubt(Sure::Low, format!("growth was refused {times} ×: the peak is what the limits let through"));
    }
    if figures.ceiling > 0 && figures.committed_peak >= figures.ceiling - figures.ceiling / 20 {
        doubt(Sure::Low, format!("the ceiling of {} was reached", unit::bytes(figures.ceiling)));
    }
    (sure, doubts)
}

fn tier(figures: &Figures, init: u64, host: &Host) -> Option<Finding> {
    let finding = |text: String, command: Option<String>| Some(Finding { topic: "tier", text, command });
    let reason = figures.tier_reason?;
    let got = figures.tier?.label();
    let wanted = figures.tier_wanted.map_or("unknown", Tier::label);
    match reason {
        _ if figures.tier == Some(Tier::None) => None,
        TierReason::Obtained => finding(format!("{got}, as wanted"), None),
        TierReason::NotAsked if init >= 2 * GRANULE => {
            finding(format!("{got}; this much memory gains from huge pages"), Some("HG_TIER=thp".into()))
        }
        TierReason::NotAsked => finding(format!("{got}; too little for huge pages to matter"), None),
        TierReason::PoolEmpty => {
            // The pool's pages have 2 MiB, whatever a page of the grid has.
            let more = init.div_ceil(2 << 20);
            let pages = host.huge_pages.unwrap_or(0).saturating_sub(host.huge_pages_free.unwrap_or(0)) + more;
            let text = format!("{got} instead of {wanted}: the pool is {more} pages short of INIT");
            finding(text, Some(format!("sysctl -w vm.nr_hugepages={pages}")))
        }
        reason => {
            let text = format!("{got} instead of {wanted}: {}", reason.label());
            finding(text, remedy::of_tier(Some(reason)).map(str::to_owned))
        }
    }
}

fn pin(figures: &Figures, host: &Host) -> Option<Finding> {
    let finding =
        |text: String, command: Option<&str>| Some(Finding { topic: "pin", text, command: command.map(str::to_owned) });
    if !figures.pin_wanted {
        return None;
    }
    if figures.pin_errno == 0 {
        return finding(
            format!("{} of {} are locked", unit::bytes(figures.pinned), unit::bytes(figures.committed)),
            None,
        );
    }
    let error = unit::os_error(figures.pin_errno);
    let limit = host.memlock.map_or_else(String::new, |limit| format!("; the limit is {}", unit::bytes(limit)));
    let text = format!(
        "only {} of {} are locked: {error}{limit}",
        unit::bytes(figures.pinned),
        unit::bytes(figures.committed)
    );
    finding(text, Some(remedy::of_pin(figures.pin_errno)))
}

fn growth(figures: &Figures) -> Option<Finding> {
    let worst = figures.grows_refused.iter().enumerate().max_by_key(|(_, times)| **times)?;
    let cause = match figures.grow_blocked {
        true => figures.blocked_cause,
        false => Cause::from_u64(worst.0 as u64).filter(|_| *worst.1 > 0),
    };
    if cause.is_none() && !figures.grow_blocked {
        return None;
    }
    let name = cause.map_or("unknown cause", Cause::label);
    let text = match figures.grow_blocked {
        true => format!("blocked now: {name}"),
        false => format!("refused {} × in all, mostly: {name}", unit::count(figures.refused())),
    };
    Some(Finding { topic: "growth", text, command: Some(remedy::of_cause(cause).into()) })
}

/// A size as the program takes it: `352m`, `1g`, `768k`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}g", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000_000_000;

    fn figures() -> Figures {
        Figures {
            spans: 200 << 20,
            used_peak: 300 << 20,
            committed: 200 << 20,
            committed_peak: 420 << 20,
            ceiling: 64 << 30,
            grows_refused: vec![0; 32],
            tier: Some(Tier::Base),
            tier_wanted: Some(Tier::Base),
            tier_reason: Some(TierReason::NotAsked),
            ..Figures::default()
        }
    }

    #[test]
    fn sizes_come_from_the_peaks() {
        let advice = advise(&figures(), Some(&figures()), DAY, &Host::default()).unwrap();
        assert_eq!((advice.setting().as_str(), advice.sure), ("HG_SIZE=352m:608m", Sure::High));
        assert!(advice.doubts.is_empty(), "{:?}", advice.doubts);
        let spike = Figures { spans: 20 << 20, ..figures() };
        let advice = advise(&spike, None, DAY, &Host::default()).unwrap();
        assert_eq!((advice.setting().as_str(), advice.doubts.len()), ("HG_SIZE=32m:608m", 1));
        let small = Figures { spans: 2 << 20, used_peak: 3 << 20, committed_peak: 16 << 20, ..figures() };
        assert_eq!(advise(&small, None, DAY, &Host::default()).unwrap().setting(), "HG_SIZE=3584k:16m");
        let by_handle = Figures { number: 2, ..small.clone() };
        assert_eq!(advise(&by_handle, None, DAY, &Host::default()).unwrap().setting(), "INIT:CAP=3584k:16m");
        assert!(advise(&Figures::default(), None, DAY, &Host::default()).is_none());
        let absurd = Figures { used_peak: u64::MAX, committed_peak: u64::MAX, spans: u64::MAX, ..figures() };
        assert_eq!(advise(&absurd, None, 0, &Host::default()).unwrap().sure, Sure::Low);
    }

    #[test]
    fn it_says_why_it_is_not_surer() {
        let mut refused = figures();
        refused.grows_refused[Cause::Cgroup as usize] = 3;
        for (figures, before, now, sure, words) in [
            (figures(), None, DAY / 1440, Sure::Low, "up for 60 s only"),
            (figures(), None, DAY / 24, Sure::Medium, "provisional"),
            (figures(), Some(Figures { used_peak: 299 << 20, ..figures() }), DAY, Sure::Low, "still rising"),
            (Figures { spans: 300 << 20, ..figures() }, None, DAY, Sure::Low, "still rising"),
            (refused, None, DAY, Sure::Low, "refused 3 ×"),
            (Figures { ceiling: 420 << 20, ..figures() }, None, DAY, Sure::Low, "ceiling of 420 MiB"),
        ] {
            let advice = advise(&figures, before.as_ref(), now, &Host::default()).unwrap();
            assert_eq!(advice.sure, sure, "{words}");
            assert!(advice.doubts.iter().any(|doubt| doubt.contains(words)), "{words}: {:?}", advice.doubts);
        }
    }

    #[test]
    fn findings_carry_the_exact_command() {
        let host = Host { huge_pages: Some(64), huge_pages_free: Some(4), memlock: Some(8 << 20), ..Host::default() };
        let empty = Figures {
            tier_wanted: Some(Tier::Hugetlb),
            tier_reason: Some(TierReason::PoolEmpty),
            pin_wanted: true,
            pin_errno: libc::ENOMEM as u32,
            grow_blocked: true,
            blocked_cause: Some(Cause::Memlock),
            ..figures()
        };
        let advice = advise(&empty, None, DAY, &host).unwrap();
        let commands: Vec<_> =
            advice.findings.iter().map(|finding| (finding.topic, finding.command.as_deref().unwrap())).collect();
        assert_eq!(commands[0], ("tier", "sysctl -w vm.nr_hugepages=236"));
        assert_eq!(commands[1], ("pin", "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)"));
        assert_eq!(commands[2].0, "growth");
        assert!(advice.findings[1].text.contains("the limit is 8.00 MiB"), "{}", advice.findings[1].text);
        let plain = advise(&figures(), None, DAY, &host).unwrap();
        assert_eq!(plain.findings.len(), 1);
        assert_eq!(plain.findings[0].command.as_deref(), Some("HG_TIER=thp"));
    }
}
