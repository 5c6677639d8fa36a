//! The time of collectives and sends, and how much of it other work hides.

pub(crate) mod contention;
pub(crate) mod network;
pub(crate) mod sends;
pub(crate) mod sharing;
pub(crate) mod slowing;
