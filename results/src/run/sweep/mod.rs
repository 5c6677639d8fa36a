//! Sweeps: every combination of a study's values, with its area, power, energy, cost and best plan, or with the reason
//! why it has no plan.
//!
//! Results go into a transactional store ([`store`]) as they arrive. A finished store is exported as Parquet and CSV
//! ([`export`]). The parts of a sweep are first merged into one store ([`merge`]).

pub mod directory;
pub mod export;
pub mod facts;
pub mod merge;
pub mod row;
pub mod store;

pub use directory::{RunDirectoryError, read_directory};
pub use export::{CSV, PARQUET, SweepSummary};
pub use facts::{SweepFacts, SweptDimension};
pub use row::{CombinationOutcome, SweptRow};
pub use store::{MOST_COMBINATIONS, STORE, SweepStore, SweepStoreError};
