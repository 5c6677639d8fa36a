//! The answer of `coplace plan` as data: the best plans of a fixed chip. Described in `docs/json.md`.

mod families;
mod none;
mod stopped;

pub use families::FamilyRow;
pub(crate) use none::reason_without_plan;
pub use stopped::StoppedSearch;

use crate::answer::evidence::{EvidenceRecord, fit_probability};
use crate::answer::rank_mapping::RankMappingRecord;
use crate::answer::timeline::{self, TimelineRow};
use crate::answer::whole_training::WholeTraining;
use search::ask::Question;
use search::planner::{Job, Neighbour, NeighbourOutcome, PlanAnswer, RankedPlan};
use search::rank_mapping::RankMapping;
use serde::{Deserialize, Serialize};
use sim::kernel::DataType;
use sim::pipeline::{PipelineSchedule, Timeline};
use sim::units::Bytes;
use std::collections::BTreeMap;
use step::{LayerKeeps, MemoryClass, NamedBytes, StageMemory, TrainingPlan, layer_keeps_by_stage};
use workloads::{ActivationPolicy, Techniques};

/// A memory technique with its effect on training and its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TechniqueRecord {
    /// The name with the given parameters.
    pub technique: String,
    /// Its effect on the result of training: `exact`, `unbiased` or `biased`.
    pub gate: String,
    /// The factor by which the user expects the number of steps to change.
    pub step_multiplier: f64,
    /// The source.
    pub source: String,
}

impl TechniqueRecord {
    /// Returns the records of a job's techniques.
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
pub const FORMAT: u32 = 2;

/// The answer of `coplace plan`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedAnswer {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// The model: a built-in name or the path of its configuration.
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
    /// Trainable parameters of the model; `None` in answers of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// Parameters that one token uses, in a model with experts: all except those of the experts that are not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<u64>,
    /// Memory techniques of every plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub techniques: Vec<TechniqueRecord>,
    /// The counts of the plans of the space, by how they were decided.
    pub counts: PlanCounts,
    /// The fastest plans that fit, fastest first; empty if none fits. If ranks are mapped, the plans are those that are
    /// fastest with ranks in the order of the devices, sorted by their mapped steps. The last plan may be one that the
    /// software's framework discourages ([`PlanRow::discouraged`]) and that is faster than the first.
    pub plans: Vec<PlanRow>,
    /// The fastest plan of each family, listed or not. Empty if the search was stopped or ranks plans by bad ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<FamilyRow>,
    /// True if the plans are sorted by the bad ends of their intervals, best first.
    pub robust: bool,
    /// If the search was stopped early: the cause, and the proof so far. The plans are then the best so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StoppedSearch>,
    /// The memory of the stages under the fastest plan.
    pub stages: Vec<StageRow>,
    /// The events of the fastest plan's step, by stage.
    pub timeline: Vec<TimelineRow>,
    /// The memory of a device that programs may use, less the headroom, in GiB. `None` if no plan fits.
    pub capacity_gib: Option<f64>,
    /// Memory that plans leave free on every device, in GiB.
    pub headroom_gib: f64,
    /// Host memory per device, in GiB. `None` if no plan fits.
    pub host_capacity_gib: Option<f64>,
    /// The plans that differ from the fastest one in a single decision.
    pub neighbours: Vec<NeighbourRow>,
    /// The placement of the fastest plan's ranks, if links differ or mapping was requested.
    pub mapping: Option<RankMappingRecord>,
    /// If no plan fits: the shortfall of the nearest plan, or the reason for the refusal.
    pub why: Option<String>,
    /// A whole training under the first plan, if its number of tokens is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_training: Option<WholeTraining>,
    /// Parts of the model's file that are not modelled, with the assumptions made instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// The question, with the texts of the files that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Question>,
}

/// The counts of the plans of a space, by how they were decided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlanCounts {
    /// Plans in the space.
    pub plans: usize,
    /// Plans that were timed, in closed form or event by event.
    pub timed: usize,
    /// Plans timed event by event.
    pub simulated: usize,
    /// Plans that need more memory than there is.
    pub over_capacity: usize,
    /// Plans whose bound proves that they are slower than every plan of the list.
    pub rejected_by_bound: usize,
    /// Plans refused by the model, the fabric or the schedule.
    pub refused: usize,
    /// Plans that a stopped search did not reach or only bounded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_reached: usize,
    /// Layer splits besides the even split. The counts above use the even one.
    pub splits: u64,
    /// Layer splits that were evaluated one by one. Bounds rule out the others.
    pub splits_tried: u64,
    /// Upper bound on the relative speedup of another layer split over the first plan; `None` if the splits were given.
    pub split_tolerance: Option<f64>,
    /// Layouts, splits and schedules whose policies were chosen per stage. All others are slower than the first plan
    /// even if they keep everything, or do not fit even if they rerun everything. `None` if all layers of a plan share
    /// one policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<usize>,
    /// Upper bound on the relative reduction of a stage's passes by a better mix of the same policies; 0 if all mixes
    /// are proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix_gap: Option<f64>,
}

/// A plan with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRow {
    /// The plan with all degrees and options.
    pub plan: TrainingPlan,
    /// Layers of every model chunk, first to last.
    pub layers: Vec<u64>,
    /// Time of one optimizer step in seconds, with ranks in the order of the devices.
    pub step_s: f64,
    /// If ranks are mapped to the fabric's links: the step with the mapping, in seconds.
    pub mapped_step_s: Option<f64>,
    /// Tokens per second over the whole cluster, with ranks mapped if they are.
    pub tokens_per_s: f64,
    /// Model FLOPs utilisation as a fraction, with ranks mapped if they are: necessary FLOPs over the product of time
    /// and the chip's peak for the type of the products. Causal scores count only the unmasked half; recomputation does
    /// not count.
    pub mfu: f64,
    /// Energy of one step over all devices in joules. Energy on network links is not modelled.
    pub energy_j: f64,
    /// The largest need of any device, in GiB, including framework and collective buffers.
    pub peak_gib: f64,
    /// The probability that the peak fits the device's memory, in the answers of `plan` and `evaluate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit_probability: Option<f64>,
    /// The number of similar plans that are not listed: same degrees, about the same time and memory.
    pub alike: usize,
    /// The reason why the software's framework cannot run the plan; `None` if no reason is known.
    pub cannot_run: Option<String>,
    /// The reason why the software's framework discourages the plan, after a verdict (`not documented: ...`, `warned
    /// against: ...`); `None` if no reason is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discouraged: Option<String>,
    /// The parts of the step in seconds, by name; they sum to `step_s`.
    pub parts_s: BTreeMap<String, f64>,
    /// The evidence for step and peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceRecord>,
}

/// The memory peak of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageRow {
    /// The stage, from 0.
    pub stage: u32,
    /// GiB by memory class.
    pub classes_gib: BTreeMap<String, f64>,
    /// The sum of the classes, in GiB.
    pub need_gib: f64,
    /// GiB in host memory: offloaded activations, and whatever memory techniques place there.
    pub host_gib: f64,
    /// GiB in storage, placed there by memory techniques.
    #[serde(default, skip_serializing_if = "nothing")]
    pub storage_gib: f64,
    /// GB written to storage per device and step.
    #[serde(default, skip_serializing_if = "nothing")]
    pub storage_written_gb: f64,
    /// The tensors that the layers keep. Present if stages have their own policies, if tensors were chosen one by one,
    /// or if techniques are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keeps: Vec<KeptTensorsRow>,
}

/// True if the count is zero.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// True if the quantity is zero.
fn nothing(value: &f64) -> bool {
    *value == 0.0
}

/// The tensors that some layers of a stage keep for their backward passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptTensorsRow {
    /// Number of layers.
    pub layers: u64,
    /// The policy of these layers.
    pub policy: ActivationPolicy,
    /// Tensors that stay on the device, in MiB per layer and micro-batch.
    pub device_mib: BTreeMap<String, f64>,
    /// Tensors that go to the host, in MiB per layer and micro-batch.
    pub host_mib: BTreeMap<String, f64>,
    /// Tensors that go to storage, in MiB per layer and micro-batch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storage_mib: BTreeMap<String, f64>,
    /// Tensors that are recomputed for the backward pass, in MiB per layer and micro-batch.
    pub rebuilt_mib: BTreeMap<String, f64>,
    /// The operators that are recomputed.
    pub again: Vec<String>,
}

/// A plan that differs from the fastest one in a single decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeighbourRow {
    /// The changed decision.
    pub change: String,
    /// The step in seconds, if the plan runs.
    pub step_s: Option<f64>,
    /// The outcome in words: the relative change of the step with its cause, or the reason why the plan does not run.
    pub why: String,
}

impl PlannedAnswer {
    /// Makes the record of an answer. `model` is the name that the user gave.
    #[must_use]
    pub fn from_answer(job: &Job<'_>, model: &str, answer: &PlanAnswer, neighbours: &[Neighbour]) -> Self {
        let best = answer.best.first();
        Self {
            format: FORMAT,
            model: model.to_owned(),
            whole_training: None,
            assumptions: job.assumptions(),
            asked: None,
            chip: job.chip.name.clone(),
            fabric: job.fabric.name.clone(),
            stack: job.stack.name.clone(),
            devices: job.devices,
            global_batch_sequences: job.global_batch,
            sequence_tokens: job.sequence_length,
            parameters: Some(job.model.parameters()),
            active_parameters: job.model.find_active_parameters(),
            techniques: TechniqueRecord::of_techniques(job.techniques),
            counts: PlanCounts::from_answer(answer),
            plans: answer.best.iter().map(|ranked| plan_row_with_fit(job, ranked)).collect(),
            families: Vec::new(),
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

    /// Adds the timeline of the fastest plan.
    pub fn with_timeline(&mut self, timeline: &Timeline) {
        self.timeline = timeline::timeline_rows(timeline);
    }

    /// Adds the mappings of ranks to measured links. They are in the order of the plans.
    pub fn with_mappings(&mut self, mappings: &[RankMapping]) {
        for (row, mapping) in self.plans.iter_mut().zip(mappings) {
            row.mapped_step_s = Some(mapping.after.0);
            let faster = row.step_s / mapping.after.0;
            (row.tokens_per_s, row.mfu) = (row.tokens_per_s * faster, row.mfu * faster);
        }
        self.mapping = mappings.first().map(RankMappingRecord::from);
        let Some(best) = self.plans.first().map(|row| row.step_s).filter(|_| !mappings.is_empty()) else { return };
        for row in &mut self.neighbours {
            if let Some(step) = row.step_s.filter(|step| *step < best) {
                row.why =
                    format!("{:+.1} % with ranks in the order of the devices, not mapped", (step / best - 1.0) * 100.0);
            }
        }
    }
}

impl PlanCounts {
    /// Returns the counts of an answer.
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

/// Returns a plan of a job as a row, with its evidence.
pub(crate) fn plan_row(job: &Job<'_>, ranked: &RankedPlan) -> PlanRow {
    PlanRow { evidence: EvidenceRecord::of_ranked(job, ranked), ..plan_row_without_evidence(job, ranked) }
}

/// Returns a plan of a job as a row, with its evidence and the probability that it fits.
pub(crate) fn plan_row_with_fit(job: &Job<'_>, ranked: &RankedPlan) -> PlanRow {
    PlanRow { fit_probability: fit_probability(job, ranked), ..plan_row(job, ranked) }
}

/// Returns a plan of a job as a row, without evidence.
pub(crate) fn plan_row_without_evidence(job: &Job<'_>, ranked: &RankedPlan) -> PlanRow {
    let step = ranked.time.total.0;
    let chip = job.chip;
    let peak = chip
        .peak_flops(job.precision.product.unwrap_or(job.precision.operand))
        .or_else(|| chip.peak_flops(DataType::Fp16))
        .map_or(f64::NAN, |p| p.0);
    let flops =
        job.model.necessary_training_flops(job.global_batch, job.sequence_length, job.model.padded_vocabulary(1));
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
        fit_probability: None,
        alike: ranked.alike,
        cannot_run: job.framework_refusal(&ranked.plan),
        discouraged: job.discouragement(&ranked.plan),
        parts_s: ranked.time.named_parts().into_iter().skip(1).map(|(name, time)| (name.to_owned(), time.0)).collect(),
    }
}

/// Returns the stages of a plan as rows.
#[must_use]
pub fn stage_rows(job: &Job<'_>, ranked: &RankedPlan) -> Vec<StageRow> {
    let written = |of: &StageMemory| (of.written[0] + of.written[1] * ranked.plan.micro_batches()).as_f64() / 1e9;
    let row = |memory: &StageMemory| StageRow { storage_written_gb: written(memory), ..stage_row(memory) };
    let mut rows: Vec<StageRow> = ranked.memory.stages.iter().map(row).collect();
    let alike = ranked.plan.techniques.is_empty();
    if !matches!(ranked.plan.activations.uniform_policy(), Some(policy) if alike && !matches!(policy, ActivationPolicy::Tensors { .. }))
    {
        // A timed plan was lowered before, so that lowering succeeds here.
        let keeps = layer_keeps_by_stage(job.model, &ranked.plan, job.stack).unwrap_or_default();
        for (row, keeps) in rows.iter_mut().zip(keeps) {
            row.keeps = keeps.into_iter().map(keeps_row).collect();
        }
    }
    rows
}

fn keeps_row(keeps: LayerKeeps) -> KeptTensorsRow {
    let mib = |tensors: Vec<NamedBytes>| {
        tensors.into_iter().map(|(name, bytes)| (name, bytes.as_f64() / 1_048_576.0)).collect()
    };
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

/// Returns a stage's memory peak as a row.
#[must_use]
pub fn stage_row(memory: &StageMemory) -> StageRow {
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

/// Returns a plan that differs from the best plan in a single decision, as a row.
pub(crate) fn neighbour_row(neighbour: &Neighbour, best: &RankedPlan) -> NeighbourRow {
    let (step, why) = match &neighbour.outcome {
        NeighbourOutcome::Runs { step, grew } => {
            let slower = step.0 / best.time.total.0 - 1.0;
            let part = part_name(grew.0);
            let why = match (slower.abs() < 5e-5, grew.1.0 > 0.0) {
                (true, _) => "as fast".to_owned(),
                _ if slower < 0.0 => {
                    let why = neighbour.discouraged.as_deref().unwrap_or("outside the space that was searched");
                    format!("{:+.1} %: faster, but {why}", slower * 100.0)
                }
                (false, true) => {
                    format!("{:+.1} %: {part} takes {} more", slower * 100.0, crate::text::format_seconds(grew.1))
                }
                (false, false) => format!("{:+.1} %", slower * 100.0),
            };
            (Some(step.0), why)
        }
        NeighbourOutcome::OverCapacity { why, grew: (MemoryClass::Host | MemoryClass::Storage, _), .. } => {
            (None, why.to_string())
        }
        NeighbourOutcome::OverCapacity { why, grew: (class, more), free } => {
            let (need, have) = (why.need.gib(), why.have.gib());
            (
                None,
                format!(
                    "stage {} needs {need:.2} GiB of {have:.2} GiB{}: {class} grow by {:.2} GiB",
                    why.stage,
                    describe_free_memory(*free),
                    more.gib()
                ),
            )
        }
        // Only the fault is kept. The advice after the semicolon is itself another neighbour.
        NeighbourOutcome::Refused(why) => (None, why.to_string().split("; ").next().unwrap_or_default().to_owned()),
    };
    NeighbourRow { change: neighbour.change.clone(), step_s: step, why }
}

/// Says why a plan may use less than the memory of a device. Empty if it may use all that the stack leaves.
fn describe_free_memory(free: Bytes) -> String {
    if free == Bytes::ZERO {
        return String::new();
    }
    format!(" ({:.2} GiB stay free, so that peaks fit with the chance of --fit, or for --headroom-gib)", free.gib())
}

/// Returns the reader's name of a part of the step. Unknown names stay unchanged.
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

/// Returns the name of the pipeline schedule.
#[must_use]
pub fn schedule_name(plan: &TrainingPlan) -> &'static str {
    match (plan.layout.pipeline, plan.layout.virtual_stages, plan.schedule) {
        (1, ..) => "no pipeline",
        (_, chunks, PipelineSchedule::OneForwardOneBackward) if chunks > 1 => {
            PipelineSchedule::Interleaved { chunks }.name()
        }
        (_, _, schedule) => schedule.name(),
    }
}

/// Describes a plan in one line: `t 8, p 12, d 10, v 2, micro-batch 1, ZeRO-1, sequence parallel, recompute full`.
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
    text.push_str(&format!(", micro-batch {}, ZeRO-{}", plan.batch.micro_batch, l.sharding_words()));
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
