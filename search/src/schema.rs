//! The JSON Schema of study files, for editors, and a template study.

use crate::study::Study;
use schemars::generate::SchemaSettings;

/// A study with every key explained; optional keys are comments.
pub const TEMPLATE: &str = include_str!("../templates/study.toml");

/// The schema's title.
pub const TITLE: &str = "A study of coplace";

/// The schema (draft 2020-12) of a study file. It covers keys, types and enumerated words. Combinations of values are
/// checked when a study is read.
#[must_use]
pub fn schema() -> serde_json::Value {
    let mut schema = SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<Study>();
    schema.insert("title".to_owned(), TITLE.into());
    schema.to_value()
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
