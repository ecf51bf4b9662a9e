//! OpenSIPS built with F_MALLOC alone: no variables of functions, its functions are called by name, so these are replaced before
//! the program runs. `fm_malloc_init` makes an arena then, and no block ever comes from the server's own allocator.
//!
//! Statistics are read from the head of the allocator's block by code that the compiler put into each caller. So both domains
//! have a block with that head, kept up to date here: what thresholds look at after each call, sums after each 64th and at each
//! step of maintenance. pkg's lies in this library's own memory, which a fork copies; shm's in the arena. Such builds take a lock
//! around each call for shm, so counts are exact; maintenance writes without it, and what it overwrites is as recent.
//!
//! Restart-persistent memory and the log of shm's blocks have blocks of their own, which nobody can serve any more: they get none.

use super::{FACTS, Facts, calls, pkg_arena, shm_arena};
use crate::domain::{Domain, PKG, SHM};
use crate::figures::{Figures, Info, blocks};
use crate::report::report;
use crate::symbols::{self, Symbol};
use crate::{dump, patch};
use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use hg_alloc::shared::Arena;

/// Calls between two sums over all size classes.
const SUM_EVERY: usize = 64;

/// The head of the server's `struct fm_block`, and a count of calls behind it.
#[repr(C)]
struct Block {
    name: AtomicPtr<c_char>,
    size: AtomicUsize,
    fragments: AtomicUsize,
    used: AtomicUsize,
    real_used: AtomicUsize,
    max_real_used: AtomicUsize,
    calls: AtomicUsize,
}

static PKG_BLOCK: Block = Block {
    name: AtomicPtr::new(null_mut()),
    size: AtomicUsize::new(0),
    fragments: AtomicUsize::new(0),
    used: AtomicUsize::new(0),
    real_used: AtomicUsize::new(0),
    max_real_used: AtomicUsize::new(0),
    calls: AtomicUsize::new(0),
};

/// shm's block; null until the arena is made.
static SHM_BLOCK: AtomicPtr<Block> = AtomicPtr::new(null_mut());

impl Block {
    fn sum(&self, domain: &Domain) {
        let figures = Figures::of(domain);
        let (used, free) = blocks(domain);
        self.size.store(figures.total, Relaxed);
        self.fragments.store(used + free, Relaxed);
        self.used.store(figures.used, Relaxed);
        self.max_real_used.store(figures.max_used, Relaxed);
        self.real_used.store(figures.real_used, Relaxed);
    }

    #[inline(always)]
    fn count(&self, domain: &Domain) {
        let calls = self.calls.load(Relaxed).wrapping_add(1);
        self.calls.store(calls, Relaxed);
        let real_used = Figures::real_used(domain);
        if calls.is_multiple_of(SUM_EVERY) || real_used > self.max_real_used.load(Relaxed) {
            self.sum(domain);
        } else if real_used != self.real_used.load(Relaxed) {
            self.real_used.store(real_used, Relaxed);
        }
    }
}

/// Whether the server is of this kind: it has this one allocator.
fn functions() -> Option<[(Symbol, usize); 6]> {
    if [c"qm_malloc_init", c"hp_shm_malloc_init", c"parallel_malloc_init"]
        .iter()
        .any(|name| symbols::find(name).is_some())
    {
        return None;
    }
    let of = |name, ours| symbols::find(name).filter(patch::can_replace).map(|theirs| (theirs, ours));
    Some([
        of(c"fm_malloc_init", init as *const () as usize)?,
        of(c"fm_malloc", malloc as *const () as usize)?,
        of(c"fm_realloc", realloc as *const () as usize)?,
        of(c"fm_free", free as *const () as usize)?,
        of(c"fm_info", info as *const () as usize)?,
        of(c"fm_status", status as *const () as usize)?,
    ])
}

/// Replaces the functions. None if this OpenSIPS is of another kind; false, with a line, if its text cannot be changed.
pub(super) fn install() -> Option<bool> {
    let is_done = functions()?.iter().all(|(theirs, ours)| {
        // SAFETY: the signatures are OpenSIPS's; nothing of it runs yet.
        unsafe { patch::replace(*theirs, *ours) }
    });
    if !is_done {
        report!(Error, "the program's text cannot be changed here, and this OpenSIPS has one allocator: it keeps that");
    }
    Some(is_done)
}

/// Brings shm's statistics up to date: maintenance changes them too, and it may be long until the next call.
pub(super) fn ticked() {
    if let Some((domain, block)) = of(SHM_BLOCK.load(Relaxed).cast()) {
        block.sum(domain);
    }
}

/// The domain of a block, and the block; none for blocks of other memory.
#[inline(always)]
fn of(block: *mut c_void) -> Option<(&'static Domain, &'static Block)> {
    if core::ptr::addr_eq(block, &raw const PKG_BLOCK) {
        return Some((&PKG, &PKG_BLOCK));
    }
    let shm = SHM_BLOCK.load(Relaxed);
    // SAFETY: not null, so the block that `init` made, in memory that stays.
    (!shm.is_null() && core::ptr::addr_eq(block, shm)).then(|| (&SHM, unsafe { &*shm }))
}

unsafe extern "C" fn init(_memory: *mut c_void, _bytes: usize, name: *mut c_char) -> *mut c_void {
    // SAFETY: the server gives a literal.
    let block = match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"pkg" => init_pkg(),
        b"shm" => init_shm(),
        other => {
            let name = core::str::from_utf8(other).unwrap_or_default();
            report!(
                Error,
                "{name}: no such memory here, as this OpenSIPS has one allocator: do without it, or without hg"
            );
            None
        }
    };
    let Some(block) = block else { return null_mut() };
    block.name.store(name, Relaxed);
    (&raw const *block).cast_mut().cast()
}

fn init_pkg() -> Option<&'static Block> {
    PKG.set(pkg_arena(FACTS.get()?)?, None);
    PKG_BLOCK.sum(&PKG);
    Some(&PKG_BLOCK)
}

fn init_shm() -> Option<&'static Block> {
    let facts = FACTS.get()?;
    let arena = shm_arena(facts)?;
    if facts.has_sites && !open_below(arena) {
        report!(Error, "shm: the page below the arena cannot be made readable: this OpenSIPS does not run with hg");
        return None;
    }
    let block = arena.calloc(size_of::<Block>()).cast::<Block>();
    // SAFETY: zeroed memory of that size in the arena, which lives as long as the process; zeros are a block.
    let block: &'static Block = unsafe { block.as_ref()? };
    SHM.set(arena, None);
    SHM_BLOCK.store((&raw const *block).cast_mut(), Relaxed);
    block.sum(&SHM);
    Some(block)
}

/// Makes the page below the arena's memory readable: the end of a guard. Before it frees a block of shm, a build with debugging
/// arguments reads a size for its log from a header that its own allocator keeps below each block; the first cell has nothing there.
fn open_below(arena: &Arena) -> bool {
    // SAFETY: no memory is passed.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let below = arena.stats_page().header.base_address.load(Relaxed) as usize - page;
    // SAFETY: a page of the arena's own mapping, which nothing but such reads ever looks at.
    unsafe { libc::mprotect(below as *mut c_void, page, libc::PROT_READ) == 0 }
}

/// What follows each call.
#[inline(always)]
fn done(domain: &Domain, block: &Block) {
    block.count(domain);
    if core::ptr::eq(block, &PKG_BLOCK)
        && let Some(facts) = FACTS.get()
    {
        facts.check_pkg_threshold();
    }
}

unsafe extern "C" fn malloc(
    block: *mut c_void,
    bytes: usize,
    file: calls::Text,
    function: calls::Text,
    line: u32,
) -> *mut c_void {
    let Some((domain, block)) = of(block) else { return null_mut() };
    let address = domain.malloc(bytes, || domain.site(file, function, line));
    done(domain, block);
    address
}

unsafe extern "C" fn realloc(
    block: *mut c_void,
    address: *mut c_void,
    bytes: usize,
    file: calls::Text,
    function: calls::Text,
    line: u32,
) -> *mut c_void {
    let Some((domain, block)) = of(block) else { return null_mut() };
    let moved = domain.realloc(address, bytes, false, &domain.site(file, function, line));
    done(domain, block);
    moved
}

unsafe extern "C" fn free(
    block: *mut c_void,
    address: *mut c_void,
    file: calls::Text,
    function: calls::Text,
    line: u32,
) {
    let Some((domain, block)) = of(block) else { return };
    domain.free(address, false, || domain.site(file, function, line));
    done(domain, block);
}

unsafe extern "C" fn info(block: *mut c_void, info: *mut Info) {
    let figures = of(block).map_or_else(Info::default, |(domain, _)| Info::of(domain));
    // SAFETY: the caller gives a structure to be filled.
    unsafe { info.write(figures) };
}

unsafe extern "C" fn status(block: *mut c_void) {
    if let (Some((domain, _)), Some(true)) = (of(block), FACTS.get().map(Facts::is_dump_logged)) {
        dump::write(domain, true);
    }
}
