//! One training step of a given plan on given hardware under given software: its time, and the parts of that time.
//!
//! The model works in two steps, so that a search can afford many plans. First, each segment of the model gets a
//! profile: the cost of one micro-batch on one device. A closed form then combines the profiles for each plan. Plans
//! with the same lowering (tensor-, context- and expert-parallel degrees, micro-batch, sequence length, formats) and
//! the same activation policy share profiles.

mod communication;
#[cfg(test)]
mod laws_tests;
mod memory;
mod pass;
mod pipeline;
mod plan;
mod schedule;
mod stack;
#[cfg(test)]
mod stack_terms_tests;
#[cfg(test)]
mod technique_tests;
#[cfg(test)]
mod tests;
mod whole;

pub use communication::contention::{Communication, OverlapWindow, PortTimes};
pub use communication::network::{PlacedNetwork, StepNetwork, communication_of_cost, stage_rank_pairs};
pub use communication::sends::PipelineSends;
pub use communication::sharing::{sharing_domain, state_copies};
pub use communication::slowing::MutualSlowdown;
pub use memory::account::{MemoryProfile, StageRoom};
pub use memory::addresses::{AddressPlan, plan_addresses};
pub use memory::keeps::{LayerKeeps, NamedBytes, layer_keeps_by_stage};
pub use memory::need::MemoryNeed;
pub use memory::step_memory::usable_hbm;
pub use memory::step_memory::{
    DeviceMemory, MemoryClass, MemoryReading, OverCapacity, StageMemory, StepMemory, step_memory, step_memory_of,
    with_fullest_experts,
};
pub use pass::chip_times::{ChipTimes, Fidelity, SCHEDULE_STEPS, collective_latency};
pub use pass::copied::LinkTimes;
pub use pass::execute::detail::{KernelDetail, KernelPlace};
pub use pass::lowering::{lower_plan, lowering_of_plan};
pub use pass::profile::{PassProfile, PieceProfile, StepProfile};
pub use pass::program::{KernelIndex, KernelProgram, KernelTable, SegmentPasses};
pub use pass::work::StepWork;
pub use pipeline::arrangement::{Arrangement, DeviceGroup};
pub use plan::TrainingPlan;
pub use stack::bridge_fields::{BRIDGE_FIELDS, BridgeField, FieldKind, FieldReading, PythonLiteral};
pub use stack::calibrate;
pub use stack::discouraged_kind::DiscouragedKind;
pub use stack::fitted_run::{FittedRun, FittedRuns};
pub use stack::framework::{Framework, FrameworkOptions, KeyValueHeadRule, MixKind, PolicyKind, ScheduleKind};
pub use stack::kept_formats::{KeptFormatError, KeptFormats, MasterCopy};
pub use stack::options::OptionError;
pub use stack::software::{
    ExecutionMode, KernelOptions, LaunchOptions, MemoryOptions, OverlapOptions, SoftwareStack, StackError,
    SustainedOptions,
};
pub use stack::torchtitan_names::{TORCHTITAN_MODELS, TORCHTITAN_SCHEDULES};
pub use whole::assembly::Assembly;
pub use whole::energy::{StepEnergy, step_energy_of};
pub use whole::evaluate::PlanOnNetwork;
pub use whole::evaluate::{step_time, step_time_of};
pub use whole::evaluator::{
    DegreeCosts, EndChunk, Evaluator, LayerCost, LoweredModel, PlanShape, RecentChunks, StepEvaluation,
};
pub use whole::explain;
pub use whole::lower_bounds::{DeviceHolding, ExposedGatherTimes, LayerGathers};
pub use whole::outlined::{OutlinedShape, UntimedShape};
pub use whole::piece_load::PieceLoad;
pub use whole::timeline::step_timeline;

use serde::{Deserialize, Serialize};
use sim::files::{FaultParts, StructuredError};
use sim::units::Seconds;
use thiserror::Error;
use workloads::{LayoutError, TechniqueError, WorkloadError};

/// The reason why a plan has no step time.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum StepError {
    /// The plan breaks a rule of its layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The model cannot be lowered for the plan.
    #[error(transparent)]
    Workload(Box<WorkloadError>),
    /// A memory technique cannot be used for the plan.
    #[error(transparent)]
    Technique(#[from] TechniqueError),
    /// The chip, the fabric or the pipeline cannot run the plan.
    #[error("{0}")]
    Hardware(String),
}

impl StructuredError for StepError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Layout(error) => error.fault_parts(),
            Self::Workload(error) => error.fault_parts(),
            Self::Technique(error) => error.fault_parts(),
            Self::Hardware(why) => FaultParts::of_key("", "", why, ""),
        }
    }
}

impl From<WorkloadError> for StepError {
    fn from(error: WorkloadError) -> Self {
        Self::Workload(Box::new(error))
    }
}

/// The time of one optimizer step and its parts, on a device that is busy longest. The parts sum to `total`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTime {
    /// Time from one optimizer update to the next.
    pub total: Seconds,
    /// Forward kernels of all micro-batches.
    pub forward: Seconds,
    /// Backward kernels, without recomputation.
    pub backward: Seconds,
    /// Forward kernels recomputed in the backward pass.
    pub recompute: Seconds,
    /// Time in which the device waits for the host to launch kernels.
    pub host_bound: Seconds,
    /// Exposed tensor-parallel communication.
    pub tensor: Seconds,
    /// Exposed context-parallel communication.
    pub context: Seconds,
    /// Exposed expert-parallel communication.
    pub expert: Seconds,
    /// Exposed data-parallel communication: gradients, and weights under ZeRO.
    pub data: Seconds,
    /// Exposed sum of the tied embedding's gradients between the first and the last stage: the part after the last
    /// pass.
    pub tied: Seconds,
    /// Exposed copies to and from the host.
    pub offload: Seconds,
    /// Exposed sends between stages, and waits of stages for each other.
    pub bubble: Seconds,
    /// The optimizer's update.
    pub optimizer: Seconds,
    /// Time per step outside any kernel.
    pub overhead: Seconds,
}

/// A part of a step's time, or the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepPart {
    /// The whole step.
    Total,
    /// Forward passes.
    Forward,
    /// Backward passes.
    Backward,
    /// Recomputation.
    Recompute,
    /// Waiting for the host's launches.
    HostBound,
    /// Tensor-parallel communication.
    Tensor,
    /// Context-parallel communication.
    Context,
    /// Expert-parallel communication.
    Expert,
    /// Data-parallel communication.
    Data,
    /// Exchange of tied embeddings.
    Tied,
    /// Copies to and from the host.
    Offload,
    /// Idle time of the pipeline.
    Bubble,
    /// The update.
    Optimizer,
    /// Time outside any kernel.
    Overhead,
}

impl StepPart {
    /// Returns the part's name in tables and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Recompute => "recompute",
            Self::HostBound => "host_bound",
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Data => "data",
            Self::Tied => "tied",
            Self::Offload => "offload",
            Self::Bubble => "bubble",
            Self::Optimizer => "optimizer",
            Self::Overhead => "overhead",
        }
    }
}

impl StepTime {
    /// Returns the total and its parts, the total first.
    #[must_use]
    pub fn all_parts(&self) -> [(StepPart, Seconds); 14] {
        [
            (StepPart::Total, self.total),
            (StepPart::Forward, self.forward),
            (StepPart::Backward, self.backward),
            (StepPart::Recompute, self.recompute),
            (StepPart::HostBound, self.host_bound),
            (StepPart::Tensor, self.tensor),
            (StepPart::Context, self.context),
            (StepPart::Expert, self.expert),
            (StepPart::Data, self.data),
            (StepPart::Tied, self.tied),
            (StepPart::Offload, self.offload),
            (StepPart::Bubble, self.bubble),
            (StepPart::Optimizer, self.optimizer),
            (StepPart::Overhead, self.overhead),
        ]
    }

    /// Returns the total and its parts, by name.
    #[must_use]
    pub fn named_parts(&self) -> [(&'static str, Seconds); 14] {
        self.all_parts().map(|(part, time)| (part.name(), time))
    }
}
