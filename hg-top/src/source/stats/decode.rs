//! From the copy of a stats page to the model: bounds everything, believes nothing.

use std::collections::BTreeMap;
use std::mem::offset_of;

use hg_probes::page::{
    BUCKETS, CAUSES, CORRUPTION_KINDS, ClassStats, DECISIONS, Decision as RawDecision, Header, Histogram as Raw,
    LockStats, Policy as RawPolicy, TIER_REASONS, TIERS, feature, front_entries, kind,
};
use hg_probes::words::{Cause, LockId, Reason, Tier, TierReason, Verdict, Why};

use super::copy::{Block, PageCopy};
use super::discover::Region;
use super::map;
use super::memory::{Memory, Piece};
use super::pagemap::Pagemap;
use crate::escape;
use crate::model::{Arena, Class, Counters, Decision, Figures, Histogram, HoldWait, Lock, Policy, Records};

/// Front caches of one arena that are read: twice the CPUs of the largest machines.
const MAX_FRONTS: u32 = 8192;

/// Number of an arena in the process that made it.
pub fn number(copy: &PageCopy) -> u32 {
    copy.header_block().u32(offset_of!(Header, arena))
}

/// Whether the page says that several processes share the arena.
pub fn is_shared(copy: &PageCopy) -> bool {
    copy.header_block().u32(offset_of!(Header, kind)) == kind::SHARED
}

/// What the page of an arena says. Torn blocks keep what `last` knew of them.
pub fn arena(copy: &PageCopy, region: Region, pid: u32, last: Option<&Arena>) -> Arena {
    let header = copy.header_block();
    let figures = match (copy.header_torn(), last) {
        (true, last) => last.and_then(|last| last.figures.clone()),
        (false, _) => Some(Figures { records: records(copy, region), ..figures(header) }),
    };
    let policy = copy.policy().map(policy).or_else(|| last.and_then(|last| last.policy.clone()));
    let fronts = front_cells(copy, pid, region.shared);
    let classes = copy.classes().filter_map(|(index, block)| class(index, block, copy, &fronts, last)).collect();
    let locks = copy.locks().filter_map(|(reason, index, block)| lock(reason, index, block, copy, last)).collect();
    let name = name(header).unwrap_or_else(|| format!("arena {}", number(copy)));
    Arena { name, figures, policy, classes, locks, torn: copy.torn() }
}

fn name(header: Block<'_>) -> Option<String> {
    let bytes: [u8; 32] = header.array(offset_of!(Header, name))?;
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    (end > 0).then(|| escape::bytes(&bytes[..end]))
}

fn figures(header: Block<'_>) -> Figures {
    let word = |offset| header.u64(offset);
    let half = |offset| u64::from(header.u32(offset));
    let list = |offset: usize, len: usize| (0..len).map(|i| header.u64(offset + 8 * i)).collect();
    let features = word(offset_of!(Header, features));
    Figures {
        shared: match header.u32(offset_of!(Header, kind)) {
            kind::PRIVATE => Some(false),
            kind::SHARED => Some(true),
            _ => None,
        },
        tier: Tier::from_u64(half(offset_of!(Header, tier))),
        tier_wanted: Tier::from_u64(half(offset_of!(Header, tier_wanted))),
        tier_reason: TierReason::from_u64(half(offset_of!(Header, tier_reason))),
        reserved: word(offset_of!(Header, reserved_bytes)),
        committed: word(offset_of!(Header, committed_bytes)),
        committed_peak: word(offset_of!(Header, committed_peak_bytes)),
        free_dirty: word(offset_of!(Header, free_dirty_bytes)),
        free_clean: word(offset_of!(Header, free_clean_bytes)),
        spans: word(offset_of!(Header, span_bytes)),
        large: word(offset_of!(Header, large_bytes)),
        large_count: word(offset_of!(Header, large_count)),
        large_allocs: word(offset_of!(Header, large_allocs)),
        large_frees: word(offset_of!(Header, large_frees)),
        metadata: word(offset_of!(Header, metadata_bytes)),
        pinned: word(offset_of!(Header, pinned_bytes)),
        pin_wanted: half(offset_of!(Header, pin_wanted)) != 0,
        pin_errno: header.u32(offset_of!(Header, pin_errno)),
        grow_blocked: half(offset_of!(Header, grow_blocked)) != 0,
        grows: word(offset_of!(Header, grows)),
        shrinks: word(offset_of!(Header, shrinks)),
        grows_refused: list(offset_of!(Header, grows_refused), CAUSES),
        allocs_failed: list(offset_of!(Header, allocs_failed), CAUSES),
        corruptions: list(offset_of!(Header, corruptions), CORRUPTION_KINDS),
        cells_deferred: word(offset_of!(Header, cells_deferred)),
        page_bytes: word(offset_of!(Header, page_bytes)),
        slice_bytes: word(offset_of!(Header, slice_bytes)),
        stall_us: header.u32(offset_of!(Header, stall_us)),
        fronts: (header.u32(offset_of!(Header, fronts_rseq)), header.u32(offset_of!(Header, fronts_count))),
        by_mm_cid: features & feature::MM_CID != 0,
        created_at: word(offset_of!(Header, created_ns)),
        tier_bytes: list(offset_of!(Header, tier_bytes), TIERS),
        tier_reasons: list(offset_of!(Header, tier_reasons), TIER_REASONS),
        limbo: word(offset_of!(Header, limbo_bytes)),
        floor: word(offset_of!(Header, floor_bytes)),
        ceiling: word(offset_of!(Header, ceiling_bytes)),
        used_peak: word(offset_of!(Header, used_peak_bytes)),
        blocked_cause: Cause::from_u64(half(offset_of!(Header, blocked_cause)))
            .filter(|_| half(offset_of!(Header, grow_blocked)) != 0),
        blocked_since: word(offset_of!(Header, blocked_since_ns)),
        maintenance_tid: header.u32(offset_of!(Header, maintenance_tid)),
        decay_ms: word(offset_of!(Header, decay_ms)),
        owner_deaths: word(offset_of!(Header, owner_deaths)),
        recovered: word(offset_of!(Header, recovered)),
        stranded: word(offset_of!(Header, stranded_bytes)),
        inherited: features & feature::INHERITED != 0,
        creator: header.u32(offset_of!(Header, pid)),
        number: header.u32(offset_of!(Header, arena)),
        records: Records::default(),
    }
}

/// Where the grid's records lie.
fn records(copy: &PageCopy, region: Region) -> Records {
    let header = copy.header_block();
    let word = |offset| header.u64(offset);
    let classes = copy.classes().filter_map(|(index, block)| {
        let offset = block?.u32(offset_of!(ClassStats, front_offset));
        Some((offset, copy.size_hint(index)?))
    });
    Records {
        base: word(offset_of!(Header, base_address)),
        runs: word(offset_of!(Header, runs_address)),
        spans: word(offset_of!(Header, spans_address)),
        descriptors: word(offset_of!(Header, descriptors_address)),
        tiers: word(offset_of!(Header, tiers_address)),
        states: word(offset_of!(Header, states_address)),
        top: word(offset_of!(Header, top_slices)),
        top_at: region.start.saturating_add(offset_of!(Header, top_slices) as u64),
        arrays: map::arrays(word(offset_of!(Header, fronts_address)), classes),
    }
}

fn policy(block: Block<'_>) -> Policy {
    let written = block.u64(offset_of!(RawPolicy, written));
    let newest_first = (0..written.min(DECISIONS as u64)).map(|back| (written - 1 - back) as usize % DECISIONS);
    Policy {
        ticks: block.u64(offset_of!(RawPolicy, ticks)),
        last_tick_at: block.u64(offset_of!(RawPolicy, last_tick_ns)),
        written,
        decisions: newest_first
            .map(|index| decision(block, offset_of!(RawPolicy, decisions) + index * size_of::<RawDecision>()))
            .collect(),
    }
}

fn decision(block: Block<'_>, start: usize) -> Decision {
    let word = |offset| block.u64(start + offset);
    let half = |offset| block.u32(start + offset);
    let percent = word(offset_of!(RawDecision, percent));
    Decision {
        at: word(offset_of!(RawDecision, at_ns)),
        times: word(offset_of!(RawDecision, times)),
        verdict: Verdict::from_u64(half(offset_of!(RawDecision, verdict)).into()),
        why: Why::from_u64(half(offset_of!(RawDecision, why)).into()),
        bytes: word(offset_of!(RawDecision, bytes)),
        page: half(offset_of!(RawDecision, page)),
        class: half(offset_of!(RawDecision, class)),
        cells: word(offset_of!(RawDecision, cells)),
        percent: ((percent >> 32) as u32, percent as u32),
    }
}

/// Cells in the front caches, by index of the class. Classes whose heads could not all be read are left out. Heads on pages that
/// the process does not have are of caches never used: empty; unless others may have them.
fn front_cells(copy: &PageCopy, pid: u32, shared: bool) -> BTreeMap<usize, u64> {
    let memory = Memory::of(pid);
    let mut pagemap = Pagemap::open(pid).filter(|_| !shared);
    let mut there = |piece: &Piece| {
        let last = piece.address.saturating_add(piece.len as u64 - 1);
        pagemap.as_mut().is_none_or(|pagemap| pagemap.has(piece.address) && pagemap.has(last))
    };
    let header = copy.header_block();
    let base = header.u64(offset_of!(Header, fronts_address));
    let stride = header.u64(offset_of!(Header, fronts_stride));
    let count = header.u32(offset_of!(Header, fronts_count));
    let mut cells = BTreeMap::new();
    if base == 0 || count > MAX_FRONTS {
        return cells;
    }
    for (index, block) in copy.classes() {
        let Some(block) = block else { continue };
        let offset = u64::from(block.u32(offset_of!(ClassStats, front_offset)));
        let entry = block.u32(offset_of!(ClassStats, entry_bytes));
        let zone = block.u32(offset_of!(ClassStats, front_zone));
        let head = |front: u64| base.checked_add(front.checked_mul(stride)?)?.checked_add(offset);
        let pieces: Option<Vec<Piece>> =
            (0..u64::from(count)).map(|front| Some(Piece { address: head(front)?, len: 4 })).collect();
        let Some(mut pieces) = pieces.filter(|_| entry > 0) else { continue };
        pieces.retain(&mut there);
        let mut heads = vec![0; 4 * pieces.len()];
        if memory.gather(&pieces, &mut heads).is_ok_and(|read| read == pieces.len()) {
            let bytes = heads.chunks_exact(4).map(|head| u32::from_ne_bytes(head.try_into().unwrap_or_default()));
            let sane = bytes.map(|bytes| u64::from(front_entries(bytes, zone, entry)));
            cells.insert(index, sane.sum());
        }
    }
    cells
}

fn class(
    index: usize,
    block: Option<Block<'_>>,
    copy: &PageCopy,
    fronts: &BTreeMap<usize, u64>,
    last: Option<&Arena>,
) -> Option<(u32, Class)> {
    let Some(block) = block else {
        // A torn block does not even tell its size for certain, but sizes never change.
        let size = copy.size_hint(index)?;
        let known = last.and_then(|arena| arena.classes.get(&size)).copied().unwrap_or_default();
        return Some((size, Class { torn: true, ..known }));
    };
    let size = block.u32(offset_of!(ClassStats, size));
    let total = Counters {
        refills: block.u64(offset_of!(ClassStats, refills)),
        reused: block.u64(offset_of!(ClassStats, reused)),
        carved: block.u64(offset_of!(ClassStats, carved)),
        flushes: block.u64(offset_of!(ClassStats, flushes)),
        flushed: block.u64(offset_of!(ClassStats, flushed)),
        drained: block.u64(offset_of!(ClassStats, drained)),
    };
    (size > 0).then(|| {
        let class = Class {
            total: Some(total),
            traced: None,
            front_cells: fronts.get(&index).copied(),
            transfer_cells: block.u64(offset_of!(ClassStats, transfer_cells)),
            spans: block.u64(offset_of!(ClassStats, spans)),
            cells: block.u64(offset_of!(ClassStats, cells)),
            central_cells: block.u64(offset_of!(ClassStats, central_cells)),
            span_bytes: block.u64(offset_of!(ClassStats, span_bytes)),
            torn: false,
        };
        (size, class)
    })
}

fn lock(
    reason: usize,
    index: usize,
    block: Option<Block<'_>>,
    copy: &PageCopy,
    last: Option<&Arena>,
) -> Option<((LockId, Reason), Lock)> {
    let reason = Reason::from_u64(reason as u64)?;
    let Some(block) = block else {
        let id = if index == hg_probes::page::GRID_LOCK { LockId::GRID } else { LockId::class(copy.size_hint(index)?) };
        let known = last.and_then(|arena| arena.locks.get(&(id, reason))).cloned().unwrap_or_default();
        return Some(((id, reason), Lock { torn: true, ..known }));
    };
    let hold = histogram(block, offset_of!(LockStats, hold));
    let wait = histogram(block, offset_of!(LockStats, wait));
    let id = LockId(block.u32(offset_of!(LockStats, lock)));
    (hold.count > 0 || wait.count > 0)
        .then_some(((id, reason), Lock { total: Some(HoldWait { hold, wait }), traced: None, torn: false }))
}

fn histogram(block: Block<'_>, start: usize) -> Histogram {
    let buckets = start + offset_of!(Raw, buckets);
    Histogram {
        count: block.u64(start + offset_of!(Raw, count)),
        sum_ns: block.u64(start + offset_of!(Raw, sum_ns)),
        max_ns: block.u64(start + offset_of!(Raw, max_ns)),
        max_at_ns: block.u64(start + offset_of!(Raw, max_at_ns)),
        max_tid: block.u32(start + offset_of!(Raw, max_tid)),
        stalls: u64::from(block.u32(start + offset_of!(Raw, stalls))),
        buckets: std::array::from_fn::<_, BUCKETS, _>(|i| block.u64(buckets + 8 * i)),
    }
}
