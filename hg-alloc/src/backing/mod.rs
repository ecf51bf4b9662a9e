//! What stands behind the memory of an arena: the limits that it may grow to (`room.rs`), and what backs its pages.
//!
//! `ladder.rs` finds the best tier for a growth that can be had, by the tries of `tier.rs` and `hugetlb.rs`; `pages.rs`
//! keeps the book of what each page got; `tend.rs` corrects it once pages are used, collapses dense ones and renews locks;
//! `release.rs` knows how each kind of page goes back; `density.rs` counts.
//!
//! # Forks
//! * The hugetlb pool never backs a private arena by itself, only when `HG_TIER=hugetlb` says so. A child's first write to
//!   a page of the pool that it inherited takes another page of the pool, and SIGBUS ends the child if there is none. When
//!   the parent writes first, the kernel gives the parent what the child shared, and the child ends when it touches that.
//!   The child's stats page counts this risk (`Inherited` among the reasons of tiers), nothing more can be done: a copy of
//!   all pages at each fork would be worse.
//! * Locks are not inherited. The child says that nothing is pinned, and the first growth or tick of maintenance locks its
//!   pages again, as far as they are there, without copying what it shares (`MLOCK_ONFAULT`): a daemon that forked
//!   after its start is pinned again, a child that calls exec pays nothing.
//!
//! Nothing here makes a system call under a lock.

mod density;
mod hugetlb;
pub(crate) mod ladder;
pub(crate) mod pages;
pub(crate) mod release;
pub(crate) mod room;
mod tend;
mod tier;
