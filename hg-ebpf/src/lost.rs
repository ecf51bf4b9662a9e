//! What could not be counted: one sum per reason, so that a figure on screen that is too low says so.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use hg_probes::maps::Lost;

use crate::word::add;

#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(Lost::COUNT, 0);

/// Counts one lost hit.
#[inline(always)]
pub(crate) fn lost(reason: Lost) {
    if let Some(sum) = LOST.get_ptr_mut(reason as u32) {
        // SAFETY: the pointer came from the map.
        unsafe { add(sum, 1) };
    }
}
