//! A search over plans: its prepared data, its results, and its progress and stops.

pub(crate) mod core;
pub(crate) mod found;
pub(crate) mod settle;
pub(crate) mod stopped;
pub(crate) mod watch;
