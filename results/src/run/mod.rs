//! Run directories: records, fronts, sweeps and parts of searches, and the conversion of search results into them.

pub mod claim;
pub mod conversion;
pub mod explanation;
pub mod front;
pub mod front_table;
pub mod older;
pub mod parts;
pub mod progress;
mod question;
pub mod record;
pub mod search_run;
pub mod serving;
pub mod sweep;
