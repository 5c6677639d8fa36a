//! The runs that a stack was fitted to, with the errors of predictions from fits without them.

use serde::{Deserialize, Serialize};
use std::ops::Deref;
use std::sync::Arc;

/// Quantities of measured runs.
const QUANTITIES: [&str; 2] = ["iteration_s", "peak_gib"];
/// Largest size of an error: a factor of e^10 between prediction and measurement.
const LARGEST_ERROR: f64 = 10.0;

/// A run that a stack was fitted to. Errors are ln(measured / predicted).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedRun {
    /// Its id in the file of runs.
    pub id: String,
    /// The measured quantity: `iteration_s` or `peak_gib`.
    pub quantity: String,
    /// Number of parameters of the model.
    pub parameters: u64,
    /// The chip.
    pub chip: String,
    /// The fabric.
    pub fabric: String,
    /// Number of chips.
    pub chips: u32,
    /// The mechanisms of its plan.
    pub mechanisms: Vec<String>,
    /// Error under the stack fitted without this run. If there are more than twelve runs, a twelfth is left out at
    /// once.
    pub error_without_run: f64,
    /// Error under the stack fitted without all models of similar size. `None` if all runs have one size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_without_model: Option<f64>,
    /// Error under the stack fitted without all runs on a similar number of chips. `None` if all have one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_without_scale: Option<f64>,
}

impl FittedRun {
    /// Returns the first impossible value: its key, the value and the rule. `None` if there is none.
    fn wrong_value(&self) -> Option<(&'static str, String, String)> {
        if !QUANTITIES.contains(&self.quantity.as_str()) {
            return Some(("quantity", self.quantity.clone(), format!("must be {}", QUANTITIES.join(" or "))));
        }
        let errors = [
            ("error_without_run", Some(self.error_without_run)),
            ("error_without_model", self.error_without_model),
            ("error_without_scale", self.error_without_scale),
        ];
        let is_wrong = |error: &f64| !(-LARGEST_ERROR..=LARGEST_ERROR).contains(error);
        let wrong = errors.into_iter().find_map(|(key, error)| Some((key, error.filter(is_wrong)?)));
        let limit = || format!("must be from -{LARGEST_ERROR} to {LARGEST_ERROR}");
        let none = (self.chips == 0).then(|| ("chips", "0".to_owned(), "must be 1 at least".to_owned()));
        wrong.map(|(key, error)| (key, error.to_string(), limit())).or(none)
    }
}

/// The runs that a stack was fitted to. Copies share them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<FittedRun>", into = "Vec<FittedRun>")]
pub struct FittedRuns(Arc<[FittedRun]>);

impl FittedRuns {
    /// Returns whether the stack was fitted to no runs, or to unknown ones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first impossible value of any run: its key with the run's id, the value and the rule. `None` if
    /// there is none.
    pub(crate) fn wrong_value(&self) -> Option<(String, String, String)> {
        self.0.iter().find_map(|run| {
            let (key, value, limit) = run.wrong_value()?;
            Some((format!("runs, {}: {key}", run.id), value, limit))
        })
    }
}

impl Default for FittedRuns {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl Deref for FittedRuns {
    type Target = [FittedRun];

    fn deref(&self) -> &[FittedRun] {
        &self.0
    }
}

impl From<Vec<FittedRun>> for FittedRuns {
    fn from(runs: Vec<FittedRun>) -> Self {
        Self(runs.into())
    }
}

impl From<FittedRuns> for Vec<FittedRun> {
    fn from(runs: FittedRuns) -> Self {
        runs.0.to_vec()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SoftwareStack;

    fn fitted() -> SoftwareStack {
        let run = FittedRun {
            id: "a".into(),
            quantity: "iteration_s".into(),
            parameters: 7_000_000_000,
            chip: "h100_80gb_sxm".into(),
            fabric: "nvlink4_node".into(),
            chips: 8,
            mechanisms: vec!["tensor".into(), "zero-1".into()],
            error_without_run: 0.02,
            error_without_model: Some(-0.03),
            error_without_scale: None,
        };
        SoftwareStack { runs: vec![run].into(), ..SoftwareStack::load("nanotron").unwrap() }
    }

    #[test]
    fn runs_are_written_and_read_back() {
        let stack = fitted();
        let text = stack.to_toml_string().unwrap();
        assert!(text.contains("[[runs]]\n") && text.contains("error_without_model = -0.03"), "{text}");
        assert_eq!(SoftwareStack::from_toml_str("ours.toml", &text).unwrap(), stack);
        let built_in = SoftwareStack::load("nanotron").unwrap();
        assert!(!built_in.to_toml_string().unwrap().contains("[[runs]]"));
    }

    #[test]
    fn a_wrong_run_is_named() {
        let text = fitted().to_toml_string().unwrap();
        let fault = |from: &str, to: &str| {
            SoftwareStack::from_toml_str("ours.toml", &text.replace(from, to)).unwrap_err().to_string()
        };
        let said = fault("\"iteration_s\"", "\"seconds\"");
        assert!(said.contains("ours.toml: runs, a: quantity = seconds: must be iteration_s or peak_gib;"), "{said}");
        let said = fault("error_without_run = 0.02", "error_without_run = nan");
        assert!(said.contains("error_without_run = NaN: must be from -10 to 10"), "{said}");
        assert!(fault("chips = 8", "chips = 0").contains("chips = 0: must be 1 at least"));
        assert!(fault("error_without_run", "error").contains("unknown field `error`"));
    }

    #[test]
    fn a_changed_option_makes_it_other_software() {
        let stack = fitted();
        assert!(stack.with_option("overlap.tensor=0.123").unwrap().runs.is_empty());
        let same = format!("overlap.tensor={}", stack.overlap.tensor);
        assert_eq!(stack.with_option(&same).unwrap().runs, stack.runs);
    }
}
