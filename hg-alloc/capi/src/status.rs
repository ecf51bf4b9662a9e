//! Error codes and their texts.

use core::ffi::{CStr, c_char};

crate::versioned!("hg_status_text" "hg_version");

/// What a function answers: HG_STATUS_OK, or why it did not do what it was asked for.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// A null pointer where none is allowed, or a number out of its range.
    Argument = 1,
    /// Options of another size than any that this library knows, or with fields set that it does not know.
    Options = 2,
    /// The size is no INIT:CAP, such as 64m:4g, from 4m to 32g.
    Size = 3,
    /// The profile cannot be read, or does not fit the size; hg_profile_check tells what is wrong with one.
    Profile = 4,
    /// A name is empty, longer than 31 bytes, or has other characters than letters, digits, '-', '_' and '.', or starts with '.'.
    Name = 5,
    /// The process has as many arenas as it can have: 16.
    TooMany = 6,
    /// The system refused memory or address space; errno says how.
    Memory = 7,
    /// An arena of that name is there already.
    Exists = 8,
    /// There is no arena of that name.
    Absent = 9,
    /// The folder of named arenas or a file in it is not this user's alone, or does not lie in memory.
    Unsafe = 10,
    /// Something else lies where the arena has to be in this process.
    AddressTaken = 11,
    /// The file is no arena, or not one of this version.
    NotAnArena = 12,
    /// The arena is not of a kind that can do that.
    Kind = 13,
    /// The system refused something else; errno says what.
    System = 14,
}

impl Status {
    const ALL: [Status; 15] = [
        Status::Ok,
        Status::Argument,
        Status::Options,
        Status::Size,
        Status::Profile,
        Status::Name,
        Status::TooMany,
        Status::Memory,
        Status::Exists,
        Status::Absent,
        Status::Unsafe,
        Status::AddressTaken,
        Status::NotAnArena,
        Status::Kind,
        Status::System,
    ];

    fn text(self) -> &'static CStr {
        match self {
            Status::Ok => c"done",
            Status::Argument => c"a null pointer, or a number out of its range",
            Status::Options => c"options of an unknown size, or with unknown fields set",
            Status::Size => c"the size is no INIT:CAP from 4m to 32g",
            Status::Profile => c"the profile cannot be read, or does not fit the size",
            Status::Name => c"a name has 1 to 31 letters, digits, '-', '_' and '.', and no '.' first",
            Status::TooMany => c"the process has as many arenas as it can have",
            Status::Memory => c"the system refused memory or address space",
            Status::Exists => c"an arena of that name is there already",
            Status::Absent => c"there is no arena of that name",
            Status::Unsafe => c"the arena's folder or file is not this user's alone, or not in memory",
            Status::AddressTaken => c"something else lies where the arena has to be in this process",
            Status::NotAnArena => c"the file is no arena of this version",
            Status::Kind => c"the arena is not of a kind that can do that",
            Status::System => c"the system refused; errno says what",
        }
    }
}

/// The text of an error code, in English, without a line's end. For a number that is none: "unknown error". Never null;
/// the text lasts for ever.
#[unsafe(no_mangle)]
pub extern "C" fn hg_status_text(status: i32) -> *const c_char {
    let known = Status::ALL.into_iter().find(|known| *known as i32 == status);
    known.map_or(c"unknown error", Status::text).as_ptr()
}

/// The version of the library, such as "0.1.0". Programs were compiled with HG_VERSION of the header.
#[unsafe(no_mangle)]
pub extern "C" fn hg_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
