//! Answers on standard output: text for people, JSON for scripts.

use crate::failure::{Failure, OrOther};
use clap::ValueEnum;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Text,
    /// Stable, documented JSON.
    Json,
}

/// Writes text to standard output; a reader that went away is not an error.
pub fn text(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(Failure::ClosedPipe),
        Err(e) => Err(Failure::Other(e.into())),
    }
}

/// Writes a value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = serde_json::to_string_pretty(value).or_other()?;
    out.push('\n');
    text(&out)
}
