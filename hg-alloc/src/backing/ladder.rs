//! The ladder: from the tier that is wanted down to the one that can be had, for memory that a growth brings.
//!
//! ```text
//! hugetlb pool        a page of the pool for every page, filled before anybody sees it
//! THP                 huge pages at the first touch, by advice
//! THP by collapse     base pages at the first touch, huge ones once a page is densely used (`tend.rs`)
//! 64 KiB              folios of 64 KiB at the first touch, where the administrator switched them on
//! base pages
//! ```
//! What `HG_TIER` names is tried even against the administrator's setting, as far as the kernel goes along; what it steps
//! down to, and all of `auto`, respects it. Each step down has a reason, which is counted.
//!
//! Lock: none. Callers: the second phase of `grid/grow.rs`.

use super::pages::Backing;
use super::{hugetlb, tier};
use crate::sys::memory::{self, HUGE_PAGE};
use crate::sys::{Errno, pages};
use hg_probes::catalogue::args;
use hg_probes::emit;
use hg_probes::page::TIER_REASONS;
use hg_probes::words::{Tier, TierReason};

/// The ladder, from its top.
const LADDER: [Tier; 5] = [Tier::Hugetlb, Tier::Thp, Tier::Collapsed, Tier::Mid, Tier::Base];

/// What a range got.
#[derive(Clone, Copy)]
pub(crate) struct Backed {
    /// The tier, verified.
    pub(crate) tier: Tier,
    /// Why it is not the one wanted.
    pub(crate) reason: TierReason,
    /// Steps down by reason.
    pub(super) steps: [u8; TIER_REASONS],
    /// Bytes of the range.
    pub(crate) bytes: u64,
    /// Whether the range cannot be swapped out.
    pub(super) pinned: bool,
    /// What the kernel said to the lock, 0 for nothing.
    pub(super) pin_errno: i32,
    /// What cannot be swapped out of this process by the kernel's count, where pinning was asked for.
    pub(super) unswappable_bytes: Option<u64>,
}

impl Backed {
    /// What the kernel said to the lock that was asked for, if it refused.
    pub(crate) fn pin_error(&self) -> Option<Errno> {
        (self.pin_errno != 0).then_some(Errno(self.pin_errno))
    }

    /// Whether all of the range is there already, touched or not.
    pub(crate) fn is_filled(&self) -> bool {
        self.pinned || self.tier == Tier::Hugetlb
    }

    fn step_down(&mut self, reason: TierReason) {
        if let Some(count) = self.steps.get_mut(reason as usize) {
            *count = count.saturating_add(1);
        }
        // The first reason answers the question, unless it is one that holds always.
        if matches!(self.reason, TierReason::Obtained | TierReason::Inherited) {
            self.reason = reason;
        }
    }

    /// Tells of what changed against the growth before, and of an attempt to pin.
    pub(crate) fn tell(&self, arena: u32, backing: Backing, before: Tier, page: u64, pinned_bytes: u64) {
        if before != Tier::None && before != self.tier {
            emit::tier_change(|| args::tier_change { arena, page, from: before, to: self.tier });
        }
        if backing.pin {
            emit::pin(|| args::pin { arena, bytes: self.bytes, pinned: pinned_bytes, errno: self.pin_errno });
        }
    }
}

/// Backs a range of accessible plain memory that nobody else knows of. `before` is the tier of the last growth.
pub(crate) fn back(address: usize, bytes: usize, backing: Backing, before: Tier) -> Backed {
    let mut backed = Backed {
        tier: Tier::Base,
        reason: TierReason::Obtained,
        steps: [0; TIER_REASONS],
        bytes: bytes as u64,
        pinned: false,
        pin_errno: 0,
        unswappable_bytes: None,
    };
    // Huge pages need whole places.
    let start = address.next_multiple_of(HUGE_PAGE);
    let whole = (address + bytes).saturating_sub(start) / HUGE_PAGE * HUGE_PAGE;
    for tier in LADDER.into_iter().skip_while(|tier| *tier != backing.tier) {
        let forced = backing.forced && tier == backing.tier;
        let outcome = match tier {
            Tier::Hugetlb if !forced => Err(TierReason::Inherited),
            Tier::Base => Ok(Tier::Base),
            _ if whole == 0 => Err(TierReason::NotBacked),
            Tier::Hugetlb => hugetlb::take(start, whole).map(|()| Tier::Hugetlb),
            Tier::Thp => tier::advise(start, whole),
            // A try takes milliseconds: one for an arena is enough, each page shows what it got.
            Tier::Collapsed if before == Tier::Collapsed => Ok(Tier::Collapsed),
            Tier::Collapsed => tier::collapse(start, forced),
            _ => tier::middle(start, whole),
        };
        match outcome {
            Ok(tier) => {
                backed.tier = tier;
                break;
            }
            Err(reason) => backed.step_down(reason),
        }
    }
    if backing.tier == Tier::Base {
        backed.reason = TierReason::NotAsked;
        // Where huge pages are for everybody, base pages have to be asked for. Kernels without the former refuse.
        let _ = pages::avoid_huge(address, bytes);
    }
    if backing.pin {
        backed.pin(address, bytes);
    }
    backed
}

impl Backed {
    /// Locks the range into RAM. Pages of the pool are never swapped out.
    fn pin(&mut self, address: usize, bytes: usize) {
        let locked = if self.tier == Tier::Hugetlb { Ok(()) } else { memory::pin(address, bytes) };
        match locked {
            Ok(()) => self.pinned = true,
            Err(errno) => {
                self.pin_errno = errno.0;
                // The kernel may have marked the range and then failed to fill it.
                let _ = pages::unlock(address, bytes);
            }
        }
        self.unswappable_bytes = pages::unswappable_bytes();
    }
}
