//! The best plans of fixed hardware: what `coplace plan` shows, as data. Described in `docs/json.md`.

mod none;
mod stopped;

pub(crate) use none::reason_without_plan;
pub use stopped::StoppedSearch;

use crate::asked::JobInputs;
use crate::evidence::EvidenceRecord;
use crate::mapped::RankMappingRecord;
use crate::timeline::{self, TimelineRow};
use search::planner::{Job, Neighbour, NeighbourOutcome, PlanAnswer, RankedPlan};
use search::rank_mapping::RankMapping;
use serde::{Deserialize, Serialize};
use sim::kernel::DataType;
use sim::pipeline::{PipelineSchedule, Timeline};
use std::collections::BTreeMap;
use step::{LayerKeeps, MemoryClass, NamedBytes, StageMemory, TrainingPlan, layer_keeps_by_stage};
use workloads::{ActivationPolicy, Techniques};

/// A memory technique, and what was allowed of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TechniqueRecord {
    /// Its name with the parameters given.
    pub technique: String,
    /// What it does to the result of training: `exact`, `unbiased` or `biased`.
    pub gate: String,
    /// How many times as many steps the user expects.
    pub step_multiplier: f64,
    /// Where it is from.
    pub source: String,
}

impl TechniqueRecord {
    /// Of all techniques of a job.
    pub(crate) fn of_techniques(techniques: &Techniques) -> Vec<Self> {
        let of = |technique: &workloads::Technique| Self {
            technique: technique.to_string(),
            gate: technique.preset().gate.to_string(),
            step_multiplier: technique.step_multiplier(),
            source: technique.preset().source.clone(),
        };
        techniques.iter().map(of).collect()
    }
}

/// The version of the JSON that this build writes.
pub const FORMAT: u32 = 1;

/// The answer of `coplace plan`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedAnswer {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// What is trained: a built-in model's name or the path of its configuration.
    pub model: String,
    /// The chip's name.
    pub chip: String,
    /// The fabric's name.
    pub fabric: String,
    /// The software stack's name.
    pub stack: String,
    /// Devices of the cluster.
    pub devices: u32,
    /// Sequences per step.
    pub global_batch_sequences: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// Memory techniques that every plan has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub techniques: Vec<TechniqueRecord>,
    /// How the plans of the space were decided.
    pub counts: PlanCounts,
    /// The fastest plans that fit, fastest first; empty where none does. Where ranks are mapped, those fastest with ranks in the order of the
    /// devices, in the order of their steps as mapped.
    pub plans: Vec<PlanRow>,
    /// Whether they are in the order of their intervals' bad ends instead, best first.
    pub robust: bool,
    /// Where the search was stopped before its end: by what, and what is proven nevertheless. The plans are then the best so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StoppedSearch>,
    /// The stages' memory under the fastest plan.
    pub stages: Vec<StageRow>,
    /// The fastest plan's step event by event, by stage.
    pub timeline: Vec<TimelineRow>,
    /// What a device has for programs, in GiB, less the headroom.
    pub capacity_gib: Option<f64>,
    /// What plans leave free of every device's memory, in GiB.
    pub headroom_gib: f64,
    /// What there is of the host's memory for one device, in GiB.
    pub host_capacity_gib: Option<f64>,
    /// The plans one decision away from the fastest one.
    pub neighbours: Vec<NeighbourRow>,
    /// Where ranks of the fastest plan run, on links that differ or where mapping was asked for.
    pub mapping: Option<RankMappingRecord>,
    /// Where no plan fits: what the nearest one lacks, or why plans were refused.
    pub why: Option<String>,
    /// What the model's file says that is not modelled, and what was taken instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// How the job is asked again.
    #[serde(flatten)]
    pub asked: JobInputs,
}

/// How the plans of a space were decided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlanCounts {
    /// Plans in the space.
    pub plans: usize,
    /// Timed, in closed form or event by event.
    pub timed: usize,
    /// Of these, event by event.
    pub simulated: usize,
    /// Larger than memory.
    pub over_capacity: usize,
    /// Slower than the list, by their bound.
    pub rejected_by_bound: usize,
    /// Refused by the model, the fabric or the schedule.
    pub refused: usize,
    /// Not looked at, or bounded and no further, where the search was stopped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_reached: usize,
    /// Other splits of the layers that the plans have besides the even one, under which they are counted above.
    pub splits: u64,
    /// Of these, evaluated one by one; the others are ruled out by bounds.
    pub splits_tried: u64,
    /// By what share another split of the layers can make a plan faster than the first at most; `None` where the splits were given.
    pub split_tolerance: Option<f64>,
    /// Layouts, splits and schedules whose stages' policies were chosen one by one; the others take longer than the first plan even if they keep
    /// everything. `None` where all layers of a plan follow one policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<usize>,
    /// By what share the passes of a stage could be shorter under a better mix of the same policies at most: 0 where all mixes are proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix_gap: Option<f64>,
}

/// A plan with what it takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRow {
    /// The plan, with every degree and option.
    pub plan: TrainingPlan,
    /// Layers of every model chunk, first to last.
    pub layers: Vec<u64>,
    /// Time of one optimizer step in seconds, with ranks in the order of the devices.
    pub step_s: f64,
    /// Where ranks are mapped to the fabric's links: the step in seconds as mapped.
    pub mapped_step_s: Option<f64>,
    /// Tokens per second over the whole cluster.
    pub tokens_per_s: f64,
    /// Model FLOPs utilisation as a fraction: the FLOPs that the result depends on (of causal scores the unmasked half, recomputation not
    /// counted) over time and the chip's peak for the type of the products.
    pub mfu: f64,
    /// Energy of one step over all devices in joules; on the network's links it is not modelled.
    pub energy_j: f64,
    /// Largest need of any device, in GiB, framework and collective buffers included.
    pub peak_gib: f64,
    /// Plans like it that are not listed: of the same degrees, about as fast and as large.
    pub alike: usize,
    /// Why the software's framework cannot run it; `None` where nothing is known against it.
    pub cannot_run: Option<String>,
    /// The parts of the step in seconds, by name; they sum to `step_s`.
    pub parts_s: BTreeMap<String, f64>,
    /// How sure step and peak are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceRecord>,
}

/// A stage's peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageRow {
    /// The stage, from 0.
    pub stage: u32,
    /// GiB by class.
    pub classes_gib: BTreeMap<String, f64>,
    /// Their sum.
    pub need_gib: f64,
    /// GiB in the host's memory: offloaded activations.
    pub host_gib: f64,
    /// GiB in storage.
    #[serde(default, skip_serializing_if = "nothing")]
    pub storage_gib: f64,
    /// GB written to storage per device and step.
    #[serde(default, skip_serializing_if = "nothing")]
    pub storage_written_gb: f64,
    /// Where stages have policies of their own, tensors have been chosen one by one, or techniques are used: what this one's layers keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keeps: Vec<KeptTensorsRow>,
}

/// Whether there are none.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Whether a quantity is zero.
fn nothing(value: &f64) -> bool {
    *value == 0.0
}

/// What some layers of a stage keep for their backward passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptTensorsRow {
    /// How many layers of the stage.
    pub layers: u64,
    /// Their policy.
    pub policy: ActivationPolicy,
    /// Tensors that stay on the device, in MiB of one layer and micro-batch.
    pub device_mib: BTreeMap<String, f64>,
    /// Tensors that go to the host.
    pub host_mib: BTreeMap<String, f64>,
    /// Tensors that go to storage.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storage_mib: BTreeMap<String, f64>,
    /// Tensors that the backward pass reads and that are made again.
    pub rebuilt_mib: BTreeMap<String, f64>,
    /// The operators that run again.
    pub again: Vec<String>,
}

/// A plan one decision away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeighbourRow {
    /// The decision.
    pub change: String,
    /// Its step in seconds, where it runs.
    pub step_s: Option<f64>,
    /// Why it is no better.
    pub why: String,
}

impl PlannedAnswer {
    /// The record of an answer; `model` is what the user called it.
    #[must_use]
    pub fn from_answer(job: &Job<'_>, model: &str, answer: &PlanAnswer, neighbours: &[Neighbour]) -> Self {
        let best = answer.best.first();
        Self {
            format: FORMAT,
            model: model.to_owned(),
            assumptions: job.assumptions(),
            asked: JobInputs::default(),
            chip: job.chip.name.clone(),
            fabric: job.fabric.name.clone(),
            stack: job.stack.name.clone(),
            devices: job.devices,
            global_batch_sequences: job.global_batch,
            sequence_tokens: job.sequence_length,
            techniques: TechniqueRecord::of_techniques(job.techniques),
            counts: PlanCounts::from_answer(answer),
            plans: answer.best.iter().map(|ranked| plan_row(job, ranked)).collect(),
            robust: false,
            stopped: None,
            stages: best.map_or_else(Vec::new, |best| stage_rows(job, best)),
            timeline: Vec::new(),
            capacity_gib: best.map(|b| b.memory.capacity.gib()),
            headroom_gib: job.headroom.gib(),
            host_capacity_gib: best.map(|b| b.memory.host_capacity.gib()),
            neighbours: best.map_or_else(Vec::new, |b| neighbours.iter().map(|n| neighbour_row(n, b)).collect()),
            mapping: None,
            why: reason_without_plan(job, answer),
        }
    }

    /// Adds the fastest plan's timeline.
    pub fn with_timeline(&mut self, timeline: &Timeline) {
        self.timeline = timeline::timeline_rows(timeline);
    }

    /// Adds the mappings of the plans' ranks to measured links, in the plans' order.
    pub fn with_mappings(&mut self, mappings: &[RankMapping]) {
        for (row, mapping) in self.plans.iter_mut().zip(mappings) {
            row.mapped_step_s = Some(mapping.after.0);
        }
        self.mapping = mappings.first().map(RankMappingRecord::from);
        let Some(best) = self.plans.first().map(|row| row.step_s).filter(|_| !mappings.is_empty()) else { return };
        for row in &mut self.neighbours {
            if let Some(step) = row.step_s.filter(|step| *step < best) {
                row.why = format!("{:+.1} % with ranks in the order of the devices, not mapped", (step / best - 1.0) * 100.0);
            }
        }
    }
}

impl PlanCounts {
    /// Of an answer.
    #[must_use]
    pub fn from_answer(answer: &PlanAnswer) -> Self {
        Self {
            plans: answer.plans,
            timed: answer.timed,
            simulated: answer.simulated,
            over_capacity: answer.over_capacity,
            rejected_by_bound: answer.rejected_by_bound,
            refused: answer.refused,
            not_reached: answer.not_reached,
            splits: answer.splits,
            splits_tried: answer.splits_tried,
            split_tolerance: answer.split_tolerance,
            mixed: answer.mixed.map(|mixed| mixed.tried),
            mix_gap: answer.mixed.map(|mixed| mixed.gap),
        }
    }
}

/// A plan of a job as a row, with how sure it is.
pub(crate) fn plan_row(job: &Job<'_>, ranked: &RankedPlan) -> PlanRow {
    PlanRow { evidence: EvidenceRecord::of_ranked(job, ranked), ..plan_row_without_evidence(job, ranked) }
}

/// A plan of a job as a row.
pub(crate) fn plan_row_without_evidence(job: &Job<'_>, ranked: &RankedPlan) -> PlanRow {
    let step = ranked.time.total.0;
    let chip = job.chip;
    let peak = chip
        .peak_flops(job.precision.product.unwrap_or(job.precision.operand))
        .or_else(|| chip.peak_flops(DataType::Fp16))
        .map_or(f64::NAN, |p| p.0);
    let flops = job.model.necessary_training_flops(job.global_batch, job.sequence_length, job.model.padded_vocabulary(1));
    PlanRow {
        plan: ranked.plan.clone(),
        layers: ranked.plan.layout.chunk_layers(job.model.layers).unwrap_or_default(),
        step_s: step,
        mapped_step_s: None,
        tokens_per_s: job.global_batch as f64 * job.sequence_length as f64 / step,
        mfu: flops.as_f64() * job.share_of_training() / (peak * f64::from(job.devices) * step),
        energy_j: ranked.energy.0,
        peak_gib: ranked.memory.stages.iter().map(|s| s.bytes_needed().gib()).fold(0.0, f64::max),
        evidence: None,
        alike: ranked.alike,
        cannot_run: job.framework_refusal(&ranked.plan),
        parts_s: ranked.time.named_parts().into_iter().skip(1).map(|(name, time)| (name.to_owned(), time.0)).collect(),
    }
}

/// The stages of a plan as rows.
pub(crate) fn stage_rows(job: &Job<'_>, ranked: &RankedPlan) -> Vec<StageRow> {
    let written = |of: &StageMemory| (of.written[0] + of.written[1] * ranked.plan.micro_batches()).as_f64() / 1e9;
    let row = |memory: &StageMemory| StageRow { storage_written_gb: written(memory), ..stage_row(memory) };
    let mut rows: Vec<StageRow> = ranked.memory.stages.iter().map(row).collect();
    let alike = ranked.plan.techniques.is_empty();
    if !matches!(ranked.plan.activations.uniform_policy(), Some(policy) if alike && !matches!(policy, ActivationPolicy::Tensors { .. }))
    {
        // A plan that has been timed has been lowered.
        let keeps = layer_keeps_by_stage(job.model, &ranked.plan, job.stack).unwrap_or_default();
        for (row, keeps) in rows.iter_mut().zip(keeps) {
            row.keeps = keeps.into_iter().map(keeps_row).collect();
        }
    }
    rows
}

fn keeps_row(keeps: LayerKeeps) -> KeptTensorsRow {
    let mib = |tensors: Vec<NamedBytes>| tensors.into_iter().map(|(name, bytes)| (name, bytes.as_f64() / 1_048_576.0)).collect();
    KeptTensorsRow {
        layers: keeps.layers,
        policy: keeps.policy,
        device_mib: mib(keeps.device),
        host_mib: mib(keeps.host),
        storage_mib: mib(keeps.storage),
        rebuilt_mib: mib(keeps.rebuilt),
        again: keeps.again,
    }
}

/// A stage's peak as a row.
pub(crate) fn stage_row(memory: &StageMemory) -> StageRow {
    let class = |c: MemoryClass| (c.to_string(), memory.class_bytes(c).gib());
    StageRow {
        stage: memory.stage,
        classes_gib: MemoryClass::ALL.map(class).into(),
        need_gib: memory.bytes_needed().gib(),
        host_gib: memory.host.gib(),
        storage_gib: memory.storage.gib(),
        storage_written_gb: 0.0,
        keeps: Vec::new(),
    }
}

/// A plan one decision away from the best one as a row.
pub(crate) fn neighbour_row(neighbour: &Neighbour, best: &RankedPlan) -> NeighbourRow {
    let (step, why) = match &neighbour.outcome {
        NeighbourOutcome::Runs { step, grew } => {
            let slower = step.0 / best.time.total.0 - 1.0;
            let part = part_name(grew.0);
            let why = match (slower.abs() < 5e-5, grew.1.0 > 0.0) {
                (true, _) => "as fast".to_owned(),
                _ if slower < 0.0 => format!("{:+.1} %: faster, but outside the space that was searched", slower * 100.0),
                (false, true) => format!("{:+.1} %: {part} takes {} more", slower * 100.0, crate::text::format_seconds(grew.1)),
                (false, false) => format!("{:+.1} %", slower * 100.0),
            };
            (Some(step.0), why)
        }
        NeighbourOutcome::OverCapacity { why, grew: (MemoryClass::Host | MemoryClass::Storage, _) } => (None, why.to_string()),
        NeighbourOutcome::OverCapacity { why, grew: (class, more) } => {
            let (need, have) = (why.need.gib(), why.have.gib());
            (None, format!("stage {} needs {need:.2} GiB of {have:.2} GiB: {class} grow by {:.2} GiB", why.stage, more.gib()))
        }
        // What would cure it is another neighbour.
        NeighbourOutcome::Refused(why) => (None, why.to_string().split("; ").next().unwrap_or_default().to_owned()),
    };
    NeighbourRow { change: neighbour.change.clone(), step_s: step, why }
}

/// A part of the step in words.
#[must_use]
pub fn part_name(part: &str) -> &str {
    match part {
        "forward" => "forward pass",
        "backward" => "backward pass",
        "recompute" => "recomputation",
        "host_bound" => "waiting for kernel launches",
        "tensor" => "tensor-parallel communication",
        "context" => "context-parallel communication",
        "expert" => "expert-parallel communication",
        "data" => "data-parallel communication",
        "tied" => "sum of tied embeddings' gradients",
        "offload" => "copying to the host",
        "bubble" => "pipeline bubble and sends",
        "optimizer" => "optimizer",
        "overhead" => "overhead per step",
        other => other,
    }
}

/// The pipeline schedule in the field's words.
#[must_use]
pub fn schedule_name(plan: &TrainingPlan) -> &'static str {
    match (plan.layout.pipeline, plan.layout.virtual_stages, plan.schedule) {
        (1, ..) => "no pipeline",
        (_, chunks, PipelineSchedule::OneForwardOneBackward) if chunks > 1 => PipelineSchedule::Interleaved { chunks }.name(),
        (_, _, schedule) => schedule.name(),
    }
}

/// A plan in one line: `t 8, p 12, d 10, v 2, micro-batch 1, ZeRO-1, sequence parallel, recompute full`.
#[must_use]
pub fn one_line(plan: &TrainingPlan) -> String {
    let l = &plan.layout;
    let mut text = format!("t {}, p {}, d {}", l.tensor, l.pipeline, l.data);
    for (letter, degree) in [("c", l.context), ("e", l.expert), ("v", l.virtual_stages)] {
        if degree > 1 {
            text.push_str(&format!(", {letter} {degree}"));
        }
    }
    if let Some(width) = l.expert_tensor {
        text.push_str(&format!(", experts' t {width}"));
    }
    text.push_str(&format!(", micro-batch {}, ZeRO-{}", plan.batch.micro_batch, l.zero as u8));
    if l.order == workloads::RankOrder::PipelineFirst {
        text.push_str(", ranks t-p-d");
    }
    if let Some(ends) = l.ends {
        text.push_str(&format!(", {} layers in the first and {} in the last chunk", ends.first, ends.last));
        if ends.shorter > 0 {
            text.push_str(&format!(", {} chunks before those with one more", ends.shorter + 1));
        }
    }
    if l.sequence_parallel {
        text.push_str(", sequence parallel");
    }
    text.push_str(&format!(", {}, recompute {}", schedule_name(plan), plan.activations));
    text
}
