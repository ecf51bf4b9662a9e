//! Arenas are made, opened by name, and passed on by descriptor.

use crate::handle::{Arena, get};
use crate::options::{
    HG_FLAG_GROWS_INHERITED, HG_FLAG_ODD_STRIDES, HG_FLAG_PASS, HG_FLAG_PIN, HG_FLAG_SINGLE_THREADED,
};
use crate::options::{HG_KIND_NAMED, HG_KIND_PRIVATE, HG_KIND_SHARED, Options};
use crate::status::Status;
use crate::text::given;
use core::ffi::{c_char, c_int};
use hg_alloc::shared::{self, Error, Kind};

crate::versioned!("hg_arena_create" "hg_arena_open" "hg_arena_unlink" "hg_arena_fd" "hg_arena_open_fd");

/// Makes an arena, and writes its handle to arena; null there if there is none. With HG_KIND_NAMED, processes that call
/// hg_arena_open find it under its name from then on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_arena_create(options: *const Options, arena: *mut *mut Arena) -> Status {
    if options.is_null() {
        return Status::Argument;
    }
    // SAFETY: C1.
    unsafe { answer(arena, || create(&Options::given(options)?)) }
}

/// Opens the arena that a process of the same user made under a name, and writes its handle to arena; null there if there is
/// none. It lies at the same addresses as there. Opening one twice gives the same handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_arena_open(name: *const c_char, arena: *mut *mut Arena) -> Status {
    // SAFETY: C1.
    let Some(name) = (unsafe { given(name) }) else { return Status::Argument };
    // SAFETY: C1.
    unsafe { answer(arena, || shared::open_named(name).map_err(status)) }
}

/// Takes the name of an arena away: nobody opens it from then on, and its memory goes when the last process that has it ends. Who
/// has it goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_arena_unlink(name: *const c_char) -> Status {
    // SAFETY: C1.
    let Some(name) = (unsafe { given(name) }) else { return Status::Argument };
    shared::unlink_named(name).map_or_else(status, |()| Status::Ok)
}

/// Writes to fd a new descriptor of the arena, close-on-exec and the caller's to close, which may be passed to another process
/// of the same user, by SCM_RIGHTS say, for hg_arena_open_fd. For named arenas, and for shared ones with HG_FLAG_PASS;
/// HG_STATUS_KIND for others. HG_STATUS_ABSENT where the name was taken away, or a daemon closed the descriptor that the library
/// had kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_arena_fd(arena: *const Arena, fd: *mut c_int) -> Status {
    // SAFETY: C1.
    let Some(arena) = (unsafe { get(arena) }) else { return Status::Argument };
    if fd.is_null() {
        return Status::Argument;
    }
    match arena.pass_on() {
        Ok(new) => {
            // SAFETY: C1.
            unsafe { *fd = new };
            Status::Ok
        }
        Err(error) => status(error),
    }
}

/// Opens the arena of a descriptor that came from hg_arena_fd of another process, and writes its handle to arena; null there if
/// there is none. The descriptor stays the caller's, and is not needed any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hg_arena_open_fd(fd: c_int, arena: *mut *mut Arena) -> Status {
    // SAFETY: C1.
    unsafe { answer(arena, || shared::open_descriptor(fd).map_err(status)) }
}

/// Writes what was made or opened, or null, to where C wants it.
///
/// # Safety
/// C1: `place` is null, or a pointer can be written there.
unsafe fn answer(place: *mut *mut Arena, make: impl FnOnce() -> Result<&'static shared::Arena, Status>) -> Status {
    if place.is_null() {
        return Status::Argument;
    }
    let (handle, status) = match make() {
        Ok(arena) => (Arena::of(arena), Status::Ok),
        Err(status) => (core::ptr::null_mut(), status),
    };
    // SAFETY: the caller's promise.
    unsafe { *place = handle };
    status
}

fn create(options: &Options) -> Result<&'static shared::Arena, Status> {
    let (init_bytes, cap_bytes) = options.init_and_cap()?;
    let profile = options.profile()?;
    if profile.is_some_and(|profile| profile.up.to_bytes <= init_bytes) {
        return Err(Status::Profile);
    }
    let (huge, hugetlb) = options.huge_and_hugetlb()?;
    let has = |flag: u32| options.flags & flag != 0;
    let asked = shared::Options {
        kind: match options.kind {
            HG_KIND_PRIVATE => Kind::Private,
            HG_KIND_SHARED | HG_KIND_NAMED => Kind::Shared,
            _ => return Err(Status::Argument),
        },
        name: options.name()?,
        init_bytes,
        cap_bytes,
        profile,
        huge,
        hugetlb,
        pin: has(HG_FLAG_PIN),
        odd_strides: has(HG_FLAG_ODD_STRIDES),
        memory: (!options.memory.is_null()).then_some((options.memory.cast(), options.memory_bytes)),
        grows_inherited: has(HG_FLAG_GROWS_INHERITED),
        single_threaded: has(HG_FLAG_SINGLE_THREADED),
    };
    if asked.single_threaded && asked.kind == Kind::Shared {
        return Err(Status::Kind);
    }
    let (named, passed) = (options.kind == HG_KIND_NAMED, has(HG_FLAG_PASS));
    // What another process opens by a descriptor is one file, and the caller's memory is none.
    if (named || passed) && asked.memory.is_some() || passed && options.kind == HG_KIND_PRIVATE {
        return Err(Status::Kind);
    }
    let create = match () {
        () if named => shared::create_named,
        () if passed => shared::create_passed,
        () => shared::create,
    };
    create(&asked).map_err(status)
}

/// The code of an error of the core, whose `errno` is set where the code says that it is.
fn status(error: Error) -> Status {
    let set = |errno: i32| {
        // SAFETY: the C library's variable of this thread.
        unsafe { *libc::__errno_location() = errno };
    };
    match error {
        Error::Cap | Error::Init => Status::Size,
        Error::Name => Status::Name,
        Error::Memory => Status::Argument,
        Error::TooMany => Status::TooMany,
        Error::Exists => Status::Exists,
        Error::Absent => Status::Absent,
        Error::Unsafe => Status::Unsafe,
        Error::AddressTaken => Status::AddressTaken,
        Error::NotAnArena => Status::NotAnArena,
        Error::NotPassed => Status::Kind,
        Error::Refused(_) => {
            set(libc::ENOMEM);
            Status::Memory
        }
        Error::System(errno @ (libc::ENOMEM | libc::ENOSPC | libc::EAGAIN)) => {
            set(errno);
            Status::Memory
        }
        Error::System(errno) => {
            set(errno);
            Status::System
        }
    }
}
