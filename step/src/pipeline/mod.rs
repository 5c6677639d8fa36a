//! Chunks and stages: the division of a model among devices, and the time of a chunk's passes.

pub(crate) mod arrangement;
pub(crate) mod chunk;
pub(crate) mod staged;
