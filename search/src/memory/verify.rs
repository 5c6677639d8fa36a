//! Checks a policy independently of the optimisers, by simulating both passes.

use super::layer::{LayerTensors, RecomputePolicy, TensorChoice, TensorSource};
use thiserror::Error;

/// A fault of a policy.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PolicyFault {
    /// A rerun operator is not in the layer, or must not be rerun.
    #[error("operator {operator} is rerun, but it is not a recomputable operator of the layer")]
    NotRecomputable {
        /// Its index.
        operator: usize,
    },
    /// A rerun reads a tensor that is neither kept nor rebuilt before.
    #[error("the rerun of operator {operator} reads `{tensor}`, which is not at hand")]
    MissingInput {
        /// The operator's index.
        operator: usize,
        /// The tensor.
        tensor: String,
    },
    /// The backward pass reads a tensor that is neither kept nor rebuilt.
    #[error("the backward pass reads `{tensor}`, which is not at hand")]
    MissingForBackward {
        /// The tensor.
        tensor: String,
    },
    /// A stated number differs from the simulation's result.
    #[error("{what}: stated {stated}, found {found}")]
    Number {
        /// "stash", "workspace" or "extra".
        what: &'static str,
        /// The value that the policy states.
        stated: f64,
        /// The value that the simulation finds.
        found: f64,
    },
}

/// Returns every fault of a policy that treats the layer's tensors as `choices`; empty if the policy is sound.
///
/// It keeps the tensors that `choices` keep, and reruns the policy's operators in order. Every input of a rerun must be
/// at hand, and at the end every tensor that the backward pass reads. Stash, workspace and time are summed and compared
/// with the policy's numbers to 1e-9 relative.
#[must_use]
pub fn verify_policy(layer: &LayerTensors, policy: &RecomputePolicy, choices: &[TensorChoice]) -> Vec<PolicyFault> {
    let mut faults = Vec::new();
    let kept = |t: usize| choices.get(t) == Some(&TensorChoice::Keep);
    let mut at_hand: Vec<bool> = (0..layer.tensors.len()).map(kept).collect();
    let stash: u128 = (0..at_hand.len()).filter(|&t| at_hand[t]).map(|t| u128::from(layer.tensors[t].bytes.0)).sum();
    let (mut workspace, mut extra) = (0_u128, 0.0);
    for operator in policy.operators.iter() {
        let Some(found) = layer.operators.get(operator).filter(|o| o.recomputable) else {
            faults.push(PolicyFault::NotRecomputable { operator });
            continue;
        };
        for input in found.inputs.iter().filter(|t| !at_hand[t.0]) {
            faults.push(PolicyFault::MissingInput { operator, tensor: layer.tensors[input.0].name.clone() });
        }
        extra += found.forward.0;
        for (t, tensor) in layer.tensors.iter().enumerate() {
            if matches!(tensor.source, TensorSource::Operator(o) if o.0 == operator) {
                at_hand[t] = true;
                workspace += u128::from(tensor.bytes.0);
            }
        }
    }
    let lost = layer.tensors.iter().zip(&at_hand).filter(|(t, at_hand)| t.needed_by_backward && !**at_hand);
    faults.extend(lost.map(|(t, _)| PolicyFault::MissingForBackward { tensor: t.name.clone() }));
    for (what, stated, found) in [
        ("stash", policy.stash.as_f64(), stash as f64),
        ("workspace", policy.workspace.as_f64(), workspace as f64),
        ("extra", policy.extra.0, extra),
    ] {
        if (stated - found).abs() > 1e-9 * found.abs() {
            faults.push(PolicyFault::Number { what, stated, found });
        }
    }
    faults
}
