//! `record.json`: what a run was asked, what it found, how sure it is, and how long it took.
//!
//! The file is one JSON object. Everything outside `times` depends on the study and the seed alone, so that two runs
//! with the same seed differ there and nowhere else. Every number carries its unit in its key; what was not computed is
//! `null`. The schema is this module's structs; [`FORMAT`] changes whenever a key changes its meaning or goes away.

use crate::compare::Comparison;
use crate::design::DesignRow;
use crate::files::{self, WriteError};
pub use crate::step_record::NamedShare;
use crate::step_record::StepRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The record's file name.
pub const RECORD: &str = "record.json";

/// The version of the record's format that this build writes and reads.
pub const FORMAT: u32 = 3;

/// The front of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontRecord {
    /// What its designs are the best in, by the names of objectives and axes, the objective first.
    pub quantities: Vec<String>,
    /// Positions of its designs in `designs.parquet`.
    pub designs: Vec<i64>,
    /// The part of the box between the best of each quantity and a reference point a tenth of its range beyond the worst that the front dominates.
    pub hypervolume: f64,
    /// The design at which it bends: with the least sum of all quantities, each from 0 at the best to 1 at the worst of the front.
    pub knee: DesignRow,
}

/// What is wrong with a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It holds a number that JSON cannot hold.
    #[error("the record cannot be stored: {why}; a value that is not finite must be left out")]
    NotStorable {
        /// What reading it back said.
        why: String,
    },
    /// It cannot be opened.
    #[error("{}: cannot be opened: {why}; give a run directory that `coplace search` wrote", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// It is not JSON, or lacks keys of the format that it claims.
    #[error("{}: {why}; run the search again, or give another run directory", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, with line, column and key.
        why: String,
    },
    /// It was written by another version of coplace.
    #[error("{}: format = {found}, this version of coplace reads {FORMAT}; run the search again with it", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// The format found, or `missing`.
        found: String,
    },
}

/// A run of `search`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRecord {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// What wrote it.
    pub versions: Versions,
    /// A digest of all that was asked, the texts of the model and the study among it: runs that differ in it answer different questions.
    pub question: String,
    /// What was asked.
    pub study: StudyRecord,
    /// The seed of everything random.
    pub seed: u64,
    /// How good the best design is, and how the space was dealt with.
    pub certificate: Certificate,
    /// The best design with its plan; `null` when nothing fits.
    pub best: Option<BestDesign>,
    /// The best design beside its baselines.
    pub comparison: Option<Comparison>,
    /// The front of what was searched for, where one was; none in records of older versions, and of sweeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<FrontRecord>,
    /// The words of the command that ask the question again, after the verb; none in records of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked_with: Vec<String>,
    /// Wall-clock times in seconds, by phase. The only part that differs between two runs with one seed.
    pub times: BTreeMap<String, f64>,
}

/// What wrote a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// The version of coplace.
    pub coplace: String,
}

/// What a run was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyRecord {
    /// The study's name, or the path of its file.
    pub name: String,
    /// The model's name, or the path of its configuration.
    pub model: String,
    /// Trainable parameters of the model.
    pub parameters: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// Designs in the space.
    pub space_designs: u64,
    /// The chip whose area is the upper limit.
    pub reference_chip: String,
    /// Accelerators in the cluster.
    pub devices: u64,
    /// The fabric between them, by name.
    pub fabric: String,
    /// Sequences per optimizer step over the whole cluster.
    pub global_batch_sequences: u64,
    /// The software stack that runs them, by name.
    pub stack: String,
    /// The plans that every chip is tried with, in words.
    pub plans: String,
    /// What is maximised.
    pub objective: String,
    /// Further options that change the result, as given or by default.
    pub options: BTreeMap<String, String>,
    /// What the model's file says that is not modelled, and what was taken instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

/// How far the proof got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// No design in the space is better (within the stated arithmetic).
    Proven,
    /// No design in the space is better by more than the gap.
    Gap,
    /// Proven that no design in the space runs the model.
    Infeasible,
}

/// "No design in this space is better by more than `gap`", and how each design was dealt with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// How far the proof got.
    pub proof: Proof,
    /// Designs in the space.
    pub designs: u64,
    /// Evaluated exactly.
    pub evaluated: u64,
    /// Rejected by their bound.
    pub pruned: u64,
    /// Of these, rejected a box of dimensions at a time.
    #[serde(default)]
    pub pruned_in_boxes: u64,
    /// Rejected because no plan fits them.
    pub infeasible: u64,
    /// Rejected for their area.
    pub over_area: u64,
    /// Rejected for their power.
    pub over_power: u64,
    /// Rejected for their cost.
    pub over_cost: u64,
    /// Rejected for their HBM; left out where none was.
    #[serde(default, skip_serializing_if = "is_none")]
    pub outside_hbm: u64,
    /// Combinations of values that are no chip.
    pub no_chip: u64,
    /// Not decided before the search stopped.
    pub open: u64,
    /// Whether a design's value is that of its fastest plan at the bad end of its step's 90 % interval; left out where it is that of the predicted step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub robust: bool,
    /// What is best: `throughput`, `per-dollar`, ...
    pub objective: String,
    /// The best value of the objective, in `unit`.
    pub best: Option<f64>,
    /// No design has a better one than this.
    pub bound: Option<f64>,
    /// The unit of the two.
    pub unit: String,
    /// The best throughput found, in sequences per second, where that is the objective.
    pub best_sequences_per_s: Option<f64>,
    /// No design is faster than this, in sequences per second.
    pub bound_sequences_per_s: Option<f64>,
    /// (bound - best) / best, as a fraction: 0 when proven.
    pub gap: Option<f64>,
    /// In words: what rules every design out, or why the proof stopped.
    pub why: Option<String>,
}

/// The best design, its plan, and what it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestDesign {
    /// Chip, plan and totals: the row of the design in `designs.parquet`.
    pub design: DesignRow,
    /// Its plan and all that it takes and why: what `evaluate` shows of it.
    pub step: StepRecord,
    /// Of a search for several models: each under its own plan; `step` is the first's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelPlan>,
    /// What the reader should know of it: an area budget that is left, values at the end of the study's lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The arguments with which `evaluate` gives this time again, beside the model and the chip: cluster, stack and plan.
    pub evaluate_with: Vec<String>,
}

/// A model of several on the best design.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlan {
    /// Its name, or its file's path.
    pub model: String,
    /// Its share among the models, a fraction.
    pub share: f64,
    /// Accelerators that train it.
    pub devices: u64,
    /// Sequences per optimizer step.
    pub global_batch_sequences: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// Throughput of the reference chip, ideal, under its best plan.
    pub reference_tokens_per_s: f64,
    /// Energy of its step over the whole cluster, in joules; absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_energy_per_step_j: Option<f64>,
    /// Throughput over the reference's.
    pub times_reference: f64,
    /// Its plan and all that it takes and why: what `evaluate` shows of it.
    pub step: StepRecord,
    /// As [`BestDesign::evaluate_with`].
    pub evaluate_with: Vec<String>,
    /// The design beside its baselines on this model.
    pub comparison: Comparison,
}

/// Whether a count is of nothing.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl Versions {
    /// This build's.
    #[must_use]
    pub fn current() -> Self {
        Self { coplace: env!("CARGO_PKG_VERSION").into() }
    }
}

impl Certificate {
    /// (bound - best) / best, never below zero; `None` without a best value.
    #[must_use]
    pub fn relative_gap(best: f64, bound: f64) -> Option<f64> {
        (best > 0.0 && bound.is_finite()).then(|| ((bound - best) / best).max(0.0))
    }

    /// Whether no chip is within the limits: nothing was tried then.
    #[must_use]
    pub fn is_without_candidates(&self) -> bool {
        self.designs == self.over_area + self.over_power + self.over_cost + self.outside_hbm + self.no_chip
    }
}

impl SearchRecord {
    /// The record as the JSON that is stored: indented, keys in the structs' order, one line break at the end.
    ///
    /// # Errors
    /// A number that is not finite.
    pub fn to_json(&self) -> Result<String, RecordError> {
        let unstorable = |e: serde_json::Error| RecordError::NotStorable { why: e.to_string() };
        let mut text = serde_json::to_string_pretty(self).map_err(unstorable)?;
        text.push('\n');
        // JSON has no NaN: serde writes null, which a number does not read back from, and an optional number would
        // lose. Reading it back finds both.
        let back: Self = serde_json::from_str(&text).map_err(unstorable)?;
        if back == *self {
            Ok(text)
        } else {
            Err(RecordError::NotStorable { why: "a value does not read back as it was".into() })
        }
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// A number that is not finite, or whatever the system reports.
    pub fn write_to(&self, path: &Path) -> Result<(), RecordError> {
        Ok(files::write_file(path, self.to_json()?.as_bytes())?)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// A file that is missing, truncated, no record, or of another format.
    pub fn read_from(path: &Path) -> Result<Self, RecordError> {
        let text = sim::files::text::read_text(path).map_err(|why| RecordError::Open { file: path.into(), why })?;
        Self::parse(path, &text)
    }

    /// The digest of the question that a directory's record answers, whatever its format: `None` without a record, `Some(None)` for one that does
    /// not say.
    #[must_use]
    pub fn read_question_digest(directory: &Path) -> Option<Option<String>> {
        let text = sim::files::text::read_text(&directory.join(RECORD)).ok()?;
        let value: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        Some(value.and_then(|record| record.get("question")?.as_str().map(str::to_owned)))
    }

    /// Reads a record from its text; `file` names it in errors.
    ///
    /// # Errors
    /// Text that is truncated, no record, or of another format.
    pub fn parse(file: &Path, text: &str) -> Result<Self, RecordError> {
        let malformed = |e: serde_json::Error| RecordError::Malformed { file: file.into(), why: e.to_string() };
        let value: serde_json::Value = serde_json::from_str(text).map_err(malformed)?;
        match value.get("format") {
            Some(format) if format.as_u64() == Some(u64::from(FORMAT)) => {}
            found => {
                let found = found.map_or_else(|| "missing".into(), ToString::to_string);
                return Err(RecordError::Format { file: file.into(), found });
            }
        }
        // From the text, not from the value: only so does an error name line and column.
        let record: Self = serde_json::from_str(text).map_err(malformed)?;
        let entries = record.comparison.iter().flat_map(|comparison| comparison.entries.iter().enumerate());
        let mut faults = entries.filter_map(|(at, entry)| Some((at, entry.first_negative_key()?)));
        match faults.next() {
            Some((at, (key, value))) => {
                let why = format!("comparison.entries[{at}].{key} = {value}: must not be negative");
                Err(RecordError::Malformed { file: file.into(), why })
            }
            None => Ok(record),
        }
    }

    /// The record without its times: what two runs with one seed have in common.
    #[must_use]
    pub fn without_times(&self) -> Self {
        Self { times: BTreeMap::new(), ..self.clone() }
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;

#[cfg(test)]
pub(crate) use tests::{record as example, several as example_of_several};
