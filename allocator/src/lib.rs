//! The memory allocator of the program and of the Python package.
//!
//! It is a crate of its own because it is optimised fully and the command, which uses it, is not.

/// The planner makes millions of short-lived lists. This allocator is many times faster for them than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
