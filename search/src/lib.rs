//! coplace-search decides which chip, which placement, and what to do with every activation. It never prints.

pub mod ask;
pub mod bad_end;
pub mod bayes;
pub mod design;
pub mod hindcast;
pub mod memory;
pub mod objective;
pub mod pareto;
pub mod planner;
mod random;
pub mod rank_mapping;
pub mod runner;
pub mod schema;
pub mod sensitivity;
pub mod serve;
pub mod shard;
pub mod space;
pub mod study;
mod study_files;
pub mod sweep;
pub mod techniques;
