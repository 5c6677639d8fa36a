//! Stores and shows results: run records, the store of designs, comparisons, validation against measurements, figures
//! and text. This crate makes no decisions; `search` decides what is best.

mod again;
pub mod answer;
pub mod answers;
pub mod baseline;
pub mod claim;

pub mod compared;
#[cfg(test)]
mod documented;
pub mod emit;
pub mod explained;
pub mod figure;
pub mod from_search;
pub mod front;
pub mod page;
pub mod papers;
pub mod parts;
pub mod progress;
pub mod record;
pub mod report;
pub mod run;
pub mod store;
pub mod sweep;
pub mod text;
pub mod trace;
