//! A model on a workbench: lowered for every tensor-parallel width and micro-batch of a study, ready to be put on chips.

use crate::bound::StepBound;
use crate::placement::plan::Effort;
use crate::shape::{KernelTable, Shape, ShapeError};
use crate::study::{AttentionChoice, OptimizerChoice, PlanSpec, Study};
use sim::kernel::Kernel;
use sim::network::{Fabric, NetworkError};
use sim::schedule::{Limits, Memo, MemoStatistics, Method};
use sim::units::Seconds;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use thiserror::Error;
use workloads::footprint::Optimizer;
use workloads::parallel::tensor_parallel_degrees;
use workloads::training::Attention;
use workloads::{Lowering, Model};

/// Pieces of schedules remembered: some kilobytes each.
const MEMO_CAPACITY: usize = 1 << 16;
/// Work on one piece of a schedule in a sweep: a few milliseconds. What stays open has a gap, and the gap is kept.
const SWEEP_STEPS: u64 = 4_000;
/// Work on one piece of a schedule of a plan that is shown: a second or two where it is hard.
const PROOF_STEPS: u64 = 1_500_000;

/// Why a model cannot be put on the bench.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The model cannot be lowered.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The fabric is unknown or too small.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// None of the study's widths divides the model.
    #[error(
        "{model}: none of the tensor-parallel widths {widths:?} divides its heads and MLP; it allows {allowed:?}: \
         add one of these to plan.tensor_parallel"
    )]
    NoWidth {
        /// The model.
        model: String,
        /// The study's widths.
        widths: Vec<u32>,
        /// The model's.
        allowed: Vec<u32>,
    },
    /// None of the study's micro-batches divides the global batch.
    #[error(
        "none of the micro-batches {micro_batches:?} of plan.micro_batch_sequences divides the global batch of {global_batch} sequences: \
         choose divisors of it"
    )]
    NoMicroBatch {
        /// The study's micro-batches.
        micro_batches: Vec<u32>,
        /// The global batch.
        global_batch: u32,
    },
}

/// A model and a cluster, prepared for chips.
#[derive(Debug)]
pub struct Bench {
    /// The model.
    pub model: Model,
    /// Tokens per sequence.
    pub sequence_length: u64,
    /// Accelerators.
    pub devices: u32,
    /// Sequences per step.
    pub global_batch: u32,
    /// The network, cut to the cluster's devices.
    pub fabric: Fabric,
    /// The distinct kernels of all shapes.
    pub table: KernelTable,
    /// The model lowered for each width and micro-batch.
    pub shapes: Vec<Shape>,
    /// What bounds each shape's step on any chip.
    pub(crate) bounds: Vec<StepBound>,
    /// By kernel, how long it takes where it is a collective; zero for others.
    pub(crate) collectives: Vec<Seconds>,
    /// Schedules solved for a sweep, shared by all chips.
    sweep: Memo,
    /// Schedules solved for plans that are shown.
    proof: Memo,
    /// Schedules by the method that settled them.
    pub schedules: ScheduleCounts,
}

/// How many schedules each method settled.
#[derive(Debug, Default)]
pub struct ScheduleCounts(Mutex<BTreeMap<Method, u64>>);

impl ScheduleCounts {
    /// Counts one schedule.
    pub fn add(&self, method: Method) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(method).or_default() += 1;
    }

    /// The counts so far.
    #[must_use]
    pub fn get(&self) -> BTreeMap<Method, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Bench {
    /// Lowers `model` for each of the study's widths and micro-batches that divide it. `fabric` is the study's with the figures of its chip, and all
    /// devices that it can join; `sequence_length` overrides the model's own.
    ///
    /// # Errors
    /// No usable width or micro-batch, a fabric too small, a model that cannot be lowered.
    pub fn new(model: Model, study: &Study, fabric: &Fabric, sequence_length: Option<u64>) -> Result<Self, BenchError> {
        let cluster = &study.cluster;
        let fabric = fabric.for_devices(cluster.devices)?;
        let sequence_length = sequence_length.unwrap_or(model.max_sequence);
        let widths = widths(&model, &study.plan, cluster.devices)?;
        let mut micro_batches = study.plan.micro_batch_sequences.clone();
        micro_batches.retain(|b| cluster.global_batch_sequences.is_multiple_of(*b));
        micro_batches.sort_unstable();
        micro_batches.dedup();
        if micro_batches.is_empty() {
            let micro_batches = study.plan.micro_batch_sequences.clone();
            return Err(BenchError::NoMicroBatch { micro_batches, global_batch: cluster.global_batch_sequences });
        }
        let mut table = KernelTable::default();
        let mut shapes = Vec::new();
        for &tensor_parallel in &widths {
            for &micro_batch in &micro_batches {
                let lowering = lowering(&model, &study.plan, sequence_length, tensor_parallel, micro_batch);
                shapes.push(Shape::new(&model, &lowering, &mut table)?);
            }
        }
        let bound = |shape: &Shape| StepBound::new(shape, &fabric, cluster.devices, cluster.global_batch_sequences);
        let collective = |kernel: &Kernel| match kernel {
            Kernel::Collective(collective) => fabric.collective(collective).latency,
            _ => Seconds::ZERO,
        };
        Ok(Self {
            bounds: shapes.iter().map(bound).collect(),
            collectives: table.kernels().iter().map(collective).collect(),
            model,
            sequence_length,
            devices: cluster.devices,
            global_batch: cluster.global_batch_sequences,
            fabric,
            table,
            shapes,
            sweep: Memo::new(Limits { steps: SWEEP_STEPS, ..Limits::default() }, MEMO_CAPACITY),
            proof: Memo::new(Limits { steps: PROOF_STEPS, ..Limits::default() }, MEMO_CAPACITY),
            schedules: ScheduleCounts::default(),
        })
    }

    /// Solved schedules, shared by all chips, by the effort spent on each.
    #[must_use]
    pub fn memo(&self, effort: Effort) -> &Memo {
        match effort {
            Effort::Sweep => &self.sweep,
            Effort::Proof => &self.proof,
        }
    }

    /// How the memos of solved schedules did, both efforts together.
    #[must_use]
    pub fn memo_statistics(&self) -> MemoStatistics {
        self.sweep.statistics().plus(self.proof.statistics())
    }

    /// Tokens per step.
    #[must_use]
    pub fn tokens_per_step(&self) -> f64 {
        f64::from(self.global_batch) * self.sequence_length as f64
    }

    /// Model FLOPs per step that the result depends on: both gradients of every product, of causal scores the half that is not masked, recomputation
    /// not counted.
    #[must_use]
    pub fn model_flops_per_step(&self) -> sim::units::Flops {
        let vocabulary = self.model.padded_vocabulary(1);
        self.model.necessary_training_flops(u64::from(self.global_batch), self.sequence_length, vocabulary)
    }

    /// Device numbers between neighbouring stages. The planner numbers the tensor-parallel rank fastest, then the data-parallel one,
    /// then the stage; where the cluster is larger than the fabric's fast domain a stage boundary is taken to leave it. That is
    /// exact when tensor and data parallelism fill the domain and on the safe side otherwise.
    #[must_use]
    pub fn stage_stride(&self, tensor_parallel: u32) -> u32 {
        let domain = self.fabric.fast_domain();
        if domain < self.devices { domain.max(tensor_parallel) } else { tensor_parallel }
    }
}

fn widths(model: &Model, plan: &PlanSpec, devices: u32) -> Result<Vec<u32>, BenchError> {
    let most = plan.tensor_parallel.iter().copied().max().unwrap_or(1);
    let allowed = tensor_parallel_degrees(model, most.max(64));
    let mut widths: Vec<u32> = plan.tensor_parallel.iter().copied().filter(|t| allowed.contains(t) && *t <= devices).collect();
    widths.sort_unstable();
    widths.dedup();
    if widths.is_empty() {
        return Err(BenchError::NoWidth { model: model.name.clone(), widths: plan.tensor_parallel.clone(), allowed });
    }
    Ok(widths)
}

/// How the study trains the model at one width and micro-batch.
fn lowering(model: &Model, plan: &PlanSpec, sequence_length: u64, tensor_parallel: u32, micro_batch: u32) -> Lowering {
    Lowering {
        micro_batch: u64::from(micro_batch),
        sequence_length,
        tensor_parallel,
        sequence_parallel: plan.sequence_parallel && tensor_parallel > 1,
        attention: match plan.attention {
            AttentionChoice::Fused => Attention::Fused,
            AttentionChoice::Unfused => Attention::Unfused,
        },
        optimizer: match plan.optimizer {
            OptimizerChoice::Sgd => Optimizer::Sgd,
            OptimizerChoice::Momentum => Optimizer::Momentum,
            OptimizerChoice::Adam => Optimizer::Adam,
        },
        ..Lowering::new(model)
    }
}
