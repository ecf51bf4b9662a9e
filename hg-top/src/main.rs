//! M
fn main() {}
