//! Sweeps: every combination of a study's values with its area, power, energy, dollars and best plan, or why it has none.
//!
//! What is found goes into a transactional store ([`store`]) as it is found; a finished store is exported as Parquet and CSV ([`export`]), parts of a
//! sweep are merged into one store first ([`merge`]).

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
pub use store::{STORE, SweepStore, SweepStoreError};
