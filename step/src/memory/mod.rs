//! The memory of a step on every device, and whether it fits.

pub(crate) mod account;
pub(crate) mod addresses;
pub(crate) mod cure;
pub(crate) mod keeps;
pub(crate) mod need;
pub(crate) mod stage;
pub(crate) mod step_memory;
pub(crate) mod techniques;
pub(crate) mod zero_states;
