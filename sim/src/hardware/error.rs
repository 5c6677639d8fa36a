//! What can be wrong with a chip's description.

use crate::files::FileFault;
use thiserror::Error;

/// What is wrong with a chip's file or name.
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
    #[error("{file}: {why}\n(every key of a chip's file is described by the built-in ones, `tpu_v4` for instance)")]
    Malformed {
        /// The file or template.
        file: String,
        /// What the parser said, with line and key.
        why: String,
    },
    /// Values that cannot be; every fault is listed.
    #[error("{file}: {}", list(faults))]
    Invalid {
        /// The file or template.
        file: String,
        /// All that is wrong.
        faults: Vec<FileFault>,
    },
}

fn list(faults: &[FileFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}
