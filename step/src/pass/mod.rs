//! The cost of one micro-batch on one device: the kernels, collectives and copies of each piece of a model.

pub(crate) mod away;
pub(crate) mod chip_times;
pub(crate) mod copied;
pub(crate) mod execute;
pub(crate) mod lowering;
pub(crate) mod profile;
pub(crate) mod program;
pub(crate) mod update;
pub(crate) mod work;
