//! `record.json`: the question of a run, its answer, its proof and its times.
//!
//! The file is one JSON object. Everything outside `times` depends only on the study and the seed, so that two runs
//! with one seed differ only in `times`. Every key of a number contains its unit. Values that were not computed are
//! `null`. The structs of this module are the schema. [`FORMAT`] changes whenever a key disappears or changes its
//! meaning.

use crate::answer::comparison::Comparison;
use crate::answer::decision::DecisionRecord;
use crate::answer::step::StepRecord;
use crate::store::design::DesignRow;
use crate::store::limits::check_values;
use crate::text::format_count;
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
    /// The names of the quantities: the objective first, then the axes.
    pub quantities: Vec<String>,
    /// The designs on the front, by `index` in `designs.parquet`.
    pub designs: Vec<i64>,
    /// Hypervolume of the front, as a fraction of a box. The box spans from the best of each quantity to a reference
    /// point, which lies beyond the worst by a tenth of the range.
    pub hypervolume: f64,
    /// The knee of the front: the design with the least sum of all quantities, each scaled from 0 (best of the front)
    /// to 1 (worst).
    pub knee: DesignRow,
}

/// An error of writing or reading a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record has a number that JSON cannot hold.
    #[error("the record cannot be stored: {why}; a value that is not finite must be left out")]
    NotStorable {
        /// The error of reading the record back.
        why: String,
    },
    /// The file cannot be opened.
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
    /// The file is not JSON, lacks keys of its format, or has impossible values.
    #[error("{}: {why}; run the search again, or give another run directory", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The fault, with line, column and key.
        why: String,
    },
    /// The file is the record of `coplace serve`, where one of `search` or `sweep` is needed.
    #[error(
        "{}: is the record of a run of `coplace serve`, and here one of `coplace search` or `sweep` is needed; report, \
        explain, compare and pareto take runs of serve, and a chip that one found is best.toml in it", file.display()
    )]
    Serving {
        /// The file.
        file: PathBuf,
    },
    /// The file is not the record of `coplace serve`, where one is needed.
    #[error(
        "{}: is not the record of a run of `coplace serve`, and the others are; compare runs of one verb",
        file.display()
    )]
    NotServing {
        /// The file.
        file: PathBuf,
    },
    /// Another version of `coplace serve` wrote the file.
    #[error("{}: format = {found}, this version of coplace reads 1; run serve again with it", file.display())]
    ServingFormat {
        /// The file.
        file: PathBuf,
        /// The format found, or `missing`.
        found: String,
    },
    /// Another version of coplace wrote the file.
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
    /// The version of coplace that wrote the record.
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
    /// Confidence in the choice under draws of uncertain constants; absent if nothing was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionRecord>,
    /// The front, if one was searched for. `None` in older records and in sweeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<FrontRecord>,
    /// A power limit in W that the search chose itself, below the requested one. The search lowered the clocks to it,
    /// because chips need less energy there. Absent if the highest clocks are best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowered_to_w: Option<f64>,
    /// The question as a value, with the texts of the files that it names.
    pub asked: Question,
    /// Wall-clock times in seconds, by phase. The only part that differs between two runs with one seed.
    pub times: BTreeMap<String, f64>,
}

/// The versions of the program that wrote a record.
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
    /// Parameters that one token uses, in a model with experts: all except those of the experts that are not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<u64>,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// Designs in the space.
    pub space_designs: u64,
    /// The chip that answers are compared with. In PHAZE's grid, its area is the area limit.
    pub reference_chip: String,
    /// Accelerators in the cluster.
    pub devices: u64,
    /// The fabric between them, by name.
    pub fabric: String,
    /// Sequences per optimizer step over the whole cluster.
    pub global_batch_sequences: u64,
    /// The software stack that runs them, by name.
    pub stack: String,
    /// The plans that are tried on every chip, in words.
    pub plans: String,
    /// The objective in words.
    pub objective: String,
    /// Further options that change the result, with their given or default values.
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
    /// No design in the space runs the model. This is proven.
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
    /// Designs that were evaluated exactly.
    pub evaluated: u64,
    /// Designs that were rejected by their bound.
    pub pruned: u64,
    /// Designs that were rejected as part of a box of dimensions; included in `pruned`.
    #[serde(default)]
    pub pruned_in_boxes: u64,
    /// Designs that were rejected because no plan fits.
    pub infeasible: u64,
    /// Designs outside the area limits.
    pub over_area: u64,
    /// Designs over the power limit.
    pub over_power: u64,
    /// Designs over the cost limit.
    pub over_cost: u64,
    /// Designs outside the HBM limits; omitted if there are none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub outside_hbm: u64,
    /// Designs that cannot be built; omitted if there are none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unbuildable: u64,
    /// Designs that cannot be built, by the rule that they break; omitted in sweeps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unbuildable_by_rule: BTreeMap<BuildRule, u64>,
    /// Combinations of values that are no chip.
    pub no_chip: u64,
    /// Designs that were undecided when the search stopped.
    pub open: u64,
    /// True if designs are ranked at the bad end of their step's 90 % interval; omitted if they are ranked by the
    /// predicted step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub robust: bool,
    /// The name of the objective: `throughput`, `per-dollar`, ...
    pub objective: String,
    /// The best value of the objective, in `unit`.
    pub best: Option<f64>,
    /// The bound of the objective, in `unit`: no design is better.
    pub bound: Option<f64>,
    /// The unit of both values.
    pub unit: String,
    /// The best throughput found, in sequences per second. Only for one model whose objective is the speed of a step.
    pub best_sequences_per_s: Option<f64>,
    /// Upper bound of the throughput, in sequences per second. Only for one model whose objective is the speed of a
    /// step.
    pub bound_sequences_per_s: Option<f64>,
    /// Relative distance between bound and best value, as a fraction: the larger over the smaller, less 1. It is 0 if
    /// proven.
    pub gap: Option<f64>,
    /// The reason why no design is possible or why the proof stopped, in words.
    pub why: Option<String>,
}

/// The best design with its plan and figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestDesign {
    /// Chip, plan and totals: the design's row in `designs.parquet`.
    pub design: DesignRow,
    /// The plan with its explained figures, as `evaluate` shows it.
    pub step: StepRecord,
    /// For several models: each with its own plan; `step` is that of the first. Empty for one model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelPlan>,
    /// Notes for the reader: unused area, values at the edge of the search range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The arguments with which `evaluate` gives the same time: cluster, stack and plan, but not model and chip.
    pub evaluate_with: Vec<String>,
}

/// One of several models on the best design, with its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlan {
    /// The name, or the path of the file.
    pub model: String,
    /// Its weight among the models, as a fraction.
    pub share: f64,
    /// Accelerators that train it.
    pub devices: u64,
    /// Sequences per optimizer step.
    pub global_batch_sequences: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// Tokens per second of the reference chip under its best plan, with the efficiency of the space's chips.
    pub reference_tokens_per_s: f64,
    /// Energy of a step on the reference chip over the whole cluster, in joules; absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_energy_per_step_j: Option<f64>,
    /// Throughput relative to the reference.
    pub times_reference: f64,
    /// The plan with its explained figures, as `evaluate` shows it.
    pub step: StepRecord,
    /// The arguments for `evaluate`, as in [`BestDesign::evaluate_with`].
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
    /// Returns the versions of this build.
    #[must_use]
    pub fn current() -> Self {
        Self { coplace: env!("CARGO_PKG_VERSION").into() }
    }
}

impl Certificate {
    /// Returns (bound - best) / best for a maximised value, at least zero. `None` if the best value is not positive or
    /// the bound is not finite.
    #[must_use]
    pub fn relative_gap(best: f64, bound: f64) -> Option<f64> {
        (best > 0.0 && bound.is_finite()).then(|| ((bound - best) / best).max(0.0))
    }

    /// True if no chip is within the limits, so that nothing was evaluated.
    #[must_use]
    pub fn is_without_candidates(&self) -> bool {
        self.count_within_limits() == 0
    }

    /// Returns the number of chips in the space, and the number within the limits: `180 chips (123 within the limits)`.
    /// Each HBM capacity counts as a chip. Chips in boxes that were not opened count as within the limits. A power
    /// limit that the search chose itself is named.
    #[must_use]
    pub fn space_text(&self, lowered_to_w: Option<f64>) -> String {
        let (all, within) = (self.designs.saturating_sub(self.no_chip), self.count_within_limits());
        let boxed = if self.pruned_in_boxes + self.open > 0 { "at most " } else { "" };
        let chosen = lowered_to_w.map(|watts| format!(" and the chosen {watts:.0} W")).unwrap_or_default();
        let limits = format!(" ({boxed}{} within the limits{chosen})", format_count(within));
        format!("{} chips{}", format_count(all), if within < all { limits } else { String::new() })
    }

    fn count_within_limits(&self) -> u64 {
        let outside = self.over_area + self.over_power + self.over_cost + self.outside_hbm + self.unbuildable;
        self.designs.saturating_sub(outside + self.no_chip)
    }
}

impl SearchRecord {
    /// Returns the record as it is stored: indented JSON, keys in the order of the structs, one line break at the end.
    ///
    /// # Errors
    /// A number that is not finite.
    pub fn to_json(&self) -> Result<String, RecordError> {
        let unstorable = |e: serde_json::Error| RecordError::NotStorable { why: e.to_string() };
        let mut text = serde_json::to_string_pretty(self).map_err(unstorable)?;
        text.push('\n');
        // JSON has no NaN; serde writes null instead. Reading the text back finds such a loss, in optional numbers too.
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
    /// A file that is missing, truncated, no record of a search, or of another format; an impossible value.
    pub fn read_from(path: &Path) -> Result<Self, RecordError> {
        let text = sim::files::text::read_text(path).map_err(|why| RecordError::Open { file: path.into(), why })?;
        Self::parse(path, &text)
    }

    /// Reads the question's digest from the record in a directory, whatever its format. `None` without a record;
    /// `Some(None)` if the record has no digest.
    #[must_use]
    pub fn read_question_digest(directory: &Path) -> Option<Option<String>> {
        let text = sim::files::text::read_text(&directory.join(RECORD)).ok()?;
        let value: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        Some(value.and_then(|record| record.get("question")?.as_str().map(str::to_owned)))
    }

    /// Reads a record from its text; `file` names it in errors.
    ///
    /// # Errors
    /// Text that is truncated, no record of a search, or of another format; an impossible value.
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
        // The text is parsed again instead of the value, because errors then have a line and a column.
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
