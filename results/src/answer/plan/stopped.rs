//! A search for plans that was stopped before its end, as data and in words.

use crate::text::{format_percent, format_seconds};
use search::planner::PlanAnswer;
use serde::Serialize;
use sim::units::Seconds;

/// A search for plans that was stopped before its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoppedSearch {
    /// The cause of the stop.
    pub by: String,
    /// Lower bound of the step over all plans of the space, in seconds.
    pub bound_s: f64,
}

impl StoppedSearch {
    /// Makes the record of a search that `by` stopped; `None` if the search was not stopped.
    #[must_use]
    pub fn from_answer(answer: &PlanAnswer, by: Option<String>) -> Option<Self> {
        let bound_s = answer.stopped?.0;
        Some(Self { by: by.unwrap_or_else(|| "stopped".to_owned()), bound_s })
    }

    /// Returns the bound in words. `best` is the step of the fastest plan found, in seconds.
    #[must_use]
    pub fn proof_text(&self, best: Option<f64>) -> String {
        let Self { by, bound_s } = self;
        let bound = format_seconds(Seconds(*bound_s));
        match best {
            Some(best) => format!(
                "{by}: the best plans so far. No plan of the space takes less than {bound}, {} less than the first",
                format_percent((1.0 - bound_s / best).max(0.0))
            ),
            None => format!("{by} before a plan was found that fits. No plan of the space takes less than {bound}"),
        }
    }
}
