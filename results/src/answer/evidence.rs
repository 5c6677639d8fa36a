//! Evidence as data, in the form of answers.

use measured::evidence::{
    Evidence, EvidenceGround, Grade, PredictedQuantity, PredictionFacts, PredictionInterval, ResidualTable,
};
use search::planner::{Job, RankedPlan};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use step::{DeviceMemory, StageMemory, usable_hbm};

/// The confidence in a plan's step and peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceRecord {
    /// The worst grade among the grounds of the step.
    pub grade: Grade,
    /// The grounds that were not measured in training runs, or only through related ones. The others were measured.
    pub grounds: Vec<GroundRecord>,
    /// The 90 % interval of the step, in seconds. The predicted step lies within it.
    pub step_interval_s: [f64; 2],
    /// The grounds of step and peak. `null` in older records.
    #[serde(default)]
    pub facts: Option<PredictionFacts>,
    /// The upper end of the 90 % interval of the ratio of two plans of the same job, measured over predicted: the step
    /// of another plan that is longer by this factor is the slower one with 95 % confidence. Errors that both share
    /// cancel.
    #[serde(default = "alike")]
    pub plan_lead: f64,
    /// The same for another design, or another job, under the same software, with 90 % confidence.
    #[serde(default = "alike")]
    pub design_lead: f64,
    /// The worst grade among the grounds of the peak.
    pub peak_grade: Grade,
    /// The grounds of the peak with a grade other than [`Grade::Measured`]: training runs have only related ones, or
    /// none. Empty in older records.
    #[serde(default)]
    pub peak_grounds: Vec<GroundRecord>,
    /// The 90 % interval of the peak, in GiB.
    pub peak_interval_gib: [f64; 2],
}

/// One ground of a prediction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroundRecord {
    /// `chip`, `fabric`, `stack`, `mechanism`, `scale`.
    pub what: String,
    /// The name; for the scale the number of chips.
    pub name: String,
    /// The relation of the nearest measurement.
    pub grade: Grade,
    /// The nearest measurements, most runs first: things of its kind. For a mechanism these are the stacks it was
    /// measured under; for the scale the numbers of chips at least as large, or else the largest. Empty in older
    /// records, and if nothing of its kind was measured.
    #[serde(default)]
    pub near: Vec<NearMeasurements>,
}

/// A thing that was measured in training runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearMeasurements {
    /// The name; for the scale the number of chips.
    pub name: String,
    /// Number of runs.
    pub runs: usize,
}

/// The lead in records that are older than leads: no lead.
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
    /// The evidence of a plan with these `facts`, its predicted step in seconds and its peak in GiB, from the carried
    /// table. `None` if the table is empty.
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

    /// The evidence of a plan from a search.
    #[must_use]
    pub fn of_ranked(job: &Job<'_>, ranked: &RankedPlan) -> Option<Self> {
        let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
        let peak_gib = ranked.memory.stages.iter().map(|s| s.bytes_needed().gib()).fold(0.0, f64::max);
        let step = ranked.time.total.0;
        let mut record = Self::of_prediction(&facts, step, peak_gib)?;
        // A device cannot exceed its peak, whatever the errors.
        let least = least_step_time(job).unwrap_or(0.0).min(step);
        record.step_interval_s[0] = record.step_interval_s[0].max(least);
        Some(record)
    }

    /// The 90 % interval of the ratio of two steps, measured over predicted. `None` if a record is older than facts.
    #[must_use]
    pub fn ratio_interval(&self, other: &Self) -> Option<[f64; 2]> {
        ratio_interval(self.facts.as_ref()?, other.facts.as_ref()?)
    }

    /// The grounds of the step that were not measured in training runs, worst first.
    #[must_use]
    pub fn step_reasons(&self) -> String {
        list_reasons(&self.grounds)
    }

    /// The grounds of the peak that were not measured in training runs, worst first.
    #[must_use]
    pub fn peak_reasons(&self) -> String {
        list_reasons(&self.peak_grounds)
    }
}

/// The 90 % interval of the ratio of two steps on these grounds, measured over predicted. `None` if nothing is known.
#[must_use]
pub fn ratio_interval(one: &PredictionFacts, other: &PredictionFacts) -> Option<[f64; 2]> {
    let interval = ResidualTable::read_carried().ratio_interval(PredictedQuantity::StepTime, [one, other]);
    (interval != PredictionInterval::UNKNOWN).then_some([interval.low, interval.high])
}

/// The memory that a plan needs and the memory that a device has for programs.
#[must_use]
pub fn need_and_have(job: &Job<'_>, ranked: &RankedPlan) -> [Bytes; 2] {
    let need = ranked.memory.stages.iter().map(StageMemory::bytes_needed).max().unwrap_or(Bytes::ZERO);
    [need, usable_hbm(job.stack, DeviceMemory::of_chip(job.chip).hbm)]
}

/// The chance that a plan's peak fits a device's memory, headroom included: from the errors that make the peak's 90 %
/// interval. `None` if nothing is known.
#[must_use]
pub fn fit_probability(job: &Job<'_>, ranked: &RankedPlan) -> Option<f64> {
    let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
    let [need, have] = need_and_have(job, ranked);
    ResidualTable::read_carried().probability_within(PredictedQuantity::Peak, &facts, have.as_f64() / need.as_f64())
}

/// The memory of a device that must stay free of the predicted peak of plans like this one, for their peaks to fit with
/// this probability. `None` if nothing is known.
#[must_use]
pub fn memory_margin(job: &Job<'_>, ranked: &RankedPlan, probability: f64) -> Option<Bytes> {
    /// Keeps a plan that fits exactly from falling below the probability by rounding.
    const ROUNDING: f64 = 1.0 + 1e-9;
    let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
    let factor = ResidualTable::read_carried().factor_at(PredictedQuantity::Peak, &facts, probability)?;
    let [_, have] = need_and_have(job, ranked);
    let usable = Bytes((have.as_f64() / (factor * ROUNDING)).floor() as u64);
    Some(have.saturating_sub(usable))
}

/// Lower bound of the step: the necessary matrix products on all devices at their peak. `None` if techniques omit some
/// of them.
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
    let of = |grade: Grade| {
        let names: Vec<String> =
            grounds.iter().filter(|g| g.grade == grade).map(|g| format!("{} {}", g.what, g.name)).collect();
        (!names.is_empty()).then(|| format!("{grade}: {}", names.join(", ")))
    };
    let why: Vec<String> = [Grade::NeverMeasured, Grade::Related].into_iter().filter_map(of).collect();
    if why.is_empty() { "all that it rests on was measured".to_owned() } else { why.join("; ") }
}
