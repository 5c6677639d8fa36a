//! Stores and shows results. The crate `search` decides which design or plan is best; this crate makes no decisions.
//!
//! A module depends only on modules in the rows above it:
//!
//! | module | contents |
//! |---|---|
//! | [`text`] | numbers with units, aligned tables |
//! | [`store`] | files on disk: designs, digests, atomic writes |
//! | [`answer`] | answers of verbs, as data |
//! | [`figure`], [`emit`], [`papers`] | SVG; configurations for frameworks and traces; studies of papers |
//! | [`run`] | run directories: record, front, sweeps, parts |
//! | [`page`] | runs and answers as HTML pages |
//! | [`compare`], [`report`] | comparisons of runs and answers; answers as text |

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
