//! How a kept answer of `evaluate` or `plan` is asked again: the words of its job, and the files that they name.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an answer was asked with. Older answers have nothing of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInputs {
    /// The arguments that say what is trained on what, under which software: the model first, after it pairs of a flag and its value. The
    /// chip of a run directory is named by its file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked_with: Vec<String>,
    /// The texts of the files among them, by their paths as they are named there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}
