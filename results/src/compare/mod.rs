//! Side by side: runs, kept answers, and published baselines.

pub mod answers;
pub mod baseline;
pub mod runs;
pub mod serving;
