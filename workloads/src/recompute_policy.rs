//! What happens to a layer's activations between the forward and the backward pass, by the names that frameworks use.

use crate::graph::{OperatorGraph, RecomputeSet, TensorId};
use serde::{Deserialize, Serialize};

/// A policy for the activations of a layer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationPolicy {
    /// Every tensor that the backward pass reads is kept.
    #[default]
    None,
    /// The attention core (scores, softmax, dropout, context) is recomputed (Korthikanti et al. 2022).
    Selective,
    /// Only the layer's input is kept.
    Full,
}

/// What a policy means for the operators and tensors of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Treatment {
    /// The operators that run again in the backward pass.
    pub recompute: RecomputeSet,
    /// Kept tensors that wait in the host's memory.
    pub offloaded: Vec<TensorId>,
}

impl ActivationPolicy {
    /// The treatment of one segment's operators.
    #[must_use]
    pub fn treatment(&self, graph: &OperatorGraph) -> Treatment {
        let recompute = match self {
            Self::None => RecomputeSet::none(),
            Self::Selective => {
                const CORE: [&str; 4] = ["scores", "softmax", "dropout", "context"];
                let core = |name: &str| {
                    let mut parts = name.split('.').skip(1);
                    parts.next() == Some("attention") && parts.next().is_some_and(|part| CORE.contains(&part))
                };
                graph.operators.iter().filter(|op| core(&op.name)).map(|op| op.id).collect()
            }
            Self::Full => graph.full_recompute(),
        };
        Treatment { recompute, offloaded: Vec::new() }
    }
}
