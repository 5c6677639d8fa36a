//! coplace-search decides: which chip, which placement, what to do with every activation. It never prints.

pub mod bench;
pub mod bound;

pub mod design;
pub mod evaluate;
pub mod explain;
pub mod memory;
pub mod pareto;
pub mod placement;
pub mod planner;
pub mod profile;
pub mod published;
pub mod rank_mapping;
pub mod runner;
pub mod shape;
pub mod space;
pub mod study;
