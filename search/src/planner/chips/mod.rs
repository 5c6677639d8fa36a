//! The fastest plan on each of many chips.

pub(crate) mod fastest;
pub(crate) mod on_chip;
pub(crate) mod prepared;
