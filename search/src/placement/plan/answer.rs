//! What the planner answers.

use serde::{Deserialize, Serialize};
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds};
use thiserror::Error;

/// How many pieces of a segment use one of its policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyCount {
    /// Position in the segment's policy list.
    pub policy: usize,
    /// The caller's number of that policy.
    pub id: usize,
    /// Pieces that use it.
    pub count: usize,
}

/// What a stage holds of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentShare {
    /// Position in the profile's segment list.
    pub segment: usize,
    /// Pieces of it in this stage.
    pub count: usize,
    /// Their policies; counts add up to `count`.
    pub policies: Vec<PolicyCount>,
}

/// A stage's peak memory on one device, by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMemory {
    /// Weights, gradients and optimiser states, sharded ones divided.
    pub fixed: Bytes,
    /// Saved activations of all micro-batches in flight.
    pub stash: Bytes,
    /// The largest transient plus workspace of any of its pieces.
    pub working: Bytes,
    /// Framework and collectives' buffers.
    pub constant: Bytes,
}

impl StageMemory {
    /// The sum of all classes.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.fixed + self.stash + self.working + self.constant
    }
}

/// One pipeline stage of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagePlan {
    /// First piece of the chain in this stage, counted from 0.
    pub first: usize,
    /// The piece after its last.
    pub end: usize,
    /// What it holds, in chain order.
    pub shares: Vec<SegmentShare>,
    /// Micro-batches it keeps alive.
    pub in_flight: u64,
    /// Time it spends on one micro-batch: forward, backward, recomputation and exposed transfers.
    pub time: Seconds,
    /// The recomputation in `time`.
    pub recompute: Seconds,
    /// The exposed transfers in `time`.
    pub transfer: Seconds,
    /// Gradient reduction and optimiser at the end of the step.
    pub tail: Seconds,
    /// Peak memory.
    pub memory: StageMemory,
}

/// A complete plan for one tensor width and micro-batch size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Pipeline stages p.
    pub pipeline_stages: usize,
    /// Data-parallel degree d.
    pub data_parallel: u64,
    /// Tensor-parallel width t.
    pub tensor_width: u64,
    /// Sequences per micro-batch.
    pub micro_batch: u64,
    /// Micro-batches per step and replica m.
    pub micro_batches: u64,
    /// Accelerators used: p * d * t.
    pub devices: u64,
    /// Time of one training step.
    pub step: Seconds,
    /// The slowest stage's time on one micro-batch.
    pub bottleneck: Seconds,
    /// The slowest stage's gradient reduction and optimiser.
    pub tail: Seconds,
    /// The stages in order.
    pub stages: Vec<StagePlan>,
}

/// The memory a plan lacks in the attempt that lacks least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortfall {
    /// Pipeline stages of the attempt.
    pub pipeline_stages: usize,
    /// Data-parallel degree of the attempt.
    pub data_parallel: u64,
    /// The stage that needs most, counted from 0.
    pub stage: usize,
    /// What it needs with the policies that need least.
    pub need: Bytes,
    /// What a device has.
    pub have: Bytes,
}

impl Shortfall {
    /// Bytes missing.
    #[must_use]
    pub fn lacking(&self) -> Bytes {
        self.need.saturating_sub(self.have)
    }
}

/// Pipeline stages in words.
fn stages_of(count: usize) -> String {
    if count == 1 { "one stage".to_owned() } else { format!("{count} stages") }
}

/// The multiples of `step` around a value, in words.
fn multiples(value: &u64, step: u64) -> String {
    let below = value / step.max(1) * step;
    let above = below.saturating_add(step);
    if below == 0 { above.to_string() } else { format!("{below} or {above}") }
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
pub enum NoPlan {
    /// Every plan overflows the device's memory; the attempt that lacks least.
    #[error(
        "no plan fits: the best attempt ({}, {} data-parallel) needs {:.3} GiB on stage {}, the device has {:.3} GiB, {:.3} GiB are lacking",
        stages_of(.0.pipeline_stages), .0.data_parallel, .0.need.gib(), .0.stage, .0.have.gib(), .0.lacking().gib()
    )]
    OverCapacity(Shortfall),
    /// The batch cannot be cut into whole micro-batches.
    #[error(
        "a global batch of {global_batch} sequences is not {data_parallel} replicas times whole micro-batches of {micro_batch}: use a \
         global batch of {}, or degrees and sizes that divide it",
        multiples(.global_batch, .micro_batch * .data_parallel)
    )]
    BatchDoesNotDivide {
        /// Sequences per step.
        global_batch: u64,
        /// Sequences per micro-batch.
        micro_batch: u64,
        /// Replicas asked for.
        data_parallel: u64,
    },
    /// The plan needs more devices than there are.
    #[error(
        "{needed} devices are needed (stages times replicas times tensor width), the cluster has {devices}: use {needed} devices, or degrees \
         whose product is at most {devices}"
    )]
    TooFewDevices {
        /// Devices needed.
        needed: u64,
        /// Devices there are.
        devices: u64,
    },
    /// More stages than pieces, or none.
    #[error("{stages} pipeline stages for a chain of {units} pieces: use 1 to {units} stages")]
    Stages {
        /// Stages asked for.
        stages: usize,
        /// Pieces of the chain.
        units: usize,
    },
}

/// How the search spent its effort, in pairs of pipeline depth and data-parallel degree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SearchCounts {
    /// Pairs that the devices and the batch allow.
    pub candidates: u64,
    /// Pairs a lower bound ruled out.
    pub pruned: u64,
    /// Pairs that fit no memory.
    pub infeasible: u64,
    /// Pairs solved.
    pub solved: u64,
    /// Labels made over all solved pairs.
    pub labels: u64,
}

/// The planner's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// The best plan, or why there is none.
    pub outcome: Result<Plan, NoPlan>,
    /// How good it is; the objective is the step time in seconds.
    pub status: SolveStatus,
    /// What the search did.
    pub counts: SearchCounts,
}

impl Placement {
    pub(super) fn none(why: NoPlan, counts: SearchCounts) -> Self {
        Self { outcome: Err(why), status: SolveStatus::Infeasible { why: why.to_string() }, counts }
    }
}
