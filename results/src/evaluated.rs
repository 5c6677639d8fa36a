//! One model, one chip, one plan: what `coplace evaluate` shows, as data. Described in `docs/json.md`.

use crate::from_search as conversion;
use crate::record::{Share, StageRecord};
use search::bench::Bench;
use search::evaluate::{Evaluation, Planned, Rejection};
use search::explain::{Explanation, PassDetail, bound_name, kernel_units};
use search::placement::plan::NoPlan;
use serde::Serialize;
use sim::costed::seconds;
use sim::hardware::Accelerator;
use sim::kernel::{DataType, Kernel};
use sim::units::Seconds;
use std::collections::BTreeMap;

/// The version of the JSON that this build writes.
pub const FORMAT: u32 = 1;

/// The answer of `coplace evaluate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluated {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// What is trained.
    pub model: ModelRecord,
    /// The accelerator.
    pub chip: ChipRecord,
    /// The cluster and the batch.
    pub cluster: ClusterRecord,
    /// Options that change the result, by name.
    pub options: BTreeMap<String, String>,
    /// Whether there is a plan.
    pub feasible: bool,
    /// Where there is none: the rule that is broken, or the stage that lacks memory and how much.
    pub why: Option<String>,
    /// Where memory is what is lacking: how much of it in the attempt that comes nearest.
    pub shortfall: Option<ShortfallRecord>,
    /// The plan and what it costs; `null` where there is none.
    pub result: Option<PlanRecord>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelRecord {
    /// Its name, or the path of its configuration.
    pub name: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
}

/// A chip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChipRecord {
    /// Its name.
    pub name: String,
    /// Tensor cores.
    pub tensor_cores: u32,
    /// Vector cores.
    pub vector_cores: u32,
    /// Dense bf16 (else fp16) peak of the arrays in TFLOP/s; `null` where they support neither.
    pub peak_tflop_per_s: Option<f64>,
    /// Device memory in GiB.
    pub hbm_gib: f64,
    /// Its read bandwidth in GB/s.
    pub hbm_gb_per_s: f64,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterRecord {
    /// Accelerators.
    pub devices: u32,
    /// The fabric between them, by name.
    pub fabric: String,
    /// Sequences per optimizer step over the whole cluster.
    pub global_batch_sequences: u32,
}

/// The memory that the nearest attempt lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShortfallRecord {
    /// Pipeline stages of the attempt.
    pub pipeline_stages: usize,
    /// Its data-parallel degree.
    pub data_parallel: u64,
    /// The fullest stage, counted from 0.
    pub stage: usize,
    /// What one of its devices needs, in bytes.
    pub need_bytes: u64,
    /// What a device has, in bytes.
    pub have_bytes: u64,
    /// The difference, in bytes.
    pub lacking_bytes: u64,
}

/// A plan and what it costs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanRecord {
    /// The parallel degrees.
    pub plan: Degrees,
    /// Step time, throughput, utilisation.
    pub time: TimeRecord,
    /// Energy and power.
    pub energy: EnergyRecord,
    /// The step's time by what bounds it, as fractions of the step, largest first.
    pub time_shares: Vec<Share>,
    /// The pipeline's stages, first to last, with their memory.
    pub stages: Vec<StageRecord>,
    /// The slowest stage, counted from 0.
    pub slowest_stage: usize,
    /// The passes of the slowest stage.
    pub passes: Vec<PassRecord>,
}

/// The parallel degrees of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Degrees {
    /// Pipeline stages.
    pub pipeline_stages: usize,
    /// Data-parallel replicas.
    pub data_parallel: u64,
    /// Tensor-parallel width.
    pub tensor_parallel: u64,
    /// Sequences per micro-batch.
    pub micro_batch_sequences: u64,
    /// Micro-batches per step and replica.
    pub micro_batches: u64,
    /// Accelerators used.
    pub devices_used: u64,
    /// How good the plan is, in words.
    pub status: String,
}

/// Times of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimeRecord {
    /// Time of one optimizer step by the planner's closed form, in seconds.
    pub step_s: f64,
    /// The same by event simulation of the pipeline, in seconds.
    pub simulated_step_s: f64,
    /// Sequences per second over the whole cluster, by the closed form.
    pub sequences_per_s: f64,
    /// Tokens per second over the whole cluster, by the closed form.
    pub tokens_per_s: f64,
    /// Model FLOPs over the peak of the devices used, times time, as a fraction; `null` without a bf16 or fp16 peak.
    pub mfu: Option<f64>,
}

/// Energy of a plan. Energy on the network's links is not modelled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnergyRecord {
    /// Energy of one step over all devices used, in joules.
    pub step_j: f64,
    /// Of it: operations and bytes moved.
    pub dynamic_j: f64,
    /// Of it: what the chips draw for as long as the step takes, whatever they do.
    pub static_j: f64,
    /// Mean power of one device, in watts.
    pub mean_power_per_device_w: f64,
}

/// A pass of a segment on the slowest stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PassRecord {
    /// The segment: embedding, layer, head.
    pub segment: String,
    /// `forward`, or `backward` with what it recomputes.
    pub pass: String,
    /// Times per micro-batch that the stage runs it.
    pub count: usize,
    /// How long it takes once, in seconds.
    pub time_s: f64,
    /// Dynamic energy of it once, in joules.
    pub energy_j: f64,
    /// Its kernels in the order in which they start.
    pub kernels: Vec<KernelRecord>,
}

/// A kernel as it is scheduled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelRecord {
    /// Its name, unique in its pass.
    pub name: String,
    /// What it runs on: `all cores`, `one core`, `network` or `link`.
    pub span: String,
    /// When it starts, in seconds from the pass's start.
    pub start_s: f64,
    /// How long it takes, in seconds.
    pub latency_s: f64,
    /// Its latency as a fraction of the pass's time. Kernels that overlap add up to more than 1.
    pub share: f64,
    /// Dynamic energy in joules; `null` on the network, where it is not modelled.
    pub energy_j: Option<f64>,
    /// Bytes read from and written to the device's memory; `null` on the network.
    pub hbm_bytes: Option<u64>,
    /// Achieved fraction of the peak of the cores that it runs on; `null` on the network and on links.
    pub utilization: Option<f64>,
    /// What takes most of its time.
    pub bound: String,
}

impl ShortfallRecord {
    /// Of a rejection, where memory is what is lacking.
    #[must_use]
    pub fn new(why: &Rejection) -> Option<Self> {
        let Rejection::NoPlan { why: NoPlan::OverCapacity(s), .. } = why else { return None };
        Some(Self {
            pipeline_stages: s.pipeline_stages,
            data_parallel: s.data_parallel,
            stage: s.stage,
            need_bytes: s.need.0,
            have_bytes: s.have.0,
            lacking_bytes: s.lacking().0,
        })
    }
}

impl ChipRecord {
    /// Of a chip.
    #[must_use]
    pub fn new(chip: &Accelerator) -> Self {
        let peak = chip.peak(DataType::Bf16).or_else(|| chip.peak(DataType::Fp16));
        Self {
            name: chip.name.clone(),
            tensor_cores: chip.tensor.cores,
            vector_cores: chip.vector.cores,
            peak_tflop_per_s: peak.map(|p| p.0 / 1e12),
            hbm_gib: chip.memory_capacity().gib(),
            hbm_gb_per_s: chip.hbm.read_bandwidth.0 / 1e9,
        }
    }
}

impl PlanRecord {
    /// A plan of `evaluation` with its explanation and its simulated step time.
    #[must_use]
    pub fn new(
        bench: &Bench,
        chip: &Accelerator,
        evaluation: &Evaluation,
        planned: &Planned,
        why: &Explanation,
        simulated: Seconds,
    ) -> Self {
        let plan = &planned.plan;
        let rates = conversion::rates(bench, plan, chip);
        let standing = chip.energy.static_power * plan.step * plan.devices as f64;
        Self {
            plan: Degrees {
                pipeline_stages: plan.pipeline_stages,
                data_parallel: plan.data_parallel,
                tensor_parallel: plan.tensor_width,
                micro_batch_sequences: plan.micro_batch,
                micro_batches: plan.micro_batches,
                devices_used: plan.devices,
                status: evaluation.status.to_string(),
            },
            time: TimeRecord {
                step_s: plan.step.0,
                simulated_step_s: simulated.0,
                sequences_per_s: rates.sequences_per_s,
                tokens_per_s: rates.tokens_per_s,
                mfu: Some(rates.mfu).filter(|m| m.is_finite()),
            },
            energy: EnergyRecord {
                step_j: planned.energy.0,
                dynamic_j: (planned.energy - standing).0,
                static_j: standing.0,
                mean_power_per_device_w: (planned.energy / plan.step).0 / plan.devices as f64,
            },
            time_shares: conversion::time_shares(planned, why),
            stages: conversion::stages(bench, planned, chip.memory_capacity()),
            slowest_stage: why.slowest_stage,
            passes: why.passes.iter().map(|pass| pass_record(pass, chip)).collect(),
        }
    }
}

fn pass_record(pass: &PassDetail, chip: &Accelerator) -> PassRecord {
    let scheduled = &pass.scheduled;
    let total = scheduled.makespan().0;
    let hbm = chip.level_count() - 1;
    let mut order: Vec<usize> = (0..scheduled.costs.len()).collect();
    order.sort_by_key(|&i| (scheduled.schedule.starts[i], i));
    let nodes: Vec<_> = scheduled.graph.node_weights().collect();
    let record = |i: usize| {
        let (node, cost) = (nodes[i], &scheduled.costs[i]);
        let network = matches!(node.kernel, Kernel::Collective(_));
        let link = matches!(node.kernel, Kernel::Transfer(_));
        let span = match (network, link, scheduled.schedule.exclusive[i]) {
            (true, ..) => "network",
            (_, true, _) => "link",
            (_, _, true) => "all cores",
            (_, _, false) => "one core",
        };
        KernelRecord {
            name: node.name.clone(),
            span: span.into(),
            start_s: seconds(scheduled.schedule.starts[i]).0,
            latency_s: cost.latency.0,
            share: if total > 0.0 { cost.latency.0 / total } else { 0.0 },
            energy_j: (!network).then_some(cost.energy.0),
            hbm_bytes: (!network).then_some(cost.traffic.bytes(hbm).0),
            utilization: (!network && !link).then_some(cost.utilization),
            bound: bound_name(cost.bound, kernel_units(&node.kernel), chip),
        }
    };
    PassRecord {
        segment: pass.segment.clone(),
        pass: pass.pass.clone(),
        count: pass.count,
        time_s: total,
        energy_j: scheduled.energy().0,
        kernels: order.into_iter().map(record).collect(),
    }
}
