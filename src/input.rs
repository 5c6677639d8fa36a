//! What several verbs read: chips by name or by file, and whose fault an error is.

use crate::failure::{self, Failure, OrInput};
use search::bench::BenchError;
use sim::hardware::Template;
use sim::import::llm_compass;
use sim::network::Fabric;
use std::path::Path;

/// A built-in chip by name, or a chip by path: a chip file (`.toml`) or an LLMCompass device description (`.json`).
pub fn chip(name_or_path: &str) -> Result<Template, Failure> {
    let file = |ending| name_or_path.ends_with(ending);
    if !file(".toml") && !file(".json") {
        return Template::find(name_or_path).cloned().or_input();
    }
    let text = text(Path::new(name_or_path), "a chip file (.toml) or an LLMCompass device description (.json)")?;
    if file(".json") {
        return llm_compass::chip(&text, name_or_path).or_input();
    }
    Template::from_toml_str(&text, name_or_path).or_input()
}

/// A built-in fabric with the figures that it has for `chip`, or a fabric by path: a fabric file (`.toml`) or an LLMCompass device description
/// (`.json`); cut to the devices of a cluster.
pub fn fabric(name_or_path: &str, chip: &str, devices: u32) -> Result<Fabric, Failure> {
    let file = |ending| name_or_path.ends_with(ending);
    let fabric =
        if file(".toml") || file(".json") { Fabric::load(name_or_path) } else { Fabric::template_for(name_or_path, chip) };
    fabric.and_then(|f| f.for_devices(devices)).or_input()
}

/// The text of a file; `what` says in the message what it should be.
pub fn text(path: &Path, what: &str) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|e| failure::input(format!("{}: cannot be read: {e}; give the path of {what}", path.display())))
}

/// The message of a model that cannot be put on a study's cluster, with the study's name and key where the fault lies there.
pub fn bench_fault(study: &str, error: &BenchError) -> Failure {
    failure::input(match error {
        BenchError::Shape(_) => error.to_string(),
        BenchError::Network(_) => format!("{study}: cluster.fabric: {error}"),
        BenchError::NoWidth { .. } | BenchError::NoMicroBatch { .. } => format!("{study}: {error}"),
    })
}
