//! `record.json` of a run of `coplace serve`. `results/README.md` describes its fields.

use super::case::ServedCase;
use super::point::ServedFront;
use crate::answer::serving::ServingReport;
use crate::run::record::{RecordError, Versions};
use search::ask::DeploymentQuestion;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The verb in a record. It distinguishes the record from that of a search.
pub const SERVE: &str = "serve";

/// The version of the record's format that this build writes and reads.
pub const SERVING_FORMAT: u32 = 1;

/// A run of `serve`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingRecord {
    /// Version of this schema: [`SERVING_FORMAT`].
    pub format: u32,
    /// The verb: [`SERVE`].
    pub verb: String,
    /// The version of coplace that wrote the record.
    pub versions: Versions,
    /// A digest of the question, with the texts of the files that it names.
    pub question: String,
    /// One answer for every combination of lengths and limits.
    pub cases: Vec<ServedCase>,
    /// For every chip and distribution of lengths: the deployments that no other one exceeds in both tokens per second
    /// and user and tokens per second and device.
    pub fronts: Vec<ServedFront>,
    /// The question as a value, with the texts of the files that it names.
    pub asked: DeploymentQuestion,
    /// Wall-clock times in seconds, by phase. The only part that differs between two runs.
    pub times: BTreeMap<String, f64>,
}

/// The answer to a question with several combinations of lengths and limits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServingCases {
    /// The model.
    pub model: String,
    /// The objective that ranks deployments.
    pub objective: String,
    /// The combinations, each with its answer.
    pub cases: Vec<ServedCase>,
    /// The fronts, as in [`ServingRecord::fronts`].
    pub fronts: Vec<ServedFront>,
}

impl ServingRecord {
    /// Returns the record as it is stored: indented JSON with one line break at the end.
    ///
    /// # Errors
    /// A number that is not finite.
    pub fn to_json(&self) -> Result<String, RecordError> {
        let unstorable = |e: serde_json::Error| RecordError::NotStorable { why: e.to_string() };
        let text = serde_json::to_string_pretty(self).map_err(unstorable)? + "\n";
        // JSON has no NaN; serde writes null instead. Reading the text back finds such a loss.
        let back: Self = serde_json::from_str(&text).map_err(unstorable)?;
        if back == *self {
            return Ok(text);
        }
        Err(RecordError::NotStorable { why: "a value does not read back as it was".into() })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// A file that is missing, no record of `serve`, or of another format.
    pub fn read_from(path: &Path) -> Result<Self, RecordError> {
        let text = sim::files::text::read_text(path).map_err(|why| RecordError::Open { file: path.into(), why })?;
        let malformed = |e: serde_json::Error| RecordError::Malformed { file: path.into(), why: e.to_string() };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(malformed)?;
        if !is_of_serve(&value) {
            return Err(RecordError::NotServing { file: path.into() });
        }
        match value.get("format") {
            Some(format) if format.as_u64() == Some(u64::from(SERVING_FORMAT)) => {}
            found => {
                let found = found.map_or_else(|| "missing".into(), ToString::to_string);
                return Err(RecordError::ServingFormat { file: path.into(), found });
            }
        }
        serde_json::from_str(&text).map_err(malformed)
    }

    /// True if `directory` holds a record of `serve`, in any format.
    #[must_use]
    pub fn is_in(directory: &Path) -> bool {
        let text = sim::files::text::read_text(&directory.join(crate::run::record::RECORD)).ok();
        text.and_then(|text| serde_json::from_str(&text).ok()).is_some_and(|value| is_of_serve(&value))
    }

    /// Returns the case whose best deployment has the highest value of the objective, with its answer. `None` if
    /// nothing serves.
    #[must_use]
    pub fn best_case(&self) -> Option<(&ServedCase, &ServingReport)> {
        let answered = self.cases.iter().filter_map(|case| Some((case, case.answer.as_ref()?)));
        let value = |report: &ServingReport| report.choices.first().and_then(|best| best.value).unwrap_or(0.0);
        answered.max_by(|a, b| value(a.1).total_cmp(&value(b.1)))
    }
}

/// True if the value is a record of `serve`.
fn is_of_serve(value: &serde_json::Value) -> bool {
    value.get("verb").and_then(serde_json::Value::as_str) == Some(SERVE)
}
