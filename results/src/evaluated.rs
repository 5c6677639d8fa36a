//! One plan of one job: what `coplace evaluate` shows, as data. Described in `docs/json.md`.

use crate::asked::JobInputs;
use crate::planned::{PlanCounts, one_line, reason_without_plan};
use crate::step_record::{ExplainedPlan, JobRecord, StepRecord};
use search::planner::{Job, PlanAnswer};
use serde::Serialize;
use step::{OverCapacity, TrainingPlan};

/// The version of the JSON that this build writes.
pub const FORMAT: u32 = 2;

/// The answer of `coplace evaluate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvaluateAnswer {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// What is to be trained, on what, under which software.
    pub job: JobRecord,
    /// How the plans that the arguments leave open were decided.
    pub counts: PlanCounts,
    /// Whether a plan fits.
    pub feasible: bool,
    /// Where none does: what the nearest lacks.
    pub why: Option<String>,
    /// Where memory is what is lacking: how much of it under the plan that lacks least.
    pub shortfall: Option<ShortfallRecord>,
    /// The plan and what it takes; `null` where there is none.
    pub result: Option<StepRecord>,
    /// How the job is asked again.
    #[serde(flatten)]
    pub asked: JobInputs,
}

/// The memory that the nearest plan lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShortfallRecord {
    /// The plan in one line.
    pub plan: String,
    /// The fullest stage, counted from 0.
    pub stage: u32,
    /// The class that takes most.
    pub class: String,
    /// What one of its devices needs, in bytes.
    pub need_bytes: u64,
    /// What a device has, in bytes.
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
    /// The record of the fastest plan of an answer, which is explained; `model` is what the user called it.
    #[must_use]
    pub fn new(job: &Job<'_>, model: &str, answer: &PlanAnswer, explained: Option<&ExplainedPlan>) -> Self {
        let best = answer.best.first().zip(explained);
        Self {
            format: FORMAT,
            job: JobRecord::from_job(job, model),
            counts: PlanCounts::from_answer(answer),
            feasible: best.is_some(),
            why: reason_without_plan(job, answer),
            shortfall: answer.nearest.as_ref().filter(|_| best.is_none()).map(|(plan, why)| ShortfallRecord::new(plan, why)),
            result: best.map(|(ranked, explained)| StepRecord::from_explained(job, ranked, explained)),
            asked: JobInputs::default(),
        }
    }
}
