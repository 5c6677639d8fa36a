//! Stores and shows results. This crate makes no decisions; `search` decides what is best.
//!
//! Each room needs only rooms of the rows above it:
//!
//! | room | what it holds |
//! |---|---|
//! | [`text`] | numbers with units, aligned tables |
//! | [`store`] | files on disk: designs, digests, atomic writes |
//! | [`answer`] | answers of verbs, as data |
//! | [`figure`], [`emit`], [`papers`] | SVG; configurations for frameworks and traces; studies of papers |
//! | [`run`] | run directories: record, front, sweeps, parts |
//! | [`page`] | a run or an answer as an HTML page |
//! | [`compare`], [`report`] | runs and answers side by side; answers as text |

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
