//! What programs ask their malloc about itself: mallinfo, mallopt, malloc_trim, malloc_stats, malloc_info.
//!
//! The figures come from the stats page, so they cost nothing and count everything; hg-top shows far more.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;

/// `struct mallinfo2` of glibc.
#[repr(C)]
pub struct MallInfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// `struct mallinfo` of glibc: the same in ints, which large figures overflow.
#[repr(C)]
pub struct MallInfo([c_int; 10]);

struct Figures {
    committed: usize,
    spans: usize,
    large: usize,
    large_count: usize,
    free: usize,
    cells_live: usize,
    cells_free: usize,
    cells_free_bytes: usize,
}

/// Reads the stats page. Cells in front caches count as live: only a drain would tell them apart.
fn figures() -> Figures {
    let mut figures = Figures {
        committed: 0,
        spans: 0,
        large: 0,
        large_count: 0,
        free: 0,
        cells_live: 0,
        cells_free: 0,
        cells_free_bytes: 0,
    };
    let Some(page) = hg_alloc::stats_page() else { return figures };
    let header = &page.header;
    figures.committed = header.committed_bytes.load(Relaxed) as usize;
    figures.spans = header.span_bytes.load(Relaxed) as usize;
    figures.large = header.large_bytes.load(Relaxed) as usize;
    figures.large_count = header.large_count.load(Relaxed) as usize;
    figures.free = (header.free_dirty_bytes.load(Relaxed) + header.free_clean_bytes.load(Relaxed)) as usize;
    for class in &page.classes {
        let size = class.size.load(Relaxed) as usize;
        let free = (class.central_cells.load(Relaxed) + class.transfer_cells.load(Relaxed)) as usize;
        figures.cells_free += free;
        figures.cells_free_bytes += free * size;
        figures.cells_live += (class.cells.load(Relaxed) as usize).saturating_sub(free) * size;
    }
    figures
}

/// `mallinfo2(3)`: large objects are the mapped ones, spans the arena.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> MallInfo2 {
    let figures = figures();
    MallInfo2 {
        arena: figures.committed.saturating_sub(figures.large),
        ordblks: figures.cells_free,
        smblks: 0,
        hblks: figures.large_count,
        hblkhd: figures.large,
        usmblks: 0,
        fsmblks: 0,
        uordblks: figures.cells_live + figures.large,
        fordblks: figures.cells_free_bytes + figures.free,
        keepcost: figures.free,
    }
}

/// `mallinfo(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> MallInfo {
    let info = mallinfo2();
    let int = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    MallInfo([
        int(info.arena),
        int(info.ordblks),
        0,
        int(info.hblks),
        int(info.hblkhd),
        0,
        0,
        int(info.uordblks),
        int(info.fordblks),
        int(info.keepcost),
    ])
}

/// `mallopt(3)`: there is nothing to tune, and nothing wrong with trying.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// `malloc_trim(3)`: empties caches and gives free memory back. 1 if any was.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(hg_alloc::trim())
}

unsafe extern "C" {
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn fprintf(stream: *mut c_void, format: *const c_char, ...) -> c_int;
}

const STATS: &CStr = c"hg: committed %zu, spans %zu, large %zu in %zu, free %zu bytes (hg-top shows more)\n";
const INFO: &CStr =
    c"<malloc version=\"hg-1\">\n<system type=\"current\" size=\"%zu\"/>\n<total type=\"spans\" size=\"%zu\"/>\n\
<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n<total type=\"rest\" size=\"%zu\"/>\n</malloc>\n";

/// `malloc_stats(3)`: a line on stderr.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let f = figures();
    // SAFETY: the format names five sizes.
    unsafe { dprintf(2, STATS.as_ptr(), f.committed, f.spans, f.large, f.large_count, f.free) };
}

/// `malloc_info(3)`.
///
/// # Safety
/// `stream` is an open stream of stdio.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut c_void) -> c_int {
    if options != 0 {
        crate::set_errno(libc::EINVAL);
        return -1;
    }
    let f = figures();
    // SAFETY: the caller's promise; the format names five sizes.
    unsafe { fprintf(stream, INFO.as_ptr(), f.committed, f.spans, f.large_count, f.large, f.free) };
    0
}
