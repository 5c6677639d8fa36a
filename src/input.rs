//! What several verbs read: chips by name or by file, and whose fault an error is.

use crate::failure::{self, Failure, OrInput};
use search::bench::BenchError;
use sim::hardware::Template;

/// A built-in chip by name, or a chip file by path (anything that ends in `.toml`).
pub fn chip(name_or_path: &str) -> Result<Template, Failure> {
    if !name_or_path.ends_with(".toml") {
        return Template::find(name_or_path).cloned().or_input();
    }
    let text = std::fs::read_to_string(name_or_path).map_err(|e| {
        failure::input(format!("{name_or_path}: cannot be read: {e}; give the path of a readable chip file (.toml)"))
    })?;
    Template::from_toml_str(&text, name_or_path).or_input()
}

/// The message of a model that cannot be put on a study's cluster, with the study's name and key where the fault lies there.
pub fn bench_fault(study: &str, error: &BenchError) -> Failure {
    failure::input(match error {
        BenchError::Shape(_) => error.to_string(),
        BenchError::Network(_) => format!("{study}: cluster.fabric: {error}"),
        BenchError::NoWidth { .. } | BenchError::NoMicroBatch { .. } => format!("{study}: {error}"),
    })
}
