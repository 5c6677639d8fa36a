//! The answer of `coplace calculon` as data: one row of Calculon's format, run here. Described in `docs/json.md`.

use interop::calculon::row::{CalculonOutcome, CalculonRow};
use results::answer::plan::{StageRow, one_line, stage_row};
use serde::Serialize;
use std::collections::BTreeMap;

/// The version of the JSON format.
pub const FORMAT: u32 = 1;

/// The answer of `coplace calculon`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalculonAnswer {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// The application's file.
    pub model: String,
    /// The execution's file.
    pub execution: String,
    /// The system's file.
    pub system: String,
    /// The software stack's name.
    pub stack: String,
    /// Number of devices.
    pub devices: u64,
    /// Sequences per step.
    pub global_batch_sequences: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// The plan in one line.
    pub plan: String,
    /// Time of one optimizer step in seconds, embedding and head included.
    pub step_s: f64,
    /// Tokens per second over the whole cluster.
    pub tokens_per_s: f64,
    /// The parts of the step in seconds, by name; they sum to `step_s`.
    pub parts_s: BTreeMap<String, f64>,
    /// True if every stage fits into the device memory.
    pub fits: bool,
    /// If a stage does not fit, the stage, the memory class and the bytes, with a cure.
    pub why: Option<String>,
    /// The memory of the stages.
    pub stages: Vec<StageRow>,
    /// The memory of a device that programs may use, in GiB.
    pub capacity_gib: f64,
    /// Host memory per device, in GiB.
    pub host_capacity_gib: f64,
    /// Figures of the blocks alone, under those of Calculon's names that have the same meaning: seconds, bytes per
    /// device, sequences per second.
    pub calculon: BTreeMap<&'static str, f64>,
    /// Assumptions where the files are silent.
    pub assumed: Vec<String>,
    /// Parts of the files that are not modelled.
    pub not_modelled: Vec<String>,
}

impl CalculonAnswer {
    /// Makes the record of a row. `files` names the model, the execution and the system.
    #[must_use]
    pub fn new(files: [&str; 3], row: &CalculonRow, outcome: &CalculonOutcome) -> Self {
        let (plan, time) = (&row.plan, &outcome.step);
        let [model, execution, system] = files.map(str::to_owned);
        let why = outcome
            .memory
            .check_fits()
            .err()
            .map(|why| format!("{why}; {}", why.suggest_cure(plan)).trim_end_matches("; ").to_owned());
        Self {
            format: FORMAT,
            model,
            execution,
            system,
            stack: row.stack.name.clone(),
            devices: plan.layout.device_count(),
            global_batch_sequences: plan.batch.global_batch,
            sequence_tokens: plan.batch.sequence_length,
            plan: one_line(plan),
            step_s: time.total.0,
            tokens_per_s: plan.batch.global_batch as f64 * plan.batch.sequence_length as f64 / time.total.0,
            parts_s: time.named_parts().into_iter().skip(1).map(|(name, part)| (name.to_owned(), part.0)).collect(),
            fits: why.is_none(),
            why,
            stages: outcome.memory.stages.iter().map(stage_row).collect(),
            capacity_gib: outcome.memory.capacity.gib(),
            host_capacity_gib: outcome.memory.host_capacity.gib(),
            calculon: outcome.calculon_figures(row).into_iter().collect(),
            assumed: row.assumed.clone(),
            not_modelled: row.not_modelled.clone(),
        }
    }
}
