//! `record.json`: the question of a run, its answer, its proof and its times.
//!
//! The file is one JSON object. Everything outside `times` depends only on the study and the seed: two runs with one
//! seed differ only in `times`. Every key of a number contains its unit; values that were not computed are `null`. The
//! structs of this module are the schema. [`FORMAT`] changes whenever a key disappears or changes its meaning.

use crate::answer::comparison::Comparison;
use crate::answer::decision::DecisionRecord;
use crate::answer::step::StepRecord;
use crate::store::design::DesignRow;
use crate::store::limits::check_values;
use search::ask::Question;
use serde::{Deserialize, Serialize};
use sim::hardware::BuildRule;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The record's file name.
pub const RECORD: &str = "record.json";

/// The version of the record's format that this build writes and reads.
pub const FORMAT: u32 = 5;

/// The front of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontRecord {
    /// The quantities, by the names of objectives and axes; the objective first.
    pub quantities: Vec<String>,
    /// Indices of the designs in `designs.parquet`.
    pub designs: Vec<i64>,
    /// Hypervolume of the front, as a fraction of a box. The box spans from the best of each quantity to a reference
    /// point, which lies a tenth of the range beyond the worst.
    pub hypervolume: f64,
    /// The knee of the front: the design with the least sum of all quantities, each scaled from 0 (best of the front)
    /// to 1 (worst).
    pub knee: DesignRow,
}

/// An error of a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It holds a number that JSON cannot hold.
    #[error("the record cannot be stored: {why}; a value that is not finite must be left out")]
    NotStorable {
        /// The error of reading it back.
        why: String,
    },
    /// It cannot be opened.
    #[error(
        "{}: cannot be opened: {why}; give a run directory that `coplace search` or `coplace serve` wrote",
        file.display()
    )]
    Open {
        /// The file.
        file: PathBuf,
        /// Message of the system.
        why: io::Error,
    },
    /// It is not JSON, or lacks keys of its format.
    #[error("{}: {why}; run the search again, or give another run directory", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The fault, with line, column and key.
        why: String,
    },
    /// It is the record of another verb.
    #[error(
        "{}: is the record of a run of `coplace serve`, and here one of `coplace search` or `sweep` is needed; report, \
        explain, compare and pareto take runs of serve, and a chip that one found is best.toml in it", file.display()
    )]
    Serving {
        /// The file.
        file: PathBuf,
    },
    /// It is not the record of `serve`.
    #[error(
        "{}: is not the record of a run of `coplace serve`, and the others are; compare runs of one verb",
        file.display()
    )]
    NotServing {
        /// The file.
        file: PathBuf,
    },
    /// It was written by another version of `coplace serve`.
    #[error("{}: format = {found}, this version of coplace reads 1; run serve again with it", file.display())]
    ServingFormat {
        /// The file.
        file: PathBuf,
        /// The format found, or `missing`.
        found: String,
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
    /// The version that wrote it.
    pub versions: Versions,
    /// A digest of the whole question, with the texts of the model and the study. Runs with different digests answer
    /// different questions.
    pub question: String,
    /// The question, in words.
    pub study: StudyRecord,
    /// The seed of all random choices.
    pub seed: u64,
    /// The proof of the best design, and how the space was decided.
    pub certificate: Certificate,
    /// The best design with its plan; `null` if nothing fits.
    pub best: Option<BestDesign>,
    /// The best design beside its baselines.
    pub comparison: Option<Comparison>,
    /// How sure the choice is under what is not known; absent where nothing was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionRecord>,
    /// The front, if one was searched for. `None` in older records and in sweeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<FrontRecord>,
    /// The power in W down to whose clocks the search lowered its chips, below what was asked, because they take less
    /// energy there; absent where the highest clocks are best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowered_to_w: Option<f64>,
    /// The question as a value, with the texts of the files that it names.
    pub asked: Question,
    /// Wall-clock times in seconds, by phase. The only part that differs between two runs with one seed.
    pub times: BTreeMap<String, f64>,
}

/// The versions of the writer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// The version of coplace.
    pub coplace: String,
}

/// The question of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyRecord {
    /// The name of the study, or the path of its file.
    pub name: String,
    /// The name of the model, or the path of its configuration.
    pub model: String,
    /// Trainable parameters of the model.
    pub parameters: u64,
    /// Parameters that one token meets, in a model with experts: all but the experts that are not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<u64>,
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
    /// The objective, which is maximised.
    pub objective: String,
    /// Further options that change the result, as given or by default.
    pub options: BTreeMap<String, String>,
    /// Parts of the model's file that are not modelled, with the assumptions made instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

/// The state of the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// No design in the space is better, within the stated arithmetic.
    Proven,
    /// No design in the space is better by more than the gap.
    Gap,
    /// No design in the space runs the model; this is proven.
    Infeasible,
}

/// The proof "no design in this space is better by more than `gap`", with the counts of the designs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// The state of the proof.
    pub proof: Proof,
    /// Designs in the space.
    pub designs: u64,
    /// Evaluated exactly.
    pub evaluated: u64,
    /// Rejected by their bound.
    pub pruned: u64,
    /// Rejected as part of a box of dimensions; included in `pruned`.
    #[serde(default)]
    pub pruned_in_boxes: u64,
    /// Rejected because no plan fits.
    pub infeasible: u64,
    /// Rejected for their area.
    pub over_area: u64,
    /// Rejected for their power.
    pub over_power: u64,
    /// Rejected for their cost.
    pub over_cost: u64,
    /// Rejected for their HBM; omitted if none was.
    #[serde(default, skip_serializing_if = "is_none")]
    pub outside_hbm: u64,
    /// Rejected because they cannot be built; omitted if none was.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unbuildable: u64,
    /// The same by rule; omitted in sweeps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unbuildable_by_rule: BTreeMap<BuildRule, u64>,
    /// Combinations of values that are no chip.
    pub no_chip: u64,
    /// Undecided when the search stopped.
    pub open: u64,
    /// True if the value of a design is at the bad end of its step's 90 % interval; omitted if it is that of the
    /// predicted step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub robust: bool,
    /// The objective: `throughput`, `per-dollar`, ...
    pub objective: String,
    /// The best value of the objective, in `unit`.
    pub best: Option<f64>,
    /// Bound of the objective: no design is better.
    pub bound: Option<f64>,
    /// The unit of both values.
    pub unit: String,
    /// The best throughput found, in sequences per second, if it is the objective.
    pub best_sequences_per_s: Option<f64>,
    /// Upper bound of the throughput, in sequences per second.
    pub bound_sequences_per_s: Option<f64>,
    /// (bound - best) / best, as a fraction: 0 when proven.
    pub gap: Option<f64>,
    /// The reason, in words, why no design is possible or why the proof stopped.
    pub why: Option<String>,
}

/// The best design with its plan and figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestDesign {
    /// Chip, plan and totals: the row of the design in `designs.parquet`.
    pub design: DesignRow,
    /// The plan with its explained figures, as `evaluate` shows it.
    pub step: StepRecord,
    /// For several models: each under its own plan; `step` is that of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelPlan>,
    /// Notes for the reader: unused area, values at the edge of the search range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The arguments of an `evaluate` that gives the same time, except for model and chip: cluster, stack and plan.
    pub evaluate_with: Vec<String>,
}

/// One of several models on the best design.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlan {
    /// The name, or the path of the file.
    pub model: String,
    /// Its share among the models, as a fraction.
    pub share: f64,
    /// Accelerators that train it.
    pub devices: u64,
    /// Sequences per optimizer step.
    pub global_batch_sequences: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// Throughput of the reference chip, with the efficiency of the space's chips, under its best plan.
    pub reference_tokens_per_s: f64,
    /// Energy of its step over the whole cluster, in joules; absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_energy_per_step_j: Option<f64>,
    /// Throughput relative to the reference.
    pub times_reference: f64,
    /// The plan with its explained figures, as `evaluate` shows it.
    pub step: StepRecord,
    /// As [`BestDesign::evaluate_with`].
    pub evaluate_with: Vec<String>,
    /// The design beside its baselines, on this model.
    pub comparison: Comparison,
}

/// True if the count is zero.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl Versions {
    /// The versions of this build.
    #[must_use]
    pub fn current() -> Self {
        Self { coplace: env!("CARGO_PKG_VERSION").into() }
    }
}

impl Certificate {
    /// (bound - best) / best, at least zero; `None` without a best value.
    #[must_use]
    pub fn relative_gap(best: f64, bound: f64) -> Option<f64> {
        (best > 0.0 && bound.is_finite()).then(|| ((bound - best) / best).max(0.0))
    }

    /// True if no chip is within the limits, so that nothing was tried.
    #[must_use]
    pub fn is_without_candidates(&self) -> bool {
        let outside = self.over_area + self.over_power + self.over_cost + self.outside_hbm + self.unbuildable;
        self.designs == outside + self.no_chip
    }
}

impl SearchRecord {
    /// The record as stored JSON: indented, keys in the order of the structs, one line break at the end.
    ///
    /// # Errors
    /// A number that is not finite.
    pub fn to_json(&self) -> Result<String, RecordError> {
        let unstorable = |e: serde_json::Error| RecordError::NotStorable { why: e.to_string() };
        let mut text = serde_json::to_string_pretty(self).map_err(unstorable)?;
        text.push('\n');
        // JSON has no NaN: serde writes null. Reading the text back finds the loss, in optional numbers too.
        let back: Self = serde_json::from_str(&text).map_err(unstorable)?;
        if back == *self {
            Ok(text)
        } else {
            Err(RecordError::NotStorable { why: "a value does not read back as it was".into() })
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// A file that is missing, truncated, no record, or of another format.
    pub fn read_from(path: &Path) -> Result<Self, RecordError> {
        let text = sim::files::text::read_text(path).map_err(|why| RecordError::Open { file: path.into(), why })?;
        Self::parse(path, &text)
    }

    /// Digest of the question of a directory's record, in any format. `None` without a record; `Some(None)` for a
    /// record without a digest.
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
        if value.get("verb").is_some_and(|verb| verb == "serve") {
            return Err(RecordError::Serving { file: file.into() });
        }
        match value.get("format") {
            Some(format) if format.as_u64() == Some(u64::from(FORMAT)) => {}
            found => {
                let found = found.map_or_else(|| "missing".into(), ToString::to_string);
                return Err(RecordError::Format { file: file.into(), found });
            }
        }
        // Parsing the text, not a value, gives errors a line and a column.
        let record: Self = serde_json::from_str(text).map_err(malformed)?;
        match check_values(&value) {
            Ok(()) => Ok(record),
            Err(fault) => Err(RecordError::Malformed { file: file.into(), why: fault.to_string() }),
        }
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;

#[cfg(test)]
pub(crate) use tests::{question as example_question, record as example, several as example_of_several};
