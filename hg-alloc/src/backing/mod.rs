//! What stands behind the memory of an arena: the limits that it may grow to.

pub(crate) mod room;
