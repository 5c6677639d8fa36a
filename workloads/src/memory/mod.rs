//! Memory techniques as data: the treatment of every tensor.
//!
//! A [`Preset`] is a small TOML file. It holds a technique's formula, its source and its [`policy::TechniqueRule`]s. A
//! rule names a tensor class, operators, a representation, a place, a way to rebuild and slices.
//! Three generic mechanisms turn rules into what a training step needs. No mechanism knows a technique by name:
//!
//! - `activations` rewrites what backward passes read and the kernels that follow;
//! - `settled` marks what is rebuilt or offloaded;
//! - [`parameters`] counts the bytes of weights, gradients and optimizer states.
//!
//! The step model then sizes and times the changed graph like any other graph.
//!
//! Randomness: dropout keeps its mask. A model with dropout rate 0, the usual case, has no dropout operator. A dropout
//! operator that runs again makes the same mask: frameworks restore their generators (`preserve_rng_state` of torch's
//! checkpoint, Megatron-LM's tracker). The few bytes of generator state are not counted. Row samples are drawn without
//! saved state, so a rule or policy that would rebuild a sample is refused.

pub(crate) mod activations;
pub(crate) mod amount;
mod applied;
pub(crate) mod checks;
pub(crate) mod error;
mod matrix;
pub mod parameters;
pub mod policy;
pub(crate) mod preset;
mod settled;
pub(crate) mod slices;
pub(crate) mod updates;

pub use amount::{PresetAmount, TrainingQuantities};
pub use applied::TechniqueEffects;
pub use error::TechniqueError;
pub use parameters::{BytesByPlace, SegmentStatics, StaticBytes};
pub use policy::{OffloadTarget, TensorClass, TrainingEffect};
pub use preset::{AllowedOptimizers, Preset, PresetParameter, ServingEffect, SingleMicroBatch};

#[cfg(test)]
mod finetuning_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
