//! Run-wide effects of techniques.

use serde::{Deserialize, Serialize};

/// Run-wide effects of techniques.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TechniqueEffects {
    /// True if addresses are planned ahead, so that no memory is lost to fragmentation.
    pub planned_addresses: bool,
    /// True if every backward pass runs twice: first for the norm of all gradients, then for the updates.
    pub second_backward: bool,
    /// True if the host's update overlaps with its copies and with the device's part of the update.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlapped_update: bool,
    /// Steps between two decompositions of each matrix's gradient; 0 if there are none.
    pub decomposed_every: u64,
    /// Notes for the user, one sentence each: techniques without effect here, and the amounts of stored data.
    pub notes: Vec<String>,
}
