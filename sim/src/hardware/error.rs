//! What can be wrong with a chip's description.

use std::fmt;
use thiserror::Error;

/// One broken rule of a chip's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key, with its table: `memory.hbm.capacity_gib`.
    pub key: String,
    /// The offending value.
    pub value: String,
    /// The rule it breaks.
    pub limit: String,
    /// What to do.
    pub cure: String,
}

impl Fault {
    /// A fault of `value` under `key`.
    pub fn new(key: impl Into<String>, value: impl fmt::Display, limit: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.to_string(), limit: limit.into(), cure: cure.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}; {}", self.key, self.value, self.limit, self.cure)
    }
}

/// What is wrong with a chip's file or name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HardwareError {
    /// No template of this name.
    #[error("unknown chip `{name}`: built in are {known}; or give the path of a chip file (.toml)")]
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
        faults: Vec<Fault>,
    },
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}
