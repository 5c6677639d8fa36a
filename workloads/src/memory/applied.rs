//! What techniques change about a run as a whole.

use serde::{Deserialize, Serialize};

/// What techniques change about a run as a whole.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TechniqueEffects {
    /// Whether addresses are planned ahead: nothing is lost to fragmentation.
    pub planned_addresses: bool,
    /// Whether every backward pass runs twice: once for the norm of all gradients, once for the updates.
    pub second_backward: bool,
    /// Steps between two decompositions of every matrix's gradient; 0 where there are none.
    pub decomposed_every: u64,
    /// What was asked for and changes nothing here, one sentence each.
    pub notes: Vec<String>,
}
