//! The coplace command.

use std::process::ExitCode;

/// The planner makes millions of short-lived lists. This allocator is many times faster for them than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(coplace::run_program(std::env::args_os().skip(1)))
}
