//! The words that cross the process border as numbers, each with the label that every screen, log and JSON shows.
//!
//! A number once given keeps its meaning: new words go at the end. Readers meet numbers they do not know (a newer or a
//! hostile target), so each type decodes by [`from_u64`](Tier::from_u64), which returns `None` for those.

/// Declares an enum of contiguous discriminants from 0 with labels and a total decoder.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal, $label:literal;)* }) => {
        $(#[$meta])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant = $value),* }

        impl $name {
            /// Every value, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The value of a number that came over the process border, if this version knows it.
            pub const fn from_u64(number: u64) -> Option<Self> {
                match number { $($value => Some($name::$variant),)* _ => None }
            }

            /// The label shown everywhere.
            pub const fn label(self) -> &'static str {
                match self { $($name::$variant => $label),* }
            }
        }

        impl crate::usdt::Word for $name {
            fn word(self) -> u64 { self as u64 }
        }
    };
}

words! {
    /// What backs a page of an arena.
    Tier {
        /// Nothing yet: the arena committed no memory.
        None = 0, "none";
        /// Base pages of the machine (4 KiB on x86-64).
        Base = 1, "4K";
        /// Transparent huge pages, by collapse after the fact.
        Collapsed = 2, "THP-collapsed";
        /// Transparent huge pages, by advice before the first touch.
        Thp = 3, "THP";
        /// Pages of the hugetlb pool.
        Hugetlb = 4, "hugetlb";
        /// Folios of 64 KiB (mTHP).
        Mid = 5, "64K";
    }
}

words! {
    /// Why an arena's tier is what it is.
    TierReason {
        /// The tier wanted is the tier obtained.
        Obtained = 0, "obtained";
        /// Nothing better than base pages was asked for.
        NotAsked = 1, "not asked";
        /// The administrator's sysfs setting is `never` or `deny`.
        SysfsNever = 2, "sysfs says never";
        /// The kernel refused the advice.
        AdviceRefused = 3, "advice refused by the kernel";
        /// The advice was taken, but the kernel's counters show base pages.
        NotBacked = 4, "advice taken, but the kernel had no huge page free";
        /// The hugetlb pool is empty.
        PoolEmpty = 5, "hugetlb pool empty";
        /// No counter of the kernel could be read, so the outcome is unknown and base pages are assumed.
        Unverified = 6, "kernel counters unreadable";
        /// The kernel does not offer the tier.
        NotOffered = 7, "not offered by the kernel";
        /// Children of a fork would inherit the memory.
        Inherited = 8, "children would inherit it";
        /// The memory was too sparsely used for a huge page.
        Sparse = 9, "too sparsely used";
    }
}

words! {
    /// Why an arena grew, shrank, or was refused.
    Cause {
        /// No committed memory was left for a request.
        Exhausted = 0, "exhausted";
        /// The first memory of an arena.
        Initial = 1, "initial";
        /// Ahead of demand, by maintenance.
        Ahead = 2, "ahead of demand";
        /// Free memory above the slack an arena keeps.
        Slack = 3, "above slack";
        /// Somebody asked for it (`malloc_trim`, `hg-top trim`).
        Trim = 4, "trim";
        /// Memory pressure: an allocation was about to fail.
        Pressure = 5, "pressure";
        /// Refused: the arena's cap is reached.
        Cap = 6, "cap reached";
        /// Refused: the kernel gave no memory (errno tells more).
        Kernel = 7, "refused by the kernel";
        /// Refused: the request is larger than any arena can serve.
        TooLarge = 8, "request too large";
        /// Refused: the address space for an arena could not be reserved.
        NoReservation = 9, "no address space";
        /// Refused: a signal handler interrupted the allocator in its slow path.
        Reentered = 10, "re-entered";
        /// Free memory that nobody needed for the decay time.
        Idle = 11, "idle";
        /// Refused: the ceiling of the profile is reached.
        Ceiling = 12, "profile ceiling";
        /// Refused: the hugetlb pool is empty.
        HugetlbPool = 13, "hugetlb pool";
        /// Refused: RLIMIT_MEMLOCK.
        Memlock = 14, "memlock limit";
        /// Refused: the memory limit of a control group.
        Cgroup = 15, "cgroup limit";
        /// Refused: the host would be left with too little free memory.
        HostFloor = 16, "host floor";
        /// Refused: RLIMIT_AS or RLIMIT_DATA.
        AddressSpace = 17, "address-space limit";
        /// Refused: vm.max_map_count.
        MapCount = 18, "map count limit";
        /// Refused: strict overcommit (vm.overcommit_memory=2).
        Overcommit = 19, "overcommit limit";
        /// Refused: the file system that an arena lies on is full.
        FileSystem = 20, "file system full";
    }
}

words! {
    /// What maintenance decided.
    Verdict {
        /// To leave things as they are.
        Keep = 0, "keep";
        /// To commit more memory.
        Grow = 1, "grow";
        /// To give memory back.
        Shrink = 2, "shrink";
        /// To empty front and transfer caches that nobody used.
        Drain = 3, "drain";
    }
}

words! {
    /// Why maintenance decided what it did.
    Why {
        /// Nothing is free that could be given back.
        NothingFree = 0, "nothing is free";
        /// No more is committed than the floor.
        AtFloor = 1, "at the floor";
        /// Memory was free for less than the decay time.
        Young = 2, "free for less than the decay time";
        /// Memory was free for the decay time.
        Idle = 3, "free for the decay time";
        /// Something stands on every page; most of it on the one nearest to being free are cells, live or cached, of one class.
        PinnedByCells = 4, "pinned by cells";
        /// The same, where most of it are large objects.
        PinnedByLarge = 5, "pinned by a large object";
        /// The usage calls for it, by the profile or by growth ahead of demand.
        Usage = 6, "usage";
        /// The profile waits before it acts again.
        CoolOff = 7, "cool-off";
        /// The profile has no `scale down`.
        NoScaleDown = 8, "the profile never shrinks";
        /// The profile's ceiling or the cap is reached.
        Ceiling = 9, "ceiling reached";
        /// A limit of the system refused growth.
        Blocked = 10, "growth is blocked";
        /// What one tick may do is done.
        Budget = 11, "budget of a tick spent";
        /// Only said, not done: a dry run.
        DryRun = 12, "dry run";
        /// Too few cycles of the profile called for it so far.
        Cycles = 13, "too few cycles";
    }
}

words! {
    /// What a run of slices is.
    RunKind {
        /// Not the head of a run.
        None = 0, "inside a run";
        /// Free.
        Free = 1, "free";
        /// The last slice of a free run of two slices or more.
        FreeTail = 2, "free tail";
        /// Cells of one class.
        Span = 3, "span";
        /// One large object.
        Large = 4, "large object";
        /// On its way to the system.
        Busy = 5, "on its way to the system";
    }
}

words! {
    /// What the memory of a free run is.
    FreePool {
        /// Committed, and used before: it holds memory.
        Dirty = 0, "dirty";
        /// Committed and not touched since: it reads as zero.
        Fresh = 1, "fresh";
        /// Given back to the system, no longer committed.
        Released = 2, "released";
    }
}

words! {
    /// Why a lock was taken.
    Reason {
        /// A batch of cells into a front cache.
        Refill = 0, "refill";
        /// A batch of cells out of a front cache.
        Flush = 1, "flush";
        /// Commit of more memory.
        Grow = 2, "grow";
        /// Return of memory to the system.
        Shrink = 3, "shrink";
        /// A large object allocated, freed or resized.
        Large = 4, "large";
        /// A policy decision.
        Policy = 5, "policy";
        /// Front caches emptied from outside.
        Drain = 6, "drain";
        /// Spans moved between a class and the grid, or the process forked.
        Span = 7, "span";
    }
}

words! {
    /// Whether a stalled thread waited for a lock or held it.
    StallKind {
        /// It held the lock for too long.
        Hold = 0, "hold";
        /// It waited for the lock for too long.
        Wait = 1, "wait";
    }
}

words! {
    /// What a bad call was.
    CorruptionKind {
        /// The cell is free already.
        DoubleFree = 0, "double free";
        /// The address lies inside a cell or a large object, not at its start.
        InteriorFree = 1, "interior pointer";
        /// The address is in no arena.
        ForeignFree = 2, "foreign pointer";
        /// The address lies in memory of the arena that holds no object.
        WildFree = 3, "wild pointer";
        /// A cell in a front cache was not marked as cached when it was to be handed out: it was entered twice.
        DoubledEntry = 4, "doubled entry";
        /// The object belongs to another arena.
        WrongArena = 5, "wrong arena";
        /// A sized free named a size of another class.
        SizeMismatch = 6, "size mismatch";
    }
}

words! {
    /// Where the cells of a refill came from.
    Source {
        /// The transfer cache alone.
        Transfer = 0, "transfer";
        /// Recycled cells of partly used spans.
        Central = 1, "central";
        /// A span that had never-used cells left.
        Carve = 2, "carve";
        /// A span newly taken from the grid.
        Fresh = 3, "fresh span";
    }
}

words! {
    /// Where the cells of a flush went.
    Destination {
        /// The transfer cache.
        Transfer = 0, "transfer";
        /// Their spans.
        Central = 1, "central";
    }
}

/// A lock of an arena as one number: [`LockId::GRID`], or a class lock named by the size of its cells.
///
/// Cells have at least 16 bytes, so the numbers below 16 are free for locks that belong to no class.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub u32);

impl LockId {
    /// The lock of an arena's grid (pages, spans, large objects).
    pub const GRID: LockId = LockId(0);

    /// The lock of the class whose cells have `size` bytes.
    pub const fn class(size: u32) -> LockId {
        LockId(size)
    }

    /// The size of the cells of this lock's class, or `None` for a lock that belongs to no class.
    pub const fn class_size(self) -> Option<u32> {
        if self.0 >= 16 { Some(self.0) } else { None }
    }
}

impl core::fmt::Display for LockId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.class_size(), *self) {
            (Some(size), _) => write!(f, "class {size}"),
            (None, LockId::GRID) => f.write_str("grid"),
            (None, LockId(other)) => write!(f, "lock {other}"),
        }
    }
}

impl crate::usdt::Word for LockId {
    fn word(self) -> u64 {
        u64::from(self.0)
    }
}
