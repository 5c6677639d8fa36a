//! The parts that a question and a study file have in common.

use super::Splits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine that the models run on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Accelerators.
    pub devices: u32,
    /// The fabric that connects them: a built-in one's name or a file's path.
    pub fabric: String,
    /// Sequences per optimizer step, over the whole cluster.
    pub global_batch_sequences: u32,
}

/// A model that a study is for, beside others. A value that is left out is the cluster's, or the model's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// A built-in model's name, or the path of a Hugging Face `config.json`.
    pub model: String,
    /// Its weight among the study's models.
    #[serde(default = "one")]
    pub weight: f64,
    /// Accelerators that train it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<u32>,
    /// Sequences per optimizer step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_sequences: Option<u32>,
    /// Tokens per sequence: the model's longest where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<u64>,
    /// The documents that sequences are packed from, as pairs: the tokens of a document, and the number of such
    /// documents relative to the other pairs. Attention stays within a document. If empty, it covers whole sequences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<[u64; 2]>,
}

fn one() -> f64 {
    1.0
}

impl WorkloadSpec {
    /// A model with weight 1 on the study's cluster.
    #[must_use]
    pub fn of(model: &str) -> Self {
        let model = model.to_owned();
        Self {
            model,
            weight: 1.0,
            devices: None,
            global_batch_sequences: None,
            sequence_length: None,
            documents: Vec::new(),
        }
    }
}

/// The limits at which a search over chips stops and reports its gap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Designs evaluated exactly.
    pub evaluations: usize,
    /// The search may miss designs that are better than its best by at most this many percent. Default: 0.
    #[serde(default)]
    pub within_percent: f64,
}

/// The tolerance of [`LimitSpec::within_percent`], split into two fractions of the best's time. Together they do not
/// exceed it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerances {
    /// Largest fraction by which a design that is left out may be better.
    pub designs: f64,
    /// Largest fraction by which a split of the layers that is left out may make a plan faster.
    pub splits: f64,
}

impl LimitSpec {
    /// Splits the tolerance. Half is for splits of the layers if the search chooses them; otherwise all is for designs.
    #[must_use]
    pub fn tolerances(&self, splits: Option<&Splits>) -> Tolerances {
        let within = self.within_percent / 100.0;
        if matches!(splits, Some(Splits::Listed(_))) {
            return Tolerances { designs: within, splits: 0.0 };
        }
        // (1 + designs) / (1 - splits) is 1 + within.
        let splits = within / (2.0 + within);
        Tolerances { designs: splits, splits }
    }
}
