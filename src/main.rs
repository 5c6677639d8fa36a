//! The coplace command.

fn main() {}
