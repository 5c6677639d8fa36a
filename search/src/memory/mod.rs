//! Decides what to do with every tensor that a layer saves for its backward pass.
//!
//! One layer's forward pass is a list of operators and the tensors between them ([`LayerTensors`]). For each tensor a
//! policy makes a [`TensorChoice`]: keep it until the backward pass, rebuild it there by rerunning operators, or drop
//! it because nothing reads it. Each operator is rerun at most once per backward pass, and rebuilt tensors stay until
//! the layer's backward pass ends. So decisions need no time index, and the optimum is a small integer program:
//!
//! 1. A tensor has at most one choice.
//! 2. A tensor that the backward pass reads is kept, or its producer is rerun.
//! 3. An operator is rerun only if each of its inputs is kept or rebuilt.
//! 4. An input of the layer has no producer here, so if anything reads it, it is kept.
//!
//! - [`RecomputeSpace`] gives the exact Pareto front of stash bytes against extra seconds, thousands of times per
//!   second.
//! - [`pareto_by_ilp`] gives the same front from the integer program, slowly.
//! - [`verify_policy`] checks a policy by simulating both passes.
//! - [`LayerFront`] and [`fastest_by_ilp`] also offload tensors to the host and to storage. Offloading changes the
//!   bytes on the device and the exposed copy time.
//! - [`MixQuestion`] decides how many layers of a stage follow each choice, within the stage's own memory.
//!
//! Further choices (compress, sample rows) are further variants of [`TensorChoice`], each with its bytes on the device
//! and its cost.

mod candidates;
mod copies;
mod hull;
mod ilp;
mod labels;
mod layer;
mod layer_choice;
mod mix;
mod mix_point;
#[cfg(test)]
mod mix_tests;
mod offload;
mod rest;
mod scarce;
mod segment;
mod space;
#[cfg(test)]
mod tests;
mod verify;

pub use copies::{CopyLinks, CopyRate, OffloadedBytes};
pub use ilp::{BoundedChoice, PolicyIlpError, fastest_by_ilp, pareto_by_ilp};
pub use layer::{
    LayerError, LayerOperator, LayerTensors, MAX_OPERATORS, OperatorIndex, OperatorSet, RecomputePolicy, SavedTensor,
    TensorChoice, TensorIndex, TensorSource,
};
pub use layer_choice::LayerChoice;
pub use mix::{MixQuestion, STATES};
pub use mix_point::{MixPoint, StageMix};
pub use offload::LayerFront;
pub use space::RecomputeSpace;
pub use verify::{PolicyFault, verify_policy};
