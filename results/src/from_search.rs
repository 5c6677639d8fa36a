//! From what a search found to what is kept and shown: rows of the store, comparison entries, the certificate.

use crate::compare::Entry;
use crate::design::{DesignRow, Dimensions, Outcome};
use crate::planned::{one_line, row as plan_row, schedule_name};
use crate::record::{Certificate, Proof};
use crate::report::bytes;
use search::design::{DesignAnswer, DesignOutcome, Evaluation};
use search::planner::{Job, RankedPlan};
use search::runner;
use sim::hardware::Accelerator;
use sim::hardware::phaze::{PhazeConfig, design};
use sim::status::SolveStatus;
use std::collections::BTreeMap;
use step::explain::explain;
use step::{ChipTimes, StepError};

/// The dimensions of a PHAZE chip in the store's units.
#[must_use]
pub fn dimensions(config: &PhazeConfig, area_mm2: f64) -> Dimensions {
    Dimensions {
        tensor_cores: i64::from(config.num_tc),
        vector_cores: i64::from(config.num_vc),
        array_width: i64::from(config.width),
        array_depth: i64::from(config.depth),
        global_buffer_mib: (config.global_buffer.0 >> 20) as i64,
        hbm_gib: config.hbm.gib(),
        area_mm2,
    }
}

/// Every design of a search, in its order; `job` is the search's on any chip.
#[must_use]
pub fn rows(job: &Job<'_>, answer: &DesignAnswer) -> Vec<DesignRow> {
    let rate = |bound: f64| (bound > 0.0).then(|| job.global_batch as f64 / bound).filter(|r| r.is_finite());
    let row = |(index, d): (usize, &DesignOutcome)| {
        let mut row = DesignRow::undecided(index as i64, dimensions(&d.config, d.area.0));
        match &d.outcome {
            runner::Outcome::Evaluated { evaluation, .. } => fill(&mut row, job, &d.config, evaluation),
            runner::Outcome::Infeasible { evaluation } => {
                row.outcome = Outcome::Infeasible;
                row.reason = evaluation.outcome.as_ref().err().map(ToString::to_string);
            }
            runner::Outcome::Pruned { bound, by } => {
                row.outcome = Outcome::Pruned;
                row.bound_sequences_per_s = rate(*bound);
                row.reason = Some(format!("design {by} is no larger and no slower than this one's bound"));
            }
            runner::Outcome::Open { bound } => row.bound_sequences_per_s = rate(*bound),
        }
        row
    };
    answer.designs.iter().enumerate().map(row).collect()
}

fn fill(row: &mut DesignRow, job: &Job<'_>, config: &PhazeConfig, evaluation: &Evaluation) {
    let Ok(ranked) = &evaluation.outcome else { return };
    let chip = design(config);
    let job = Job { chip: &chip, ..*job };
    let (plan, layout) = (plan_row(&job, ranked), &ranked.plan.layout);
    let sequences = |step: f64| job.global_batch as f64 / step;
    row.outcome = Outcome::Evaluated;
    row.throughput_sequences_per_s = Some(sequences(plan.step_s));
    row.throughput_tokens_per_s = Some(plan.tokens_per_s);
    row.step_time_s = Some(plan.step_s);
    row.mfu = Some(plan.mfu);
    row.energy_per_step_j = Some(plan.energy_j);
    row.stages = Some(layout.pipeline.into());
    row.tensor_parallel = Some(layout.tensor.into());
    row.data_parallel = Some(layout.data.into());
    row.context_parallel = Some(layout.context.into());
    row.expert_parallel = Some(layout.expert.into());
    row.virtual_stages = Some(layout.virtual_stages.into());
    row.zero = Some(layout.zero as i64);
    row.micro_batch_sequences = i64::try_from(ranked.plan.batch.micro_batch).ok();
    row.devices_used = Some(job.devices.into());
    row.pipeline_schedule = Some(schedule_name(&ranked.plan).into());
    row.memory_policy = Some(format!("recompute {}", ranked.plan.activations));
    row.peak_memory_gib = Some(plan.peak_gib);
    row.plan_status = Some(evaluation.status.to_string());
    // An evaluated design is its own bound, as far as its plan's schedules are proven.
    row.bound_sequences_per_s = match evaluation.status {
        SolveStatus::Gap { lower_bound, .. } => Some(sequences(lower_bound)),
        _ => row.throughput_sequences_per_s,
    };
}

/// What takes most of a plan's time, in words.
///
/// # Errors
/// A plan that the model, the fabric or the schedule does not allow.
pub fn bound_by(job: &Job<'_>, ranked: &RankedPlan) -> Result<Option<String>, StepError> {
    let mut chip = ChipTimes::new(job.chip, job.stack)?;
    let why = explain(&mut chip, job.model, job.fabric, &ranked.plan)?;
    Ok(why.parts.first().map(|part| crate::planned::part_name(&part.name).to_owned()))
}

/// The fastest plan of a job as an entry of a comparison; a chip without a plan says why.
///
/// # Errors
/// As [`bound_by`].
pub fn entry(label: &str, job: &Job<'_>, area_mm2: Option<f64>, evaluation: &Evaluation) -> Result<Entry, StepError> {
    let mut entry = Entry { chip: chip_line(job.chip), area_mm2, ..Entry::without_design(label) };
    match &evaluation.outcome {
        Ok(ranked) => {
            let plan = plan_row(job, ranked);
            entry.plan = Some(one_line(&ranked.plan));
            entry.throughput_sequences_per_s = Some(job.global_batch as f64 / plan.step_s);
            entry.throughput_tokens_per_s = Some(plan.tokens_per_s);
            entry.step_time_s = Some(plan.step_s);
            entry.mfu = Some(plan.mfu);
            entry.energy_per_step_j = Some(plan.energy_j);
            entry.peak_memory_gib = Some(plan.peak_gib);
            entry.bound_by = bound_by(job, ranked)?;
        }
        Err(why) => entry.note = Some(why.to_string()),
    }
    Ok(entry)
}

/// A chip in words.
fn chip_line(c: &Accelerator) -> String {
    let buffer = c.global_buffer().map_or_else(|| "no global buffer".into(), |level| bytes(level.capacity));
    let arrays = u64::from(c.tensor.cores) * u64::from(c.tensor.arrays_per_core);
    format!(
        "{}: {arrays} x {}x{} TC, {} x {} VC, {buffer}, {} HBM",
        c.name,
        c.tensor.rows,
        c.tensor.columns,
        c.vector.cores,
        c.vector.lanes,
        bytes(c.memory_capacity())
    )
}

/// The certificate of a search.
#[must_use]
pub fn certificate(job: &Job<'_>, answer: &DesignAnswer, over_area: usize) -> Certificate {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for design in &answer.designs {
        let kind = match design.outcome {
            runner::Outcome::Evaluated { .. } => "evaluated",
            runner::Outcome::Infeasible { .. } => "infeasible",
            runner::Outcome::Pruned { .. } => "pruned",
            runner::Outcome::Open { .. } => "open",
        };
        *counts.entry(kind).or_default() += 1;
    }
    let count = |kind| counts.get(kind).copied().unwrap_or_default();
    let rate = |step: f64| Some(job.global_batch as f64 / step).filter(|r| r.is_finite());
    let value = answer.best.and_then(|b| match answer.designs[b].outcome {
        runner::Outcome::Evaluated { value, .. } => Some(value),
        _ => None,
    });
    let (proof, bound, why) = match &answer.status {
        SolveStatus::Optimal => (Proof::Proven, value, None),
        SolveStatus::Gap { lower_bound, .. } => (Proof::Gap, Some(*lower_bound), None),
        SolveStatus::Infeasible { why } => (Proof::Infeasible, None, Some(why.clone())),
    };
    let (best, bound) = (value.and_then(rate), bound.and_then(rate));
    Certificate {
        proof,
        designs: (answer.designs.len() + over_area) as u64,
        evaluated: count("evaluated"),
        pruned: count("pruned"),
        infeasible: count("infeasible"),
        over_area: over_area as u64,
        open: count("open"),
        best_sequences_per_s: best,
        bound_sequences_per_s: bound,
        gap: best.zip(bound).map(|(best, bound)| if proof == Proof::Proven { 0.0 } else { bound / best - 1.0 }),
        why,
    }
}
