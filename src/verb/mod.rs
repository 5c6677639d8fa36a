//! One file per verb: its arguments, what it calls, what it prints.

pub mod list;
pub mod place;
pub mod schedule;
pub mod search;
