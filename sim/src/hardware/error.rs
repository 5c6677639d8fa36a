//! Errors of a chip's description.

use crate::files::{FaultParts, FileFault, StructuredError};
use thiserror::Error;

/// The reason why a chip's file or name was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HardwareError {
    /// No template of this name.
    #[error(
        "unknown chip `{name}`: {}; or give the path of a chip file (.toml)",
        crate::names::hint(name, known, "built in are")
    )]
    Unknown {
        /// The name given.
        name: String,
        /// The built-in names.
        known: String,
    },
    /// The text is not the TOML that a chip needs.
    #[error("{file}: {why}\n(the built-in chips' files, `tpu_v4` for instance, show every key)")]
    Malformed {
        /// The file or template.
        file: String,
        /// The parser's message, with line and key.
        why: String,
    },
    /// Impossible values; every fault is listed.
    #[error("{file}: {}", list_faults(faults))]
    Invalid {
        /// The file or template.
        file: String,
        /// All faults.
        faults: Vec<FileFault>,
    },
}

impl StructuredError for HardwareError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Unknown { name, known } => {
                FaultParts::of_key("chip", name, "is no built-in chip", crate::names::hint(name, known, "built in are"))
            }
            Self::Malformed { file, why } => {
                FaultParts::of_file(file, why, "the built-in chips' files, `tpu_v4` for instance, show every key")
            }
            Self::Invalid { file, faults } => faults.first().map(FileFault::parts).unwrap_or_default().in_file(file),
        }
    }
}

fn list_faults(faults: &[FileFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}
