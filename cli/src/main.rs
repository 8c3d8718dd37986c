//! The `quorate` binary.
fn main() {}
