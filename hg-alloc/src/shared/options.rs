//! What an arena made by handle is asked to be, and why there may be none.

use crate::elastic::profile::Profile;
use crate::sys::Errno;
use crate::sys::memory::HUGE_PAGE;
use hg_probes::words::Cause;

/// Who may use an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The process that makes it; a forked child has a copy.
    Private,
    /// That process and all its children.
    Shared,
}

/// What an arena is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Who may use it.
    pub kind: Kind,
    /// Its name on the screen, at most 31 bytes.
    pub name: &'a str,
    /// Bytes that are committed at once, and stay so.
    pub init_bytes: u64,
    /// The most that it may commit, bytes: 4 MiB to 32 GiB, rounded up to whole pages of 2 MiB.
    pub cap_bytes: u64,
    /// When it grows ahead of demand and shrinks; see [`profile`](crate::profile).
    pub profile: Option<Profile>,
    /// Whether transparent huge pages are asked for. Memory is filled then when it is committed.
    pub huge: bool,
    /// Whether pages of the hugetlb pool are taken first, as long as it has some. In shared arenas without memory of the caller;
    /// the cap is then 16 GiB at most.
    pub hugetlb: bool,
    /// Whether its memory is locked into RAM, as far as that is allowed.
    pub pin: bool,
    /// Whether cells are odd multiples of 8 bytes, so that hashes of their addresses spread. Blocks are then aligned to 8, else to
    /// 16.
    pub odd_strides: bool,
    /// Memory of the caller to be used: where, and how many bytes. It has to be mapped readable and writable for ever, shared by all
    /// processes if the arena is; tables lie elsewhere. The cap is then what fits, whatever `cap_bytes` says.
    pub memory: Option<(*mut u8, usize)>,
    /// Whether a forked child may let its copy of a private arena grow.
    pub grows_inherited: bool,
    /// Whether no two calls are ever in a private arena at the same time, not even one in a signal handler that interrupts
    /// another: as for memory of which each process has one thread use it. Calls are cheapest then, on every kernel. Shared
    /// arenas do not look at it.
    pub single_threaded: bool,
}

impl<'a> Options<'a> {
    /// A shared arena with nothing special about it.
    pub const fn shared(name: &'a str, init_bytes: u64, cap_bytes: u64) -> Options<'a> {
        Options {
            kind: Kind::Shared,
            name,
            init_bytes,
            cap_bytes,
            profile: None,
            huge: false,
            hugetlb: false,
            pin: false,
            odd_strides: false,
            memory: None,
            grows_inherited: false,
            single_threaded: false,
        }
    }

    /// A private arena with nothing special about it.
    pub const fn private(name: &'a str, init_bytes: u64, cap_bytes: u64) -> Options<'a> {
        Options { kind: Kind::Private, ..Options::shared(name, init_bytes, cap_bytes) }
    }
}

/// Why there is no arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The cap is not between 4 MiB and 32 GiB.
    Cap,
    /// More is to be committed at once than the cap.
    Init,
    /// The name is empty or too long.
    Name,
    /// The caller's memory has no room for two pages of 2 MiB at multiples of that.
    Memory,
    /// The process has as many arenas as it can have.
    TooMany,
    /// The system refused memory or address space, with this errno.
    System(i32),
    /// What is to be committed at once cannot be had, for this cause.
    Refused(Cause),
    /// An arena of that name is there already.
    Exists,
    /// There is no arena of that name, or its descriptor was closed.
    Absent,
    /// The folder of named arenas, or a file in it, is not this user's alone, or does not lie in memory.
    Unsafe,
    /// Something else is mapped where the arena has to be.
    AddressTaken,
    /// The file is no arena of this version.
    NotAnArena,
    /// The arena was not made to be passed on.
    NotPassed,
}

impl Error {
    /// In a few words.
    pub const fn label(&self) -> &'static str {
        match self {
            Error::Cap => "the cap is not between 4 MiB and 32 GiB",
            Error::Init => "the initial size is above the cap",
            Error::Name => "the name is empty or longer than 31 bytes",
            Error::Memory => "the memory given has no room for an arena",
            Error::TooMany => "this process has as many arenas as it can have",
            Error::System(_) => "the system refused memory or address space",
            Error::Refused(_) => "the initial size cannot be committed",
            Error::Exists => "an arena of that name is there already",
            Error::Absent => "there is no arena of that name",
            Error::Unsafe => "the arena's folder or file is not this user's alone, or not in memory",
            Error::AddressTaken => "something else is mapped where the arena has to be",
            Error::NotAnArena => "the file is no arena of this version",
            Error::NotPassed => "the arena was not made to be passed on",
        }
    }

    /// As an errno value.
    pub const fn errno(&self) -> i32 {
        match self {
            Error::Cap | Error::Init | Error::Name | Error::Memory | Error::NotAnArena | Error::NotPassed => {
                libc::EINVAL
            }
            Error::Exists | Error::AddressTaken => libc::EEXIST,
            Error::Absent => libc::ENOENT,
            Error::Unsafe => libc::EACCES,
            Error::TooMany => libc::EMFILE,
            Error::System(errno) => *errno,
            Error::Refused(_) => libc::ENOMEM,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::System(errno.0)
    }
}

const LEAST_CAP: u64 = 4 << 20;
const GREATEST_CAP: u64 = 32 << 30;

/// Whether the options make sense, and the cap in whole pages.
pub(super) fn check(options: &Options) -> Result<usize, Error> {
    if options.name.is_empty() || options.name.len() > 31 {
        return Err(Error::Name);
    }
    let cap = match options.memory {
        Some((start, bytes)) => {
            let first = (start as usize).next_multiple_of(HUGE_PAGE);
            ((start as usize).saturating_add(bytes)).saturating_sub(first) as u64 / HUGE_PAGE as u64 * HUGE_PAGE as u64
        }
        None => options.cap_bytes,
    };
    let greatest = if options.hugetlb { GREATEST_CAP / 2 } else { GREATEST_CAP };
    match options.memory {
        Some(_) if cap < LEAST_CAP => Err(Error::Memory),
        _ if !(LEAST_CAP..=greatest).contains(&cap) => Err(Error::Cap),
        _ if options.init_bytes > cap.next_multiple_of(HUGE_PAGE as u64) => Err(Error::Init),
        _ => Ok((cap as usize).next_multiple_of(HUGE_PAGE)),
    }
}

/// Whether an arena may have such a cap, in whole pages.
pub(super) fn is_cap(bytes: u64) -> bool {
    (LEAST_CAP..=GREATEST_CAP).contains(&bytes) && bytes.is_multiple_of(HUGE_PAGE as u64)
}
