//! A rule that a layout breaks, with the cure.

use sim::files::{FaultParts, StructuredError};
use thiserror::Error;

/// A broken rule of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} = {value}: must be {limit}; {cure}")]
pub struct LayoutError {
    /// The degree or size at fault, by its key in files: `tp`, `pp`, `dp`, `cp`, `ep`, `etp`, `virtual_stages`,
    /// `global_batch`, `seq`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The rule, with its numbers.
    pub limit: String,
    /// The nearest valid values.
    pub cure: String,
}

impl StructuredError for LayoutError {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_key(self.key, &self.value, format!("must be {}", self.limit), &self.cure)
    }
}
