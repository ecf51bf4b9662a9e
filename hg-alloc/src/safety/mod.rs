//! What is done about bad calls.

pub(crate) mod check;
pub(crate) mod deferred;
pub(crate) mod look_up;
