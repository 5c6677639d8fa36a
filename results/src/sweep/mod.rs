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

pub use directory::{DirectoryError, read};
pub use export::{CSV, PARQUET, Summary};
pub use facts::{Facts, Swept};
pub use row::{Fate, SweptRow};
pub use store::{STORE, SweepError, SweepStore};
