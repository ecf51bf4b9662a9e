//! The layout of what crosses the process border, pinned: offset and size of every field of the stats page and of the map
//! keys and values, against `layout.golden`. Run with `HG_REGENERATE=1` to write it anew, and raise the version of the page
//! if a field that readers know has moved.

use std::fmt::Write;
use std::path::Path;

use hg_probes::grid::{DescriptorRecord, RunRecord, SpanRecord};
use hg_probes::maps::{ClassKey, ClassValue, Event, HistogramValue, LockKey, LockValue, Lost, Watched};
use hg_probes::page::{self, ClassStats, Decision, Header, Histogram, LockStats, Policy, StatsPage};
use hg_probes::words;

const fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Writes the layout of a struct. A field that is not listed shows as a gap.
macro_rules! layout {
    ($text:ident, $name:ident { $($field:ident),* $(,)? }) => {
        writeln!($text, "{} size {} align {}", stringify!($name), size_of::<$name>(), align_of::<$name>()).unwrap();
        let mut end = 0;
        $(
            let (offset, size) =
                (std::mem::offset_of!($name, $field), size_of_field(|of: &$name| &of.$field));
            if offset != end {
                writeln!($text, "  {end:>8} gap of {}", offset - end).unwrap();
            }
            writeln!($text, "  {offset:>8} {} size {size}", stringify!($field)).unwrap();
            end = offset + size;
        )*
        if end != size_of::<$name>() {
            writeln!($text, "  {end:>8} gap of {}", size_of::<$name>() - end).unwrap();
        }
    };
}

macro_rules! numbers {
    ($text:ident, $($name:ident)*) => { $(
        writeln!($text, "{}", stringify!($name)).unwrap();
        for word in words::$name::ALL {
            writeln!($text, "  {:>8} {}", *word as u64, word.label()).unwrap();
        }
    )* };
}

fn layouts() -> String {
    let mut text = String::new();
    writeln!(text, "magic {:#x} version {}", page::MAGIC, page::VERSION).unwrap();
    layout!(text, StatsPage { header, classes, locks, policy });
    layout!(
        text,
        Header {
            magic,
            version,
            header_size,
            size,
            features,
            seq,
            pid,
            arena,
            kind,
            name,
            created_ns,
            class_count,
            stall_us,
            fronts_address,
            fronts_stride,
            fronts_count,
            fronts_rseq,
            base_address,
            page_bytes,
            slice_bytes,
            runs_address,
            spans_address,
            descriptors_address,
            tiers_address,
            states_address,
            processes_address,
            threads_address,
            owner_deaths,
            recovered,
            stranded_bytes,
            sites_address,
            sample_bytes,
            reserved_identity,
            reserved_bytes,
            committed_bytes,
            committed_peak_bytes,
            free_dirty_bytes,
            free_clean_bytes,
            span_bytes,
            large_bytes,
            large_count,
            large_allocs,
            large_frees,
            metadata_bytes,
            pinned_bytes,
            pin_wanted,
            pin_errno,
            tier_wanted,
            tier,
            tier_reason,
            grow_blocked,
            grows,
            shrinks,
            top_slices,
            limbo_bytes,
            floor_bytes,
            ceiling_bytes,
            used_peak_bytes,
            blocked_cause,
            maintenance_tid,
            blocked_since_ns,
            decay_ms,
            tier_bytes,
            tier_reasons,
            grows_refused,
            allocs_failed,
            corruptions,
            cells_deferred,
        }
    );
    layout!(
        text,
        ClassStats {
            seq,
            size,
            front_offset,
            entry_bytes,
            front_zone,
            reserved,
            refills,
            reused,
            carved,
            flushes,
            flushed,
            transfer_cells,
            spans,
            cells,
            central_cells,
            drained,
            span_bytes,
        }
    );
    layout!(text, Policy { seq, reserved, written, ticks, last_tick_ns, decisions });
    layout!(text, Decision { at_ns, times, verdict, why, bytes, page, class, cells, percent });
    layout!(text, RunRecord { kind, pool, reserved, length, next, previous });
    layout!(text, SpanRecord { next, previous, listed, reserved, free, carved, states, hint });
    layout!(text, DescriptorRecord { reciprocal, start, first_state, array });
    layout!(text, LockStats { seq, lock, hold, wait });
    layout!(text, Histogram { count, sum_ns, max_ns, max_at_ns, max_tid, stalls, buckets });
    layout!(text, Watched { keys, parent, reserved });
    layout!(text, ClassKey { tgid, arena, class });
    layout!(text, ClassValue { refills, reused, carved, flushes, flushed });
    layout!(text, LockKey { tgid, arena, lock, reason });
    layout!(text, LockValue { hold, wait });
    layout!(text, HistogramValue { count, sum_ns, max_ns, buckets });
    layout!(text, Event { ns, probe, tgid, tid, stack, args });
    writeln!(
        text,
        "Lost {} RingFull {} MapFull {} KeysSpent {} FilterFull {} Recursion {}",
        Lost::COUNT,
        Lost::RingFull as u32,
        Lost::MapFull as u32,
        Lost::KeysSpent as u32,
        Lost::FilterFull as u32,
        Lost::Recursion as u32
    )
    .unwrap();
    for probe in hg_probes::PROBES {
        writeln!(text, "probe {:>2} {}", probe.id as u16, probe.name).unwrap();
    }
    numbers!(text, Tier TierReason Cause Reason StallKind CorruptionKind Source Destination Verdict Why RunKind FreePool);
    text
}

#[test]
fn the_layout_is_the_one_readers_know() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout.golden");
    let now = layouts();
    if std::env::var_os("HG_REGENERATE").is_some() {
        std::fs::write(&path, &now).expect("written");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden layout");
    let changed: Vec<String> = golden
        .lines()
        .map(Some)
        .chain(std::iter::repeat(None))
        .zip(now.lines().map(Some).chain(std::iter::repeat(None)))
        .take(golden.lines().count().max(now.lines().count()))
        .filter(|(was, is)| was != is)
        .map(|(was, is)| format!("was {}, is {}", was.unwrap_or("nothing"), is.unwrap_or("nothing")))
        .collect();
    assert!(changed.is_empty(), "the layout changed (HG_REGENERATE=1 accepts it):\n{}", changed.join("\n"));
}

#[test]
fn counts_agree_with_the_words() {
    assert_eq!(page::REASONS, words::Reason::ALL.len());
    const { assert!(words::Cause::ALL.len() <= page::CAUSES) };
    const { assert!(words::Tier::ALL.len() <= page::TIERS) };
    const { assert!(words::TierReason::ALL.len() <= page::TIER_REASONS) };
    const { assert!(words::CorruptionKind::ALL.len() <= page::CORRUPTION_KINDS) };
}

#[test]
fn buckets_are_powers_of_two() {
    let edges = [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
        (4, 2),
        (1023, 9),
        (1024, 10),
        ((1 << 31) - 1, 30),
        (1 << 31, 31),
        (u64::MAX, 31),
    ];
    for (ns, bucket) in edges {
        assert_eq!(page::bucket(ns), bucket, "{ns} ns");
    }
    for bucket in 0..page::BUCKETS - 1 {
        assert_eq!(page::bucket(page::bucket_end(bucket)), bucket + 1);
        assert_eq!(page::bucket(page::bucket_end(bucket) - 1), bucket);
    }
    assert_eq!(page::bucket_end(page::BUCKETS - 1), u64::MAX);
}
