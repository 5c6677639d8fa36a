//! Readers of files: text, strict JSON, lines of CSV records, and the faults of a file by key. The modules that use a
//! file interpret it.

pub mod carried;
pub mod document;
mod fault;
pub mod json;
pub mod lines;
pub mod strict;
pub mod text;

pub use fault::{FaultParts, StructuredError};
use std::fmt;
use thiserror::Error;

/// A broken rule of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// The key, with its table: `memory.hbm.capacity_gib`.
    pub key: String,
    /// The offending value.
    pub value: String,
    /// The rule it breaks.
    pub limit: String,
    /// The cure.
    pub cure: String,
}

impl FileFault {
    /// Creates a fault of `value` under `key`.
    pub fn new(
        key: impl Into<String>,
        value: impl fmt::Display,
        limit: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { key: key.into(), value: value.to_string(), limit: limit.into(), cure: cure.into() }
    }

    /// The parts, without the file.
    #[must_use]
    pub fn parts(&self) -> FaultParts {
        FaultParts::of_key(&self.key, &self.value, &self.limit, &self.cure)
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}; {}", self.key, self.value, self.limit, self.cure)
    }
}

/// A file that cannot be used, with all its faults. The message lists the first ten.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {}", self.faults_as_text())]
pub struct FileError {
    /// The file.
    pub file: String,
    /// The faults, by key or by line and column.
    pub faults: Vec<FileFault>,
}

/// Most faults that a message lists; a file of the wrong kind has one per line.
const LISTED: usize = 10;

impl StructuredError for FileError {
    fn fault_parts(&self) -> FaultParts {
        self.faults.first().map(FileFault::parts).unwrap_or_default().in_file(self.file.clone())
    }
}

impl FileError {
    /// The faults, one per line, without the file.
    #[must_use]
    pub fn faults_as_text(&self) -> String {
        let mut lines: Vec<String> = self.faults.iter().take(LISTED).map(ToString::to_string).collect();
        if self.faults.len() > LISTED {
            lines.push(format!("and {} more", self.faults.len() - LISTED));
        }
        lines.join("\n  ")
    }
}
