//! The coplace command.

// It sets the memory allocator.
use allocator as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(coplace::run_program(std::env::args_os().skip(1)))
}
