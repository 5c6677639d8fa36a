//! What a prediction rests on, and what errors are judged without.

mod facts;
mod scheme;
mod table;

pub use facts::{Facts, Kind, mechanisms};
pub use scheme::Scheme;
pub use table::COLUMNS;
