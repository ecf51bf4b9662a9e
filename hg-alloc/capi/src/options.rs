//! How an arena is to be made: a structure that may grow, and what it means to the core.

use crate::status::Status;
use crate::text;
use core::ffi::{c_char, c_void};
use hg_alloc::profile::{Profile, Size};

crate::versioned!("hg_options_init" "hg_profile_check");

/// An arena of the calling process. A forked child inherits a copy of it: blocks from before the fork are there, and can be
/// freed there.
pub const HG_KIND_PRIVATE: u32 = 0;
/// An arena that is the same in the calling process and all that it forks from then on: each may free what another
/// allocated. It ends with the last of them.
pub const HG_KIND_SHARED: u32 = 1;
/// A shared arena that processes of the same user open by its name; it stays until hg_arena_unlink and the last process, or a
/// restart of the machine.
pub const HG_KIND_NAMED: u32 = 2;

/// What backs the memory: base pages. So does 0, the default.
pub const HG_TIER_BASE: u32 = 1;
/// Transparent huge pages are asked for; the kernel may have none.
pub const HG_TIER_THP: u32 = 3;
/// Pages of the hugetlb pool as long as it has some, transparent huge pages after that. For shared arenas, whose cap is then 16
/// GiB at most; others take transparent ones.
pub const HG_TIER_HUGETLB: u32 = 4;

/// Lock the memory into RAM.
pub const HG_FLAG_PIN: u32 = 1;
/// Blocks lie at multiples of 8 bytes in place of 16, at distances that are odd multiples of 8: hash tables that take bits of
/// addresses spread better.
pub const HG_FLAG_ODD_STRIDES: u32 = 2;
/// A forked child may go on allocating from its copy of a private arena beyond what that has; else the copy takes frees, and
/// allocations as far as its memory goes.
pub const HG_FLAG_GROWS_INHERITED: u32 = 4;

/// hg_arena_fd may be called for a shared arena: the library keeps a descriptor of it, close-on-exec. Named arenas need none.
pub const HG_FLAG_PASS: u32 = 8;

/// No two calls are ever in a private arena at the same time, not even one in a signal handler that interrupts another: as where
/// each process has one thread that uses it. Calls are cheapest then. A thread of the library does not tick it. Of a shared arena
/// it is refused with HG_STATUS_KIND.
pub const HG_FLAG_SINGLE_THREADED: u32 = 16;

const FLAGS: u32 = HG_FLAG_PIN | HG_FLAG_ODD_STRIDES | HG_FLAG_GROWS_INHERITED | HG_FLAG_PASS | HG_FLAG_SINGLE_THREADED;

/// How an arena is to be made. Filled by hg_options_init, then changed. Later versions have more fields at the end; the first
/// one says how many the program knows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    /// Size of this structure as the program knows it, bytes: sizeof(hg_options).
    pub struct_size: usize,
    /// HG_KIND_PRIVATE, HG_KIND_SHARED or HG_KIND_NAMED.
    pub kind: u32,
    /// HG_FLAG_... values, or-ed.
    pub flags: u32,
    /// HG_TIER_...: what should back the memory; 0 for base pages.
    pub tier: u32,
    /// Must be 0.
    pub reserved: u32,
    /// What hg-top shows, at most 31 bytes of UTF-8; null for "arena". For a named arena it is the name by which others open it:
    /// letters, digits, '-', '_' and '.', and no '.' first.
    pub name: *const c_char,
    /// INIT:CAP, such as "64m:4g": committed at the start and kept, and the most it can grow to. Units k, m, g; a number
    /// without one is in MiB; one size alone is both. Null: the two numbers below.
    pub size: *const c_char,
    /// What is committed at the start and kept, bytes. Not looked at where size is given.
    pub init_bytes: u64,
    /// The most that the arena can grow to, bytes, 4 MiB to 32 GiB. Not looked at where size is given.
    pub cap_bytes: u64,
    /// When it grows ahead of demand and shrinks, such as "scale up to 2g on 70% for 3 cycles within 10 / scale down to 256m on
    /// 30% for 20 cycles". Null: it grows as needed, and gives back what is idle. Somebody has to call hg_tick.
    pub profile: *const c_char,
    /// Memory of the caller's in which all blocks are to lie; null: memory of the system. It stays the caller's, who keeps it
    /// mapped as long as the arena is used, and does not touch it. For a shared arena it is mapped MAP_SHARED. The arena's
    /// tables lie elsewhere.
    pub memory: *mut c_void,
    /// Bytes of that memory; the part of it from the first to the last multiple of 2 MiB is used.
    pub memory_bytes: usize,
}

/// The least and the greatest cap of an arena, bytes.
pub(crate) const LEAST_CAP: u64 = 4 << 20;
const GREATEST_CAP: u64 = 32 << 30;

/// Bytes of the structure as its first version had it, and more than any version will have.
const FIRST_SIZE: usize = size_of::<Options>();
const GREATEST_SIZE: usize = 4096;

/// Fills options with what holds where nothing is said: a private arena without a name, of base pages. bytes is
/// sizeof(hg_options). The size has to be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_options_init(options: *mut Options, bytes: usize) -> Status {
    if options.is_null() {
        return Status::Argument;
    }
    if !(FIRST_SIZE..=GREATEST_SIZE).contains(&bytes) {
        return Status::Options;
    }
    // SAFETY: C1: so many bytes can be written, and all zero is a value of the structure.
    unsafe {
        options.cast::<u8>().write_bytes(0, bytes);
        (*options).struct_size = bytes;
    }
    Status::Ok
}

/// Looks at a profile: HG_STATUS_PROFILE if it cannot be read, and then a message says where and why, cut to bytes with its zero
/// at the end. message may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_profile_check(profile: *const c_char, message: *mut c_char, bytes: usize) -> Status {
    // SAFETY: C1.
    let Some(profile) = (unsafe { text::given(profile) }) else { return Status::Argument };
    let Err(error) = Profile::parse(profile) else { return Status::Ok };
    let (line, column) = (error.line.to_string(), error.column.to_string());
    // SAFETY: C1.
    unsafe { text::answer(&["line ", &line, " column ", &column, ": ", error.reason.label()], message, bytes) };
    Status::Profile
}

impl Options {
    /// The options of a program, which may know fewer fields than we do, or more; those that we do not know have to be 0.
    ///
    /// # Safety
    /// C1: not null, and as many bytes can be read as the first field says.
    pub(crate) unsafe fn given(options: *const Options) -> Result<Options, Status> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { (*options).struct_size };
        if !(FIRST_SIZE..=GREATEST_SIZE).contains(&bytes) {
            return Err(Status::Options);
        }
        // SAFETY: the caller's promise; the structure has no fewer bytes than we know.
        let (known, all) = unsafe { (*options, core::slice::from_raw_parts(options.cast::<u8>(), bytes)) };
        let unknown =
            all[FIRST_SIZE..].iter().any(|byte| *byte != 0) || known.flags & !FLAGS != 0 || known.reserved != 0;
        if unknown { Err(Status::Options) } else { Ok(known) }
    }

    /// What the arena starts with, and the most that it grows to, bytes.
    pub(crate) fn init_and_cap(&self) -> Result<(u64, u64), Status> {
        let (init, cap) = match self.size.is_null() {
            true => (self.init_bytes, self.cap_bytes),
            // SAFETY: C1.
            false => match unsafe { text::given(self.size) }.map(|size| Size::parse_from(size, LEAST_CAP)) {
                Some(Ok(size)) => (size.init_bytes, size.cap_bytes),
                _ => return Err(Status::Size),
            },
        };
        if init <= cap && (LEAST_CAP..=GREATEST_CAP).contains(&cap) { Ok((init, cap)) } else { Err(Status::Size) }
    }

    /// The name, or what stands for none.
    pub(crate) fn name(&self) -> Result<&str, Status> {
        if self.name.is_null() {
            return if self.kind == HG_KIND_NAMED { Err(Status::Name) } else { Ok("arena") };
        }
        // SAFETY: C1.
        unsafe { text::given(self.name) }.ok_or(Status::Name)
    }

    /// Whether transparent huge pages are asked for, and whether those of the pool.
    pub(crate) fn huge_and_hugetlb(&self) -> Result<(bool, bool), Status> {
        match self.tier {
            0 | HG_TIER_BASE => Ok((false, false)),
            HG_TIER_THP => Ok((true, false)),
            HG_TIER_HUGETLB => Ok((true, self.kind == HG_KIND_SHARED && self.memory.is_null())),
            _ => Err(Status::Argument),
        }
    }

    /// The profile, if one is given.
    pub(crate) fn profile(&self) -> Result<Option<Profile>, Status> {
        if self.profile.is_null() {
            return Ok(None);
        }
        // SAFETY: C1.
        let text = unsafe { text::given(self.profile) }.ok_or(Status::Profile)?;
        Profile::parse(text).map(Some).map_err(|_| Status::Profile)
    }
}
