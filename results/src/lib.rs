//! Stores and shows results: run records, the store of designs, comparisons, validation against measurements, figures
//! and text. This crate makes no decisions; `search` decides what is best.

pub mod answer;
pub mod compare;
#[cfg(test)]
mod documented_tests;
pub mod emit;
pub mod figure;
pub mod page;
pub mod papers;
pub mod report;
pub mod run;
pub mod store;
pub mod text;
