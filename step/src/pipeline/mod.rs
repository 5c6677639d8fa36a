//! Chunks and stages: how a plan divides a model among devices, and what a chunk's passes take.

pub(crate) mod arrangement;
pub(crate) mod chunk;
pub(crate) mod staged;
