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
    /// What backs a page of an arena, worst to best.
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
