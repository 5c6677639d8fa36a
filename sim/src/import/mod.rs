//! Files of other simulators: read as what they mean here, one module per format.

pub mod calculon;
pub mod json;
pub mod lines;
pub mod llm_compass;
pub mod scale_sim;
pub mod strict;
pub mod text;

use crate::hardware::{Fault, Template};
use crate::network::Fabric;
use thiserror::Error;

/// A chip from another simulator's file: LLMCompass's device or Calculon's system.
///
/// # Errors
/// A file of neither, or a faulty one of either.
pub fn chip(text: &str, file: &str) -> Result<Template, ImportError> {
    if calculon::System::claims(text) {
        return calculon::System::from_json_str(text, file)?.chip(None);
    }
    llm_compass::chip(text, file)
}

/// A fabric from another simulator's file: LLMCompass's interconnect or Calculon's networks.
///
/// # Errors
/// As [`chip`].
pub fn fabric(text: &str, file: &str) -> Result<Fabric, ImportError> {
    if calculon::System::claims(text) {
        return calculon::System::from_json_str(text, file)?.fabric();
    }
    llm_compass::fabric(text, file)
}

/// A file of another simulator that cannot be read; every fault is listed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {}", self.why())]
pub struct ImportError {
    /// The file.
    pub file: String,
    /// What is wrong, by key, or by line and column.
    pub faults: Vec<Fault>,
}

/// Faults that a message lists; a file of the wrong kind has one per line.
const LISTED: usize = 10;

impl ImportError {
    /// The faults, one per line, without the file.
    pub(crate) fn why(&self) -> String {
        let mut lines: Vec<String> = self.faults.iter().take(LISTED).map(ToString::to_string).collect();
        if self.faults.len() > LISTED {
            lines.push(format!("and {} more", self.faults.len() - LISTED));
        }
        lines.join("\n  ")
    }
}
