//! A run that a framework's file describes, as options of `coplace plan`.

use super::model::FrameworkModel;

/// A run that a framework's file describes.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameworkRun {
    /// The framework's name, for people.
    pub framework: &'static str,
    /// Options of `coplace plan` with their values, without dashes; each at most once.
    pub options: Vec<(&'static str, String)>,
    /// The keys of the file whose values count, with these values.
    pub keys: Vec<(String, String)>,
    /// The model. `None` where the file leaves it to other files.
    pub model: Option<FrameworkModel>,
    /// Keys that are taken to change nothing only because the call says so.
    pub assumed: Vec<String>,
    /// Keys that change time or memory in a way that is not modelled, with what is done instead, one line each.
    pub notes: Vec<String>,
}

/// The words that are given beside the file.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrameworkContext<'a> {
    /// Devices of the cluster.
    pub devices: Option<u64>,
    /// True if the model is named beside the file, whose own description of it is then left aside.
    pub model_is_named: bool,
    /// True if the lengths of packed documents are given beside the file.
    pub documents_are_given: bool,
    /// Keys that are taken to change nothing.
    pub assumed: &'a [String],
}

/// Options being collected.
#[derive(Default)]
pub(super) struct PlanOptions(pub(super) Vec<(&'static str, String)>);

impl PlanOptions {
    pub(super) fn push(&mut self, option: &'static str, value: impl ToString) {
        self.0.push((option, value.to_string()));
    }

    /// The value of an option that is a number; 1 if it is not there.
    pub(super) fn number(&self, option: &str) -> u64 {
        let found = self.0.iter().find(|(known, _)| *known == option);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or(1)
    }
}
