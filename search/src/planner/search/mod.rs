//! A search over plans: what it knows, what it has found, how it is watched and stopped.

pub(crate) mod core;
pub(crate) mod found;
pub(crate) mod settle;
pub(crate) mod stopped;
pub(crate) mod watch;
