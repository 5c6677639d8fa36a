//! Evidence for predictions as data, in the form of answers.

use measured::evidence::{
    Evidence, EvidenceGround, Grade, PredictedQuantity, PredictionFacts, PredictionInterval, ResidualTable,
};
use search::planner::{Job, RankedPlan};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use step::{DeviceMemory, StageMemory, usable_hbm};

/// The evidence for a plan's step and memory peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceRecord {
    /// The worst grade among the grounds of the step.
    pub grade: Grade,
    /// The grounds of the step that training runs did not measure, or measured only through related ones. All others
    /// were measured.
    pub grounds: Vec<GroundRecord>,
    /// The 90 % interval of the step, in seconds. The predicted step lies within it.
    pub step_interval_s: [f64; 2],
    /// The properties that the evidence rests on. `null` in older records.
    #[serde(default)]
    pub facts: Option<PredictionFacts>,
    /// The upper end of the 90 % interval of the ratio of two plans of the same job, measured over predicted. A plan
    /// whose predicted step is longer by this factor is slower with 95 % confidence. Errors that both plans share
    /// cancel.
    #[serde(default = "alike")]
    pub plan_lead: f64,
    /// As `plan_lead`, for two designs or jobs under the same software. A step that is longer by this factor is slower
    /// with 90 % confidence.
    #[serde(default = "alike")]
    pub design_lead: f64,
    /// The worst grade among the grounds of the peak.
    pub peak_grade: Grade,
    /// The grounds of the peak whose grade is not [`Grade::Measured`]: training runs measured only related ones, or
    /// none. Empty in older records.
    #[serde(default)]
    pub peak_grounds: Vec<GroundRecord>,
    /// The 90 % interval of the peak, in GiB.
    pub peak_interval_gib: [f64; 2],
}

/// One ground of a prediction: a part of the setting that measurements may cover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroundRecord {
    /// The kind: `chip`, `fabric`, `stack`, `mechanism` or `scale`.
    pub what: String,
    /// The name; for the scale the number of chips.
    pub name: String,
    /// The grade of the nearest measurement.
    pub grade: Grade,
    /// The nearest measurements of the same kind, most runs first. For a mechanism: the stacks under which it was
    /// measured. For the scale: the numbers of chips that are at least as large, or else the largest one. Empty in
    /// older records, and if nothing of the kind was measured.
    #[serde(default)]
    pub near: Vec<NearMeasurements>,
}

/// A chip, fabric, stack or scale that training runs measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearMeasurements {
    /// The name; for the scale the number of chips.
    pub name: String,
    /// Number of runs.
    pub runs: usize,
}

/// Returns 1, no lead: the default for records that are older than leads.
fn alike() -> f64 {
    1.0
}

impl From<&EvidenceGround> for GroundRecord {
    fn from(ground: &EvidenceGround) -> Self {
        let near =
            ground.near.iter().map(|(name, runs)| NearMeasurements { name: name.clone(), runs: *runs }).collect();
        Self { what: ground.what.to_owned(), name: ground.name.clone(), grade: ground.grade, near }
    }
}

impl EvidenceRecord {
    /// Makes the evidence for a plan with these `facts`, a predicted step in seconds and a peak in GiB, from the
    /// residual table in this build. `None` if the table gives no interval for the step or for the peak.
    #[must_use]
    fn of_prediction(facts: &PredictionFacts, step_s: f64, peak_gib: f64) -> Option<Self> {
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
            facts: Some(facts.clone()),
            plan_lead: table.ratio_interval(PredictedQuantity::StepTime, [facts, facts]).high,
            design_lead: table.lead_over_design(PredictedQuantity::StepTime, facts),
            peak_grade: peak.worst_grade(),
            peak_grounds: unmeasured(&peak),
            peak_interval_gib: peak.interval.around_prediction(peak_gib),
        })
    }

    /// Makes the evidence for a plan that a search found. `None` if the residual table gives no interval for the step
    /// or for the peak.
    #[must_use]
    pub fn of_ranked(job: &Job<'_>, ranked: &RankedPlan) -> Option<Self> {
        let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
        let peak_gib = ranked.memory.stages.iter().map(|s| s.bytes_needed().gib()).fold(0.0, f64::max);
        let step = ranked.time.total.0;
        let mut record = Self::of_prediction(&facts, step, peak_gib)?;
        // A device cannot exceed its peak rate, whatever the model's errors are.
        let least = least_step_time(job).unwrap_or(0.0).min(step);
        record.step_interval_s[0] = record.step_interval_s[0].max(least);
        Some(record)
    }

    /// Returns the 90 % interval of the ratio of two steps, measured over predicted. `None` if a record has no facts or
    /// nothing is known.
    #[must_use]
    pub fn ratio_interval(&self, other: &Self) -> Option<[f64; 2]> {
        ratio_interval(self.facts.as_ref()?, other.facts.as_ref()?)
    }

    /// Returns the grounds of the step that were not measured in training runs in words, worst grade first.
    #[must_use]
    pub fn step_reasons(&self) -> String {
        list_reasons(&self.grounds)
    }

    /// Returns the kinds of the grounds of the step that were not measured in training runs, worst grade first:
    /// `never measured: chip; related: stack, scale`.
    #[must_use]
    pub fn step_reasons_in_short(&self) -> String {
        list_reasons_by(&self.grounds, |ground| ground.what.clone())
    }

    /// Returns the grounds of the peak that were not measured in training runs in words, worst grade first.
    #[must_use]
    pub fn peak_reasons(&self) -> String {
        list_reasons(&self.peak_grounds)
    }
}

/// Returns the 90 % interval of the ratio of two steps with these facts, measured over predicted. `None` if nothing is
/// known.
#[must_use]
pub fn ratio_interval(one: &PredictionFacts, other: &PredictionFacts) -> Option<[f64; 2]> {
    let interval = ResidualTable::read_carried().ratio_interval(PredictedQuantity::StepTime, [one, other]);
    (interval != PredictionInterval::UNKNOWN).then_some([interval.low, interval.high])
}

/// Returns the memory that the fullest device of a plan needs, and the memory that a device has for programs.
#[must_use]
pub fn need_and_have(job: &Job<'_>, ranked: &RankedPlan) -> [Bytes; 2] {
    let need = ranked.memory.stages.iter().map(StageMemory::bytes_needed).max().unwrap_or(Bytes::ZERO);
    [need, usable_hbm(job.stack, DeviceMemory::of_chip(job.chip).hbm)]
}

/// Returns the probability that a plan's peak fits a device's memory, headroom included. It comes from the same errors
/// as the peak's 90 % interval. `None` if nothing is known.
#[must_use]
pub fn fit_probability(job: &Job<'_>, ranked: &RankedPlan) -> Option<f64> {
    let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
    let [need, have] = need_and_have(job, ranked);
    ResidualTable::read_carried().probability_within(PredictedQuantity::Peak, &facts, have.as_f64() / need.as_f64())
}

/// Returns a lower bound of the step in seconds: the necessary matrix products on all devices at their peak. `None` if
/// the job has techniques, which may omit some products, or if the chip has no peak for the type.
fn least_step_time(job: &Job<'_>) -> Option<f64> {
    let peak = job
        .chip
        .peak_flops(job.precision.product.unwrap_or(job.precision.operand))
        .filter(|_| job.techniques.is_empty())?;
    let flops =
        job.model.necessary_training_flops(job.global_batch, job.sequence_length, job.model.padded_vocabulary(1));
    Some(flops.as_f64() / (peak.0 * f64::from(job.devices)))
}

fn list_reasons(grounds: &[GroundRecord]) -> String {
    list_reasons_by(grounds, |ground| format!("{} {}", ground.what, ground.name))
}

/// Lists grounds by grade, worst first, each under the name that `name_of` gives it. Equal neighbours are named once.
fn list_reasons_by(grounds: &[GroundRecord], name_of: fn(&GroundRecord) -> String) -> String {
    let of = |grade: Grade| {
        let mut names: Vec<String> = grounds.iter().filter(|g| g.grade == grade).map(name_of).collect();
        names.dedup();
        (!names.is_empty()).then(|| format!("{grade}: {}", names.join(", ")))
    };
    let why: Vec<String> = [Grade::NeverMeasured, Grade::Related].into_iter().filter_map(of).collect();
    if why.is_empty() { "all that it rests on was measured".to_owned() } else { why.join("; ") }
}
