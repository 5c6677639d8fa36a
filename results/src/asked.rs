//! The inputs of a kept answer of `evaluate` or `plan`: the arguments of its job and the files that they name. With
//! them the question can be asked again.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The inputs of an answer. Empty in older answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInputs {
    /// The arguments that define the job: the model first, then pairs of a flag and its value. A chip from a run
    /// directory is given by its file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked_with: Vec<String>,
    /// The texts of the files that the arguments name, by path as given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}
