//! Comparisons of runs, of kept answers, and of published baselines.

pub mod answers;
pub mod baseline;
pub mod runs;
pub mod serving;
