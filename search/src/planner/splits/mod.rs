//! Splits of the layers other than the even one.

pub(crate) mod for_mixes;
pub(crate) mod uneven;
