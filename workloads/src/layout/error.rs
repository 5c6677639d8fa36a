//! The error for a rule that a layout breaks, with the cure.

use sim::files::{FaultParts, StructuredError};
use thiserror::Error;

/// A broken rule of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} = {value}: must be {limit}; {cure}")]
pub struct LayoutError {
    /// The degree or size at fault, by its key in files, such as `tp`, `pp`, `virtual_stages`, `global_batch`, `seq`,
    /// `shards` or `layer_split`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The rule, with its numbers.
    pub limit: String,
    /// Advice, with the nearest valid values if there are any.
    pub cure: String,
}

impl StructuredError for LayoutError {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_key(self.key, &self.value, format!("must be {}", self.limit), &self.cure)
    }
}
