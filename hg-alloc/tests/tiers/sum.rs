//! Whatever memory is committed lies on a page of some tier: at rest the tiers' bytes are the committed ones, to the slice.

use super::{MIB, filled, holds, page, raw, stage, tier_bytes};
use hg_probes::words::Tier;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks of this size leave and take parts of pages.
const ODD: usize = 3 * MIB / 2 + (96 << 10);

const ALL: [Tier; 6] = [Tier::None, Tier::Base, Tier::Mid, Tier::Collapsed, Tier::Thp, Tier::Hugetlb];

/// What is committed, which is what all tiers hold together.
fn committed(when: &str) -> usize {
    let committed = page().header.committed_bytes.load(Relaxed) as usize;
    let by_tier = ALL.map(tier_bytes);
    assert_eq!(by_tier.iter().sum::<usize>(), committed, "{when}: {by_tier:?} of {ALL:?}");
    assert_eq!(by_tier[0], 0, "{when}: memory that nothing backs");
    committed
}

fn grows_and_shrinks() {
    for round in 0..3 {
        let mut blocks: Vec<_> = (0..40).map(|_| filled(ODD, 1)).collect();
        let grown = committed("grown");
        assert!(grown >= 40 * ODD);
        // One in eight stays, so that parts of pages go.
        for (index, block) in blocks.iter().enumerate().filter(|(index, _)| index % 8 != 0) {
            raw::free(*block);
            if index % 5 == 0 {
                committed("while it is freed");
            }
        }
        hg_alloc::trim();
        let less = committed("given back");
        assert!(less < grown - 16 * ODD, "{less} of {grown} stay");
        // Runs that were given back come again, whole and in parts, and what was not touched goes again.
        let again: Vec<_> = (0..20).map(|_| raw::malloc(ODD / 2)).collect();
        assert!(committed("grown again") > less);
        again.into_iter().for_each(raw::free);
        hg_alloc::trim();
        committed("given back again");
        let large = filled(24 * MIB, 2);
        committed("grown by one");
        assert!(holds(large, 24 * MIB, 2));
        raw::free(large);
        let kept = blocks.iter().step_by(8);
        assert!(kept.clone().all(|block| holds(*block, ODD, 1)));
        kept.for_each(|block| raw::free(*block));
        blocks.clear();
        hg_alloc::trim();
        assert!(committed("at the end") < 8 * MIB, "round {round}");
    }
}

#[test]
fn of_base_pages() {
    if !stage::in_child("sum::of_base_pages", &[("HG_TIER", "base")], &[stage::User::Same]) {
        grows_and_shrinks();
    }
}

#[test]
fn of_huge_pages() {
    for tier in ["thp", "auto"] {
        if !stage::in_child("sum::of_huge_pages", &[("HG_TIER", tier)], &[stage::User::Same]) {
            return grows_and_shrinks();
        }
    }
}

#[test]
fn of_collapsed_pages() {
    if !stage::in_child("sum::of_collapsed_pages", &[("HG_TIER", "collapse")], &[stage::User::Same]) {
        grows_and_shrinks();
    }
}

#[test]
fn of_locked_pages() {
    let variables = [("HG_TIER", "base"), ("HG_PIN", "1")];
    if stage::in_child("sum::of_locked_pages", &variables, &[stage::User::Same]) {
        return;
    }
    if !super::capability::may_lock() {
        return println!("skipped: without privileges the limit decides");
    }
    grows_and_shrinks();
}

#[test]
fn of_a_pool_that_runs_out() {
    if !super::hugetlb::with_pool("sum::of_a_pool_that_runs_out", 24, &[stage::User::Same]) {
        grows_and_shrinks();
    }
}
