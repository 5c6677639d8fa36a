//! The record of a job and of one plan with explained figures, as `evaluate` shows it. `plan` shows the same for its
//! fastest plan, without the kernels. `docs/json.md` describes the record.

use crate::answer::plan::{PlanRow, StageRow, TechniqueRecord, part_name, plan_row_with_fit, stage_rows};
use crate::answer::timeline::{self, TimelineRow};
use search::planner::{Job, RankedPlan};
use serde::{Deserialize, Serialize};
use sim::cost::Bottleneck;
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use sim::network::SystemPrice;
use sim::pipeline::Timeline;
use sim::units::Joules;
use step::explain::{Explanation, PassDetail, bound_name, explain_plan};
use step::{ChipTimes, KernelDetail, KernelPlace, StepError};
use workloads::footprint::Optimizer;
use workloads::training::Attention;

/// The job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    /// The trained model.
    pub model: ModelRecord,
    /// The chip of every device.
    pub chip: ChipRecord,
    /// The cluster and the batch.
    pub cluster: ClusterRecord,
    /// Price of the system around a device, in USD; left out if the fabric's parts are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_usd: Option<f64>,
    /// The parts of `system_usd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_parts: Option<SystemPrice>,
    /// The software stack's name.
    pub stack: String,
    /// The implementation of attention.
    pub attention: Attention,
    /// The number format of the matrix products.
    pub products: DataType,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Memory techniques of every plan.
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
    /// The name, or the path of the configuration.
    pub name: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// Parameters that one token uses, in a model with experts: all except those of the experts that are not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<u64>,
    /// Tokens per sequence.
    pub sequence_tokens: u64,
    /// The documents from which sequences are packed: the tokens of a document, and the number of such documents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<[u64; 2]>,
    /// Parts of the model's file that are not modelled, with the assumptions made instead. If the fabric is the network
    /// of other chips, an entry says so.
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
    /// Dense peak of the arrays in bf16 (or else in fp16), in TFLOP/s; `null` if they support neither.
    pub peak_tflop_per_s: Option<f64>,
    /// Device memory in GiB.
    pub hbm_gib: f64,
    /// Read bandwidth of the device memory in GB/s.
    pub hbm_gb_per_s: f64,
    /// Power limit that the maker states, in W; `null` if it is not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tdp_w: Option<f64>,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// The number of accelerators. All of them are used.
    pub devices: u32,
    /// The fabric between them, by name.
    pub fabric: String,
    /// Sequences per optimizer step over the whole cluster.
    pub global_batch_sequences: u64,
}

/// A plan with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRecord {
    /// The plan, its step with its parts, its rates and its peak of memory, as in the list of `plan`.
    pub plan: PlanRow,
    /// The time of the step and the resulting rates.
    pub time: TimeRecord,
    /// Energy and power.
    pub energy: EnergyRecord,
    /// Shares of the step's time, largest first. Forward and backward passes are split by the bounds of their kernels.
    pub time_shares: Vec<NamedShare>,
    /// The memory of the stages.
    pub stages: Vec<StageRow>,
    /// The events of the step, by stage.
    pub timeline: Vec<TimelineRow>,
    /// The memory of a device that programs may use, in GiB.
    pub capacity_gib: f64,
    /// Host memory per device, in GiB.
    pub host_capacity_gib: f64,
    /// The stage whose devices are busy longest, counted from 0.
    pub slowest_stage: u32,
    /// The passes of that stage.
    pub passes: Vec<PassRecord>,
}

/// The time of a step and the resulting rates.
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
    /// Dynamic part: operations and moved bytes.
    pub dynamic_j: f64,
    /// Static part: the chips' idle power over the step.
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
    /// `forward`, or `backward` with its recomputation.
    pub pass: String,
    /// The number of executions per micro-batch on a device of the stage.
    pub count: u64,
    /// Time of one execution, in seconds.
    pub time_s: f64,
    /// Upper bound on the gain from a better schedule, in seconds; 0 if the schedule is proven.
    pub unproven_s: f64,
    /// Dynamic energy of one execution, in joules.
    pub energy_j: f64,
    /// The kernels, in the order in which they start.
    pub kernels: Vec<KernelRecord>,
}

/// A kernel in a pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelRecord {
    /// The name, unique within its pass.
    pub name: String,
    /// The resource that runs it: `all cores`, `one core`, `network` or `link`.
    pub span: String,
    /// The start, in seconds from the start of the pass.
    pub start_s: f64,
    /// The latency in seconds.
    pub latency_s: f64,
    /// The part of the latency in seconds that does not lengthen the pass, because other kernels run beside it.
    /// Kernels side by side on cores count an equal part of their time each; the rest counts as hidden. 0 in records of
    /// earlier versions.
    #[serde(default)]
    pub hidden_s: f64,
    /// Latency without its hidden part, as a fraction of the pass's time. A pass's kernels add up to 1.
    pub share: f64,
    /// Dynamic energy in joules; `null` on the network, whose energy is not modelled.
    pub energy_j: Option<f64>,
    /// Bytes read from and written to device memory; `null` on the network.
    pub hbm_bytes: Option<u64>,
    /// Achieved fraction of the peak of the cores that run it; `null` on the network and on links.
    pub utilization: Option<f64>,
    /// The bound: the resource that takes most of the kernel's time.
    pub bound: String,
}

impl KernelRecord {
    /// Returns the part of the latency that lengthens the pass, in seconds.
    #[must_use]
    pub fn exposed_s(&self) -> f64 {
        self.latency_s - self.hidden_s
    }
}

impl JobRecord {
    /// Makes the record of a job. `model` is the name that the user gave.
    #[must_use]
    pub fn from_job(job: &Job<'_>, model: &str) -> Self {
        let system_parts = job.fabric.price_system(&job.chip.constants).ok();
        Self {
            model: ModelRecord {
                name: model.to_owned(),
                parameters: job.model.parameters(),
                active_parameters: job.model.find_active_parameters(),
                sequence_tokens: job.sequence_length,
                documents: job.model.documents.iter().map(|of| [of.tokens, of.documents]).collect(),
                assumptions: job.assumptions(),
            },
            chip: ChipRecord::from_chip(job.chip),
            cluster: ClusterRecord {
                devices: job.devices,
                fabric: job.fabric.name.clone(),
                global_batch_sequences: job.global_batch,
            },
            system_usd: system_parts.map(|price| price.total_usd()),
            system_parts,
            stack: job.stack.name.clone(),
            attention: job.attention,
            products: job.precision.product.unwrap_or(job.precision.operand),
            optimizer: job.optimizer,
            techniques: TechniqueRecord::of_techniques(job.techniques),
        }
    }
}

impl ChipRecord {
    /// Makes the record of a chip.
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
    /// Makes the figures of a plan of a job.
    #[must_use]
    pub fn from_plan(job: &Job<'_>, ranked: &RankedPlan) -> Self {
        let step = ranked.time.total.0;
        let sequences_per_s = job.global_batch as f64 / step;
        Self { step_s: step, sequences_per_s, tokens_per_s: sequences_per_s * job.sequence_length as f64 }
    }
}

impl EnergyRecord {
    /// Makes the figures of a plan of a job.
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

/// A plan with its explanation: the input of its record and of its trace.
#[derive(Debug, Clone)]
pub struct ExplainedPlan {
    /// The parts of the step's time.
    pub why: Explanation,
    /// The events of the step.
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
    /// Makes the record of a plan of a job.
    ///
    /// # Errors
    /// As [`ExplainedPlan::explain_plan`].
    pub fn from_plan(job: &Job<'_>, ranked: &RankedPlan) -> Result<Self, StepError> {
        Ok(Self::from_explained(job, ranked, &ExplainedPlan::explain_plan(job, ranked)?))
    }

    /// Makes the record of a plan of a job that was already explained.
    #[must_use]
    pub fn from_explained(job: &Job<'_>, ranked: &RankedPlan, explained: &ExplainedPlan) -> Self {
        let why = &explained.why;
        let share = |part: &step::explain::TimePart| NamedShare {
            name: part_name(&part.name).to_owned(),
            fraction: part.time / why.time.total,
        };
        Self {
            plan: plan_row_with_fit(job, ranked),
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
        hidden_s: (kernel.latency - kernel.exposed).0.max(0.0),
        share: if pass_s > 0.0 { kernel.exposed.0 / pass_s } else { 0.0 },
        energy_j: (!network).then_some(kernel.energy.0),
        hbm_bytes: (!network).then_some(kernel.hbm.0),
        utilization: kernel.runs_on_cores().then_some(kernel.utilization),
        bound: kernel_bound(kernel, chip),
    }
}

/// Returns the name of a kernel's bound.
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
        fit: search::planner::NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let space = PlanSpace { pipeline: Some(vec![2]), micro_batch: Some(vec![2]), ..PlanSpace::default() };
    let answer = search_plans(&job, &space, 1).unwrap();
    StepRecord::from_plan(&job, &answer.best[0]).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_of_a_pass_add_up_to_its_time_and_end_with_it() {
        let record = example_record();
        let mut hidden = 0;
        for pass in &record.passes {
            let shares: f64 = pass.kernels.iter().map(|kernel| kernel.share).sum();
            assert!((shares - 1.0).abs() < 1e-9, "{} {}: {shares}", pass.segment, pass.pass);
            let end = pass.kernels.iter().map(|kernel| kernel.start_s + kernel.latency_s).fold(0.0, f64::max);
            assert!((end / pass.time_s - 1.0).abs() < 1e-9, "{} {}: {end}", pass.segment, pass.pass);
            for kernel in &pass.kernels {
                let parts = kernel.share * pass.time_s + kernel.hidden_s;
                assert!((parts - kernel.latency_s).abs() <= 1e-9 * pass.time_s, "{}", kernel.name);
                hidden += usize::from(kernel.hidden_s > 0.0);
            }
        }
        assert!(hidden > 0, "no kernel runs beside another");
    }
}
