//! Searches uneven splits of the layers.

pub(crate) mod for_mixes;
pub(crate) mod uneven;
