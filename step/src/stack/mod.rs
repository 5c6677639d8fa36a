//! The software of a step: software stacks, their options, the plans that their frameworks can run, and fits of their
//! scalars.

pub(crate) mod bridge_fields;
pub mod calibrate;
mod discouraged;
pub(crate) mod discouraged_kind;
pub(crate) mod fitted_run;
pub(crate) mod framework;
pub(crate) mod kept_formats;
pub(crate) mod options;
pub(crate) mod runnable;
pub(crate) mod software;
pub(crate) mod torchtitan_names;
mod usual;
