//! What to do with every tensor: techniques as data.
//!
//! A [`Preset`] is a small TOML file with a technique's formula and source and its [`policy::TechniqueRule`]s: which class of tensors, at which operators, in
//! which representation, where, rebuilt how, in which slices. Three generic mechanisms make of it what a training step needs, and know no technique by
//! name: `activations` rewrites what backward passes read and the kernels that follow, `settled` says what is rebuilt or goes away,
//! [`parameters`] counts what weights, gradients and states take. The step model then sizes and times the changed graph as any other.
//!
//! Chance: dropout keeps its mask, and is no operator at all where a model's rate is 0, as most have it. One that runs again makes the same mask, as the
//! frameworks restore their generators (`preserve_rng_state` of torch's checkpoint, Megatron-LM's tracker); the few bytes of a state are not counted.
//! A sample of rows is drawn without one: a rule, or a policy, that would make it again is refused.

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
pub use preset::{AllowedOptimizers, Preset, PresetParameter, SingleMicroBatch};

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
