//! hg-top: the operator's tool of hg. Everything is in the library, so that tests can reach it.

fn main() {}
