//! Statistics, reports and dumps in the forms that Kamailio asks for.

use super::calls::Which;
use super::layout::{Extreme, Report};
use crate::dump;
use crate::figures::{Figures, Info, blocks};
use core::ffi::c_void;

pub(super) unsafe extern "C" fn info<W: Which>(_block: *mut c_void, info: *mut Info) {
    // SAFETY: the caller gives a structure to be filled.
    unsafe { info.write(Info::of(W::DOMAIN)) };
}

pub(super) unsafe extern "C" fn available<W: Which>(_block: *mut c_void) -> usize {
    Figures::of(W::DOMAIN).free
}

/// A block that nobody names: an arena does not keep who allocated each.
const fn nobody() -> Extreme {
    Extreme { size: 0, file: c"".as_ptr(), function: c"".as_ptr(), module: c"".as_ptr(), line: 0 }
}

pub(super) unsafe extern "C" fn report<W: Which>(_block: *mut c_void, report: *mut Report) {
    let figures = Figures::of(W::DOMAIN);
    let (used, free) = blocks(W::DOMAIN);
    let filled = Report {
        total_size: figures.total,
        free_size_stats: figures.free,
        free_size_measured: figures.free,
        used_size_stats: figures.used,
        used_size_measured: figures.used,
        real_used_stats: figures.real_used,
        max_used_stats: figures.max_used,
        free_frags: free,
        used_frags: used,
        total_frags: used + free,
        largest_free: nobody(),
        smallest_free: nobody(),
        largest_used: nobody(),
        smallest_used: nobody(),
    };
    // SAFETY: the caller gives a structure to be filled.
    unsafe { report.write(filled) };
}

pub(super) unsafe extern "C" fn status<W: Which>(_block: *mut c_void) {
    dump::write(W::DOMAIN, true);
}

pub(super) unsafe extern "C" fn sums<W: Which>(_block: *mut c_void) {
    dump::write(W::DOMAIN, false);
}

/// The list of modules stays empty, as the caller made it.
pub(super) unsafe extern "C" fn no_module_stats(_block: *mut c_void, _list: *mut *mut c_void) {}

/// There is no list to free.
pub(super) unsafe extern "C" fn free_no_module_stats(_list: *mut c_void) {}
