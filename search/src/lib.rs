//! coplace-search decides: which chip, which placement, what to do with every activation. It never prints.

pub mod memory;
pub mod placement;
pub mod study;
