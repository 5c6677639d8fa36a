//! The time of collectives and sends, and the part of it that other work hides.

pub(crate) mod contention;
pub(crate) mod network;
pub(crate) mod sends;
pub(crate) mod sharing;
pub(crate) mod slowing;
