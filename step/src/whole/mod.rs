//! A whole step: its time, energy, timeline and explanation, and bounds over many plans.

pub(crate) mod assembly;
pub(crate) mod energy;
pub(crate) mod evaluate;
pub(crate) mod evaluator;
pub mod explain;
pub(crate) mod lower_bounds;
pub(crate) mod outlined;
pub(crate) mod parameter_copies;
pub(crate) mod piece_load;
pub(crate) mod timeline;
