//! A job, and a plan of it with all that it takes and why: the record that `evaluate` shows. `plan` shows the same of its fastest plan, but for the
//! kernels. Described in `docs/json.md`.

use crate::design::{DesignRow, DesignStatus};
use crate::planned::{PlanRow, StageRow, TechniqueRecord, part_name, plan_row, schedule_name, stage_rows};
use crate::timeline::{self, TimelineRow};
use search::planner::{Job, RankedPlan};
use serde::{Deserialize, Serialize};
use sim::cost::Bottleneck;
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use sim::pipeline::Timeline;
use sim::units::Joules;
use step::explain::{Explanation, PassDetail, bound_name, explain_plan};
use step::{ChipTimes, KernelDetail, KernelPlace, StepError};
use workloads::footprint::Optimizer;
use workloads::training::Attention;

/// What is to be trained, on what, under which software.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    /// What is trained.
    pub model: ModelRecord,
    /// Every device.
    pub chip: ChipRecord,
    /// The cluster and the batch.
    pub cluster: ClusterRecord,
    /// The software stack's name.
    pub stack: String,
    /// How attention is computed.
    pub attention: Attention,
    /// The type of the matrix products.
    pub products: DataType,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Memory techniques that every plan has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub techniques: Vec<TechniqueRecord>,
}

/// A named part of a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedShare {
    /// The part.
    pub name: String,
    /// Its fraction of the whole.
    pub fraction: f64,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecord {
    /// Its name, or the path of its configuration.
    pub name: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// What its file says that is not modelled, and what was taken instead; that the network is another chip's, where it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

/// A chip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// What its maker holds it down to, in W; nothing where that is not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tdp_w: Option<f64>,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// Accelerators; all are used.
    pub devices: u32,
    /// The fabric between them, by name.
    pub fabric: String,
    /// Sequences per optimizer step over the whole cluster.
    pub global_batch_sequences: u64,
}

/// A plan and what it takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRecord {
    /// The plan, its step with its parts, its rates and its peak of memory: as `plan` lists it.
    pub plan: PlanRow,
    /// The step's time and what it makes.
    pub time: TimeRecord,
    /// Energy and power.
    pub energy: EnergyRecord,
    /// The step's time as fractions of it, largest first: the parts, kernels of forward and backward passes by what bounds them.
    pub time_shares: Vec<NamedShare>,
    /// The stages' memory.
    pub stages: Vec<StageRow>,
    /// The step event by event, by stage.
    pub timeline: Vec<TimelineRow>,
    /// What a device has for programs, in GiB.
    pub capacity_gib: f64,
    /// What there is of the host's memory for one device, in GiB.
    pub host_capacity_gib: f64,
    /// The stage whose devices are busy longest, counted from 0.
    pub slowest_stage: u32,
    /// Its passes.
    pub passes: Vec<PassRecord>,
}

/// The time of a step and the rates that follow from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeRecord {
    /// Time of one optimizer step in seconds.
    pub step_s: f64,
    /// Sequences per second over the whole cluster.
    pub sequences_per_s: f64,
    /// Tokens per second over the whole cluster.
    pub tokens_per_s: f64,
}

/// Energy of a step. Energy on the network's links is not modelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergyRecord {
    /// Energy of one step over all devices, in joules.
    pub step_j: f64,
    /// Of it: operations and bytes moved.
    pub dynamic_j: f64,
    /// Of it: what the chips draw for as long as the step takes, whatever they do.
    pub static_j: f64,
    /// Mean power of one device, in watts.
    pub mean_power_per_device_w: f64,
}

/// A pass of a segment on the slowest stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassRecord {
    /// The segment: embedding, layer, head.
    pub segment: String,
    /// `forward`, or `backward` with what it recomputes.
    pub pass: String,
    /// Times per micro-batch that a device of the stage runs it.
    pub count: u64,
    /// How long it takes once, in seconds.
    pub time_s: f64,
    /// How much less that might be under a better schedule, in seconds: 0 where the schedule is proven.
    pub unproven_s: f64,
    /// Dynamic energy of it once, in joules.
    pub energy_j: f64,
    /// Its kernels in the order in which they start.
    pub kernels: Vec<KernelRecord>,
}

/// A kernel as it is run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

impl JobRecord {
    /// Of a job; `model` is what the user called it.
    #[must_use]
    pub fn from_job(job: &Job<'_>, model: &str) -> Self {
        Self {
            model: ModelRecord {
                name: model.to_owned(),
                parameters: job.model.parameters(),
                sequence_tokens: job.sequence_length,
                assumptions: job.assumptions(),
            },
            chip: ChipRecord::from_chip(job.chip),
            cluster: ClusterRecord {
                devices: job.devices,
                fabric: job.fabric.name.clone(),
                global_batch_sequences: job.global_batch,
            },
            stack: job.stack.name.clone(),
            attention: job.attention,
            products: job.precision.product.unwrap_or(job.precision.operand),
            optimizer: job.optimizer,
            techniques: TechniqueRecord::of_techniques(job.techniques),
        }
    }
}

impl ChipRecord {
    /// Of a chip.
    #[must_use]
    pub fn from_chip(chip: &Accelerator) -> Self {
        let peak = chip.peak_flops(DataType::Bf16).or_else(|| chip.peak_flops(DataType::Fp16));
        Self {
            name: chip.name.clone(),
            tensor_cores: chip.tensor.cores,
            vector_cores: chip.vector.cores,
            peak_tflop_per_s: peak.map(|p| p.0 / 1e12),
            hbm_gib: chip.memory_capacity().gib(),
            hbm_gb_per_s: chip.hbm.read_bandwidth.0 / 1e9,
            tdp_w: chip.published.tdp.map(|tdp| tdp.0),
        }
    }
}

impl TimeRecord {
    /// Of a plan of a job.
    #[must_use]
    pub fn from_plan(job: &Job<'_>, ranked: &RankedPlan) -> Self {
        let step = ranked.time.total.0;
        let sequences_per_s = job.global_batch as f64 / step;
        Self { step_s: step, sequences_per_s, tokens_per_s: sequences_per_s * job.sequence_length as f64 }
    }
}

impl EnergyRecord {
    /// Of a plan of a job.
    #[must_use]
    pub fn from_plan(job: &Job<'_>, ranked: &RankedPlan) -> Self {
        let standing: Joules = job.chip.energy.static_power * ranked.time.total * f64::from(job.devices);
        Self {
            step_j: ranked.energy.0,
            dynamic_j: (ranked.energy - standing).0,
            static_j: standing.0,
            mean_power_per_device_w: (ranked.energy / ranked.time.total).0 / f64::from(job.devices),
        }
    }
}

/// A plan with what explains it: what its record and its trace are made of.
#[derive(Debug, Clone)]
pub struct ExplainedPlan {
    /// Where its time goes.
    pub why: Explanation,
    /// Its step event by event.
    pub timeline: Timeline,
}

impl ExplainedPlan {
    /// Explains a plan of a job.
    ///
    /// # Errors
    /// A plan that the model, the fabric or the schedule does not allow.
    pub fn explain_plan(job: &Job<'_>, ranked: &RankedPlan) -> Result<Self, StepError> {
        let mut chip = ChipTimes::new(job.chip, job.stack)?;
        let why = explain_plan(&mut chip, job.model, job.fabric, &ranked.plan)?;
        Ok(Self { why, timeline: job.plan_timeline(&ranked.plan)? })
    }
}

impl StepRecord {
    /// The record of a plan of a job.
    ///
    /// # Errors
    /// As [`ExplainedPlan::from_job`].
    pub fn from_plan(job: &Job<'_>, ranked: &RankedPlan) -> Result<Self, StepError> {
        Ok(Self::from_explained(job, ranked, &ExplainedPlan::explain_plan(job, ranked)?))
    }

    /// The record of a plan of a job that is explained already.
    #[must_use]
    pub fn from_explained(job: &Job<'_>, ranked: &RankedPlan, explained: &ExplainedPlan) -> Self {
        let why = &explained.why;
        let share = |part: &step::explain::StepPart| NamedShare {
            name: part_name(&part.name).to_owned(),
            fraction: part.time / why.time.total,
        };
        Self {
            plan: plan_row(job, ranked),
            time: TimeRecord::from_plan(job, ranked),
            energy: EnergyRecord::from_plan(job, ranked),
            time_shares: why.parts.iter().map(share).collect(),
            stages: stage_rows(job, ranked),
            timeline: timeline::timeline_rows(&explained.timeline),
            capacity_gib: ranked.memory.capacity.gib(),
            host_capacity_gib: ranked.memory.host_capacity.gib(),
            slowest_stage: why.slowest_stage,
            passes: why.passes.iter().map(|pass| pass_record(pass, job.chip)).collect(),
        }
    }
}

impl DesignRow {
    /// The row of a design with what a plan of a job takes on it.
    #[must_use]
    pub fn with_plan(self, job: &Job<'_>, ranked: &RankedPlan) -> Self {
        let (plan, layout) = (plan_row(job, ranked), &ranked.plan.layout);
        Self {
            outcome: DesignStatus::Evaluated,
            throughput_sequences_per_s: Some(job.global_batch as f64 / plan.step_s),
            throughput_tokens_per_s: Some(plan.tokens_per_s),
            step_time_s: Some(plan.step_s),
            mfu: Some(plan.mfu).filter(|mfu| mfu.is_finite()),
            energy_per_step_j: Some(plan.energy_j),
            stages: Some(layout.pipeline.into()),
            tensor_parallel: Some(layout.tensor.into()),
            data_parallel: Some(layout.data.into()),
            micro_batch_sequences: i64::try_from(ranked.plan.batch.micro_batch).ok(),
            devices_used: Some(job.devices.into()),
            pipeline_schedule: Some(schedule_name(&ranked.plan).to_owned()),
            memory_policy: Some(format!("recompute {}", ranked.plan.activations)),
            peak_memory_gib: Some(plan.peak_gib),
            ..self
        }
    }
}

fn pass_record(pass: &PassDetail, chip: &Accelerator) -> PassRecord {
    PassRecord {
        segment: pass.segment.clone(),
        pass: pass.pass.clone(),
        count: pass.count,
        time_s: pass.time.0,
        unproven_s: pass.unproven.0,
        energy_j: pass.energy.0,
        kernels: pass.kernels.iter().map(|kernel| kernel_record(kernel, pass.time.0, chip)).collect(),
    }
}

fn kernel_record(kernel: &KernelDetail, pass_s: f64, chip: &Accelerator) -> KernelRecord {
    let network = kernel.place == KernelPlace::Network;
    KernelRecord {
        name: kernel.name.clone(),
        span: match kernel.place {
            KernelPlace::AllCores => "all cores",
            KernelPlace::OneCore { .. } => "one core",
            KernelPlace::Network => "network",
            KernelPlace::Host => "link",
        }
        .to_owned(),
        start_s: kernel.start.0,
        latency_s: kernel.latency.0,
        share: if pass_s > 0.0 { kernel.latency.0 / pass_s } else { 0.0 },
        energy_j: (!network).then_some(kernel.energy.0),
        hbm_bytes: (!network).then_some(kernel.hbm.0),
        utilization: kernel.runs_on_cores().then_some(kernel.utilization),
        bound: kernel_bound(kernel, chip),
    }
}

/// What a kernel's bound is called.
pub(crate) fn kernel_bound(kernel: &KernelDetail, chip: &Accelerator) -> String {
    match (kernel.place, kernel.bound) {
        (KernelPlace::Host, Bottleneck::Network) => "link".to_owned(),
        (_, bound) => bound_name(bound, &kernel.kernel, chip),
    }
}

/// The record of a small plan, for tests.
#[cfg(test)]
pub(crate) fn example_record() -> StepRecord {
    #![allow(clippy::unwrap_used)]
    use search::planner::{PlanSpace, search_plans};
    let model = workloads::Model::load("opt-350m").unwrap();
    let chip = Accelerator::built_in("tpu_v4").unwrap();
    let fabric = sim::network::Fabric::built_in("ideal_switch").unwrap().for_devices(2).unwrap();
    let stack = step::SoftwareStack::load("ideal").unwrap();
    let job = Job {
        model: &model,
        chip: &chip,
        fabric: &fabric,
        stack: &stack,
        devices: 2,
        global_batch: 4,
        sequence_length: 128,
        attention: Attention::Fused,
        precision: workloads::footprint::Precision::default(),
        optimizer: Optimizer::Adam,
        headroom: sim::units::Bytes::ZERO,
        techniques: workloads::Techniques::none(),
    };
    let space = PlanSpace { pipeline: Some(vec![2]), micro_batch: Some(vec![2]), ..PlanSpace::default() };
    let answer = search_plans(&job, &space, 1).unwrap();
    StepRecord::from_plan(&job, &answer.best[0]).unwrap()
}
