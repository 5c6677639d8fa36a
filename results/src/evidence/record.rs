//! Evidence as data: what answers carry.

use super::interval::RivalPredictions;
use super::{Evidence, EvidenceGround, Grade, PredictedQuantity, PredictionFacts, PredictionInterval, ResidualTable};
use search::planner::{Job, RankedPlan};
use serde::{Deserialize, Serialize};

/// How sure a plan's step and peak are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceRecord {
    /// The grade of what is known least of the step's time.
    pub grade: Grade,
    /// What the prediction rests on that was not measured in training runs, or that only related ones were; the rest was.
    pub grounds: Vec<GroundRecord>,
    /// Between which seconds the step's time lies with 90 % confidence; the first below, the second above the predicted.
    pub step_interval_s: [f64; 2],
    /// How many times as long the step of another plan of the same job has to be for it to be the longer one with 90 % confidence: what errors the two
    /// share does not count.
    #[serde(default = "alike")]
    pub plan_lead: f64,
    /// The same of another design, or of another job, under the same software.
    #[serde(default = "alike")]
    pub design_lead: f64,
    /// The grade of what is known least of the peak.
    pub peak_grade: Grade,
    /// What the peak rests on that was not measured in training runs, or only in related ones; nothing in records of older versions.
    #[serde(default)]
    pub peak_grounds: Vec<GroundRecord>,
    /// Between which GiB the peak lies with 90 % confidence.
    pub peak_interval_gib: [f64; 2],
}

/// One thing that a prediction rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroundRecord {
    /// `chip`, `fabric`, `stack`, `mechanism`, `scale`.
    pub what: String,
    /// Its name; of the scale the number of chips.
    pub name: String,
    /// How near the nearest measurement is.
    pub grade: Grade,
    /// What was measured nearest to it, most runs first: what is of its kind; of a mechanism the stacks that it was measured under, of the scale the numbers of
    /// chips that are as large, or else the largest. Empty in records of older versions, and where nothing of its kind was measured.
    #[serde(default)]
    pub near: Vec<NearMeasurements>,
}

/// What was measured in training runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearMeasurements {
    /// Its name; of the scale the number of chips.
    pub name: String,
    /// In how many runs.
    pub runs: usize,
}

/// What records before there were leads say of them: nothing.
fn alike() -> f64 {
    1.0
}

impl From<&EvidenceGround> for GroundRecord {
    fn from(ground: &EvidenceGround) -> Self {
        let near = ground.near.iter().map(|(name, runs)| NearMeasurements { name: name.clone(), runs: *runs }).collect();
        Self { what: ground.what.to_owned(), name: ground.name.clone(), grade: ground.grade, near }
    }
}

impl EvidenceRecord {
    /// Of a plan that rests on `facts`, with its predicted step in seconds and peak in GiB, by the carried table; nothing where that is empty.
    #[must_use]
    pub fn of_prediction(facts: &PredictionFacts, step_s: f64, peak_gib: f64) -> Option<Self> {
        let table = ResidualTable::read_carried();
        let (step, peak): (Evidence, Evidence) =
            (table.evidence_of(PredictedQuantity::StepTime, facts), table.evidence_of(PredictedQuantity::Peak, facts));
        let known = [&step, &peak].into_iter().all(|evidence| evidence.interval != PredictionInterval::UNKNOWN);
        let unmeasured = |evidence: &Evidence| {
            evidence.grounds.iter().filter(|g| g.grade != Grade::Measured).map(GroundRecord::from).collect()
        };
        known.then(|| Self {
            grade: step.worst_grade(),
            grounds: unmeasured(&step),
            step_interval_s: step.interval.around_prediction(step_s),
            plan_lead: table.lead_over(PredictedQuantity::StepTime, facts, RivalPredictions::Plans),
            design_lead: table.lead_over(PredictedQuantity::StepTime, facts, RivalPredictions::Designs),
            peak_grade: peak.worst_grade(),
            peak_grounds: unmeasured(&peak),
            peak_interval_gib: peak.interval.around_prediction(peak_gib),
        })
    }

    /// Of a plan that a search has found.
    #[must_use]
    pub fn of_ranked(job: &Job<'_>, ranked: &RankedPlan) -> Option<Self> {
        let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
        let peak_gib = ranked.memory.stages.iter().map(|s| s.bytes_needed().gib()).fold(0.0, f64::max);
        let step = ranked.time.total.0;
        let mut record = Self::of_prediction(&facts, step, peak_gib)?;
        // Whatever the errors are like: no device works faster than its peak.
        let least = least_step_time(job).unwrap_or(0.0).min(step);
        record.step_interval_s[0] = record.step_interval_s[0].max(least);
        Some(record)
    }

    /// What the step rests on that was not measured in training runs, worst first.
    #[must_use]
    pub fn step_reasons(&self) -> String {
        list_reasons(&self.grounds)
    }

    /// What the peak rests on that was not measured in training runs, worst first.
    #[must_use]
    pub fn peak_reasons(&self) -> String {
        list_reasons(&self.peak_grounds)
    }
}

/// Seconds that the step's necessary matrix products take on all devices at their peak; none where techniques leave some of them out.
fn least_step_time(job: &Job<'_>) -> Option<f64> {
    let peak =
        job.chip.peak_flops(job.precision.product.unwrap_or(job.precision.operand)).filter(|_| job.techniques.is_empty())?;
    let flops = job.model.necessary_training_flops(job.global_batch, job.sequence_length, job.model.padded_vocabulary(1));
    Some(flops.as_f64() / (peak.0 * f64::from(job.devices)))
}

fn list_reasons(grounds: &[GroundRecord]) -> String {
    let of = |grade: Grade| {
        let names: Vec<String> = grounds.iter().filter(|g| g.grade == grade).map(|g| format!("{} {}", g.what, g.name)).collect();
        (!names.is_empty()).then(|| format!("{grade}: {}", names.join(", ")))
    };
    let why: Vec<String> = [Grade::NeverMeasured, Grade::Related].into_iter().filter_map(of).collect();
    if why.is_empty() { "all that it rests on was measured".to_owned() } else { why.join("; ") }
}
