//! Lower bounds on the passes of splits of a plan's layers.

pub(crate) mod loads;
pub(crate) mod near;
