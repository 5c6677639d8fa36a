//! From what a search found to what is kept and shown: rows of the store, stages, comparison entries.

use crate::compare::Entry;
use crate::design::{DesignRow, Dimensions, Outcome};
use crate::record::{BestDesign, Certificate, Proof, Share, StageRecord};
use crate::report::bytes;
use search::bench::Bench;
use search::design::DesignAnswer;
use search::evaluate::{Evaluation, Planned};
use search::explain::Explanation;
use search::placement::plan::{Plan, StagePlan};
use search::runner;
use sim::hardware::Accelerator;
use sim::hardware::phaze::PhazeConfig;
use sim::kernel::DataType;
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;

/// The figures of a plan that its chip, cluster and time give.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Sequences per second over the whole cluster.
    pub sequences_per_s: f64,
    /// Tokens per second over the whole cluster.
    pub tokens_per_s: f64,
    /// Model FLOPs over the peak of the devices used, times time.
    pub mfu: f64,
}

/// The rates of a plan on a chip.
#[must_use]
pub fn rates(bench: &Bench, plan: &Plan, chip: &Accelerator) -> Rates {
    let step = plan.step.0;
    let peak = chip.peak(DataType::Bf16).or_else(|| chip.peak(DataType::Fp16)).map_or(f64::NAN, |p| p.0);
    Rates {
        sequences_per_s: f64::from(bench.global_batch) / step,
        tokens_per_s: bench.tokens_per_step() / step,
        mfu: bench.model_flops_per_step().as_f64() / (peak * plan.devices as f64 * step),
    }
}

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

/// Every design of a search, in its order.
#[must_use]
pub fn rows(bench: &Bench, answer: &DesignAnswer) -> Vec<DesignRow> {
    let row = |(index, d): (usize, &search::design::DesignOutcome)| {
        let mut row = DesignRow::undecided(index as i64, dimensions(&d.config, d.area.0));
        let rate = |bound: f64| (bound > 0.0).then(|| f64::from(bench.global_batch) / bound).filter(|r| r.is_finite());
        match &d.outcome {
            runner::Outcome::Evaluated { evaluation, .. } => fill(&mut row, bench, &d.config, evaluation),
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

fn fill(row: &mut DesignRow, bench: &Bench, config: &PhazeConfig, evaluation: &Evaluation) {
    let Ok(planned) = &evaluation.outcome else { return };
    let chip = sim::hardware::phaze::design(config);
    row.outcome = Outcome::Evaluated;
    fill_plan(row, bench, &chip, planned, &evaluation.status);
    // An evaluated design is its own bound, as far as its plan is proven.
    row.bound_sequences_per_s = match evaluation.status {
        SolveStatus::Gap { lower_bound, .. } => Some(f64::from(bench.global_batch) / lower_bound),
        _ => row.throughput_sequences_per_s,
    };
}

fn fill_plan(row: &mut DesignRow, bench: &Bench, chip: &Accelerator, planned: &Planned, status: &SolveStatus) {
    let plan = &planned.plan;
    let rates = rates(bench, plan, chip);
    row.throughput_sequences_per_s = Some(rates.sequences_per_s);
    row.throughput_tokens_per_s = Some(rates.tokens_per_s);
    row.step_time_s = Some(plan.step.0);
    row.mfu = Some(rates.mfu);
    row.energy_per_step_j = Some(planned.energy.0);
    row.stages = Some(plan.pipeline_stages as i64);
    row.tensor_parallel = Some(plan.tensor_width as i64);
    row.data_parallel = Some(plan.data_parallel as i64);
    row.micro_batch_sequences = Some(plan.micro_batch as i64);
    row.devices_used = Some(plan.devices as i64);
    row.pipeline_schedule = Some(schedule_name(plan).into());
    row.memory_policy = Some(policy_summary(plan));
    row.peak_memory_gib = plan.stages.iter().map(|s| s.memory.total()).max().map(Bytes::gib);
    row.plan_status = Some(status.to_string());
}

/// How many layers recompute, and what share of the busiest stage's time that takes.
fn policy_summary(plan: &Plan) -> String {
    let stages = plan.stages.iter().filter(|s| s.recompute.0 > 0.0).count();
    if stages == 0 {
        return "everything kept".into();
    }
    let share = plan.stages.iter().map(|s| s.recompute.0 / s.time.0).fold(0.0, f64::max);
    format!("recomputation on {stages} of {} stages, up to {:.1} % of a stage's time", plan.stages.len(), share * 100.0)
}

/// A plan on a chip as an entry of a comparison; a chip without a plan says why.
#[must_use]
pub fn entry(label: &str, bench: &Bench, chip: &Accelerator, area_mm2: Option<f64>, evaluation: &Evaluation) -> Entry {
    let c = chip;
    let buffer = c.global_buffer().map_or_else(|| "no global buffer".into(), |level| bytes(level.capacity));
    let arrays = u64::from(c.tensor.cores) * u64::from(c.tensor.arrays_per_core);
    let mut entry = Entry {
        chip: format!(
            "{}: {arrays} x {}x{} TC, {} x {} VC, {buffer}, {} HBM",
            c.name,
            c.tensor.rows,
            c.tensor.columns,
            c.vector.cores,
            c.vector.lanes,
            bytes(c.memory_capacity())
        ),
        area_mm2,
        ..Entry::without_design(label)
    };
    match &evaluation.outcome {
        Ok(planned) => {
            let plan = &planned.plan;
            let rates = rates(bench, plan, chip);
            entry.plan = Some(plan_line(plan));
            entry.throughput_sequences_per_s = Some(rates.sequences_per_s);
            entry.throughput_tokens_per_s = Some(rates.tokens_per_s);
            entry.step_time_s = Some(plan.step.0);
            entry.mfu = Some(rates.mfu);
            entry.energy_per_step_j = Some(planned.energy.0);
            entry.peak_memory_gib = plan.stages.iter().map(|s| s.memory.total()).max().map(Bytes::gib);
        }
        Err(why) => entry.note = Some(why.to_string()),
    }
    entry
}

fn schedule_name(plan: &Plan) -> &'static str {
    if plan.pipeline_stages > 1 { "1F1B" } else { "no pipeline" }
}

/// A plan in one line, as [`DesignRow::plan`] writes it.
#[must_use]
pub fn plan_line(plan: &Plan) -> String {
    format!(
        "p {}, t {}, d {}, micro-batch {}, {}",
        plan.pipeline_stages,
        plan.tensor_width,
        plan.data_parallel,
        plan.micro_batch,
        schedule_name(plan)
    )
}

/// The pipeline's stages with what each holds and keeps.
#[must_use]
pub fn stages(bench: &Bench, planned: &Planned, capacity: Bytes) -> Vec<StageRecord> {
    let stage = |(index, s): (usize, &StagePlan)| {
        let (mut forward, mut backward) = (0.0, s.recompute.0);
        for share in &s.shares {
            let segment = &planned.profile.segments[share.segment];
            forward += segment.forward.time.0 * share.count as f64;
            backward += segment.backward.time.0 * share.count as f64;
        }
        let memory = [
            ("weights, gradients, optimizer", s.memory.fixed),
            ("activations", s.memory.stash),
            ("working set", s.memory.working),
            ("constant", s.memory.constant),
        ];
        StageRecord {
            stage: index as u64,
            layers: holds(bench, planned, s),
            forward_s: forward,
            backward_s: backward,
            memory_policy: stage_policy(bench, planned, s),
            memory_gib: memory.into_iter().filter(|(_, b)| b.0 > 0).map(|(name, b)| (name.into(), b.gib())).collect(),
            peak_gib: s.memory.total().gib(),
            capacity_gib: capacity.gib(),
        }
    };
    planned.plan.stages.iter().enumerate().map(stage).collect()
}

/// `embedding, layers 0-3`.
fn holds(bench: &Bench, planned: &Planned, stage: &StagePlan) -> String {
    let segments = &bench.shapes[planned.shape].segments;
    let mut at = 0usize;
    let mut parts = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let repeat = segment.segment.repeat as usize;
        let (from, to) = (stage.first.max(at), stage.end.min(at + repeat));
        if from < to && stage.shares.iter().any(|s| s.segment == index) {
            parts.push(match (repeat, to - from) {
                (1, _) => segment.segment.name.clone(),
                (_, 1) => format!("{} {}", segment.segment.name, from - at),
                _ => format!("{}s {}-{}", segment.segment.name, from - at, to - at - 1),
            });
        }
        at += repeat;
    }
    parts.join(", ")
}

/// `2 layers keep all, 2 recompute norm1 qkv`.
fn stage_policy(bench: &Bench, planned: &Planned, stage: &StagePlan) -> String {
    let mut parts = Vec::new();
    for share in &stage.shares {
        let segment = &bench.shapes[planned.shape].segments[share.segment];
        for policy in &share.policies {
            let operators = planned.profile.segments[share.segment].policies[policy.id].policy.operators;
            if operators.is_empty() {
                continue;
            }
            let short =
                |i: usize| segment.segment.operators().get(i).map(|op| op.name.rsplit('.').next().unwrap_or(&op.name).to_owned());
            let names: Vec<String> = operators.iter().filter_map(short).collect();
            let (name, names) = (&segment.segment.name, names.join(" "));
            parts.push(match (segment.segment.repeat, policy.count) {
                (1, _) => format!("{name} recomputes {names}"),
                (_, 1) => format!("1 {name} recomputes {names}"),
                (_, n) => format!("{n} {name}s recompute {names}"),
            });
        }
    }
    if parts.is_empty() { "all kept".into() } else { parts.join("; ") }
}

/// The certificate of a search.
#[must_use]
pub fn certificate(bench: &Bench, answer: &DesignAnswer, over_area: usize) -> Certificate {
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
    let rate = |step: f64| Some(f64::from(bench.global_batch) / step).filter(|r| r.is_finite());
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

/// The best design of a search with its plan, its simulated step time and where its time goes.
#[must_use]
pub fn best(
    bench: &Bench,
    planned: &Planned,
    capacity: Bytes,
    mut design: DesignRow,
    why: &Explanation,
    simulated: Seconds,
) -> BestDesign {
    let time_shares = time_shares(planned, why);
    design.bound_by = time_shares.first().map(|s| s.name.clone());
    BestDesign { design, simulated_step_s: simulated.0, stages: stages(bench, planned, capacity), time_shares }
}

/// The parts of a step's time as fractions of it, largest first.
#[must_use]
pub fn time_shares(planned: &Planned, why: &Explanation) -> Vec<Share> {
    let step = planned.plan.step.0;
    why.parts.iter().map(|part| Share { name: part.name.clone(), fraction: part.time.0 / step }).collect()
}
