//! The answer of `coplace evaluate` as data: one plan of one job. Described in `docs/json.md`.

use crate::answer::plan::{PlanCounts, one_line, reason_without_plan};
use crate::answer::step::{ExplainedPlan, JobRecord, StepRecord};
use search::ask::Question;
use search::planner::{Job, PlanAnswer};
use serde::Serialize;
use step::{OverCapacity, TrainingPlan};

/// The version of the JSON format that this build writes.
pub const FORMAT: u32 = 3;

/// The answer of `coplace evaluate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvaluateAnswer {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// The job.
    pub job: JobRecord,
    /// The counts of the plans that the arguments leave open, by how they were decided.
    pub counts: PlanCounts,
    /// True if a plan fits.
    pub feasible: bool,
    /// If no plan fits: the shortfall of the nearest plan, or the reason for the refusal.
    pub why: Option<String>,
    /// If memory is short: the shortfall of the nearest plan.
    pub shortfall: Option<ShortfallRecord>,
    /// The plan with its figures; `null` if there is none.
    pub result: Option<StepRecord>,
    /// The question, with the texts of the files that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Question>,
}

/// The shortfall of the nearest plan in device memory, host memory or storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShortfallRecord {
    /// The plan in one line.
    pub plan: String,
    /// The stage that does not fit, counted from 0.
    pub stage: u32,
    /// The largest class of device memory, or the host or storage if that is what does not suffice.
    pub class: String,
    /// Bytes that the stage needs in that memory, per device.
    pub need_bytes: u64,
    /// Bytes of that memory that are available, per device.
    pub have_bytes: u64,
    /// The difference, in bytes.
    pub lacking_bytes: u64,
}

impl ShortfallRecord {
    fn new(plan: &TrainingPlan, why: &OverCapacity) -> Self {
        Self {
            plan: one_line(plan),
            stage: why.stage,
            class: why.class.to_string(),
            need_bytes: why.need.0,
            have_bytes: why.have.0,
            lacking_bytes: why.need.0.saturating_sub(why.have.0),
        }
    }
}

impl EvaluateAnswer {
    /// Makes the record of an answer. `model` is the name that the user gave; `explained` explains the fastest plan.
    #[must_use]
    pub fn new(job: &Job<'_>, model: &str, answer: &PlanAnswer, explained: Option<&ExplainedPlan>) -> Self {
        let best = answer.best.first().zip(explained);
        Self {
            format: FORMAT,
            job: JobRecord::from_job(job, model),
            counts: PlanCounts::from_answer(answer),
            feasible: best.is_some(),
            why: reason_without_plan(job, answer),
            shortfall: answer
                .nearest
                .as_ref()
                .filter(|_| best.is_none())
                .map(|(plan, why)| ShortfallRecord::new(plan, why)),
            result: best.map(|(ranked, explained)| StepRecord::from_explained(job, ranked, explained)),
            asked: None,
        }
    }
}
