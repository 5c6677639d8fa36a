//! Finds the fastest plan on each of many chips.

pub(crate) mod fastest;
pub(crate) mod group_search;
pub(crate) mod on_chip;
pub(crate) mod prepared;
