//! A run that a framework's file describes, as options of `coplace plan`.

use super::model::FrameworkModel;

/// A run that a framework's file describes.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameworkRun {
    /// The framework's name, for people.
    pub framework: &'static str,
    /// Options of `coplace plan` with their values, without dashes.
    pub options: Vec<(&'static str, String)>,
    /// The keys of the file whose values affect the run, with these values.
    pub keys: Vec<(String, String)>,
    /// The model; `None` if the file does not describe it or the call names one.
    pub model: Option<FrameworkModel>,
    /// Unknown keys of the file that count as without effect only because the call says so.
    pub assumed: Vec<String>,
    /// Notes on keys that change time or memory in a way that is not modelled, with the substitute, one line each.
    pub notes: Vec<String>,
}

/// Facts that the call gives beside the file.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrameworkContext<'a> {
    /// Devices of the cluster.
    pub devices: Option<u64>,
    /// True if the call names the model. The file's own description of a model is then ignored.
    pub model_is_named: bool,
    /// True if the call gives the lengths of packed documents.
    pub documents_are_given: bool,
    /// Keys that the call declares to be without effect.
    pub assumed: &'a [String],
}

/// Options being collected.
#[derive(Default)]
pub(super) struct PlanOptions(pub(super) Vec<(&'static str, String)>);

impl PlanOptions {
    pub(super) fn push(&mut self, option: &'static str, value: impl ToString) {
        self.0.push((option, value.to_string()));
    }

    /// Returns the value of an option that is a number; 1 if the option is missing or no number.
    pub(super) fn number(&self, option: &str) -> u64 {
        let found = self.0.iter().find(|(known, _)| *known == option);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or(1)
    }
}
