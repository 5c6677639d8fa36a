//! How much memory a training step takes on every device: the peak of each pipeline stage by class, whether it fits, and what breaks it.
//!
//! A stage peaks at one of three moments, and what is alive then is summed:
//! - [`PeakMoment::Layers`]: the backward pass of a layer while as many micro-batches are in flight as the schedule ever has. Besides weights,
//!   gradients, states and the activations kept: the gradients and rebuilt activations of one layer, the weights that ZeRO-3 has gathered and the
//!   gradients not yet reduced.
//! - [`PeakMoment::Loss`]: the loss and its gradient, on the stage with the head: logits in the widths that the stack keeps them in.
//! - [`PeakMoment::Update`]: the optimizer's update with its temporaries, when no activation is left.
//!
//! [`sim::simulated_pipeline::passes_in_flight`] gives the micro-batches in flight; its equality with the event simulation is tested there and here.

use crate::memory::account::{GIB, MemoryAccount, MemoryProfile};
pub use crate::memory::stage::{DeviceMemory, MemoryClass, MemoryReading, OverCapacity, StageMemory};
use crate::pipeline::arrangement::Arrangement;
use crate::{SoftwareStack, StepError, TrainingPlan, lower_plan};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use workloads::{Model, TrainingGraph};

/// The peaks of a run's stages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMemory {
    /// One per pipeline stage.
    pub stages: Vec<StageMemory>,
    /// What programs can use of a device.
    pub capacity: Bytes,
    /// What there is of the host's memory for one device.
    pub host_capacity: Bytes,
    /// What there is of storage for one device.
    #[serde(default, skip_serializing_if = "crate::memory::stage::none")]
    pub storage_capacity: Bytes,
}

impl StepMemory {
    /// The largest reading of any stage.
    #[must_use]
    pub fn peak_reading(&self, reading: MemoryReading) -> Bytes {
        self.stages.iter().map(|s| s.reading_of(reading).min(self.limit_to_capacity(s, reading))).max().unwrap_or_default()
    }

    /// The reading of the first stage, which is where some frameworks log memory.
    #[must_use]
    pub fn first_stage_reading(&self, reading: MemoryReading) -> Bytes {
        self.stages.first().map(|s| s.reading_of(reading).min(self.limit_to_capacity(s, reading))).unwrap_or_default()
    }

    /// The reading of the last stage, which is where Megatron-LM logs memory.
    #[must_use]
    pub fn last_stage_reading(&self, reading: MemoryReading) -> Bytes {
        self.stages.last().map(|s| s.reading_of(reading).min(self.limit_to_capacity(s, reading))).unwrap_or_default()
    }

    /// A cache never grows beyond the device: there the allocator gives blocks back first.
    fn limit_to_capacity(&self, stage: &StageMemory, reading: MemoryReading) -> Bytes {
        let outside = stage.class_bytes(MemoryClass::Framework) + stage.class_bytes(MemoryClass::Collectives);
        match reading {
            MemoryReading::Allocated => Bytes(u64::MAX),
            MemoryReading::Reserved => self.capacity.saturating_sub(outside).max(stage.reading_of(MemoryReading::Allocated)),
            MemoryReading::Device => self.capacity.max(stage.reading_of(MemoryReading::Allocated) + outside),
        }
    }

    /// Whether every stage fits, into the devices' memory first and then into the hosts'.
    ///
    /// # Errors
    /// The stage that exceeds the capacity most, and the class that takes most of it.
    pub fn check_fits(&self) -> Result<(), OverCapacity> {
        let worst = self.stages.iter().max_by_key(|s| s.bytes_needed());
        worst.map_or(Ok(()), |s| s.check_device(self.capacity))?;
        let fullest = self.stages.iter().max_by_key(|s| s.host);
        fullest.map_or(Ok(()), |s| s.check_host(self.host_capacity))?;
        let stored = self.stages.iter().max_by_key(|s| s.storage);
        stored.map_or(Ok(()), |s| s.check_storage(self.storage_capacity))
    }
}

/// The memory of a plan on devices with `memory`. `domain` is the number of data-parallel ranks among which ZeRO shards; all of them
/// unless sharding is hybrid.
///
/// # Errors
/// A plan that the model or the layout's rules do not allow.
pub fn step_memory(
    model: &Model,
    plan: &TrainingPlan,
    stack: &SoftwareStack,
    memory: DeviceMemory,
    domain: Option<u32>,
) -> Result<StepMemory, StepError> {
    let filled = with_fullest_experts(model, plan, stack);
    let training = lower_plan(&filled, plan, stack)?;
    step_memory_of(model, &training, plan, stack, memory, domain)
}

/// [`step_memory`] of a model that is lowered already, for a plan that is lowered alike. Experts are as full as it was lowered with; for the
/// fullest device's, lower [`with_fullest_experts`].
///
/// # Errors
/// Layers that do not divide.
pub fn step_memory_of(
    model: &Model,
    training: &TrainingGraph,
    plan: &TrainingPlan,
    stack: &SoftwareStack,
    memory: DeviceMemory,
    domain: Option<u32>,
) -> Result<StepMemory, StepError> {
    let split = plan.layout.chunk_split(model.layers)?;
    let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
    let profile = MemoryProfile::new(training, &plan.activations, stack);
    let account = MemoryAccount::new(&profile, &arrangement, stack, domain);
    let stages = (0..plan.layout.pipeline).map(|stage| account.peak_of_stage(stage, &account.stage_holding(stage))).collect();
    Ok(StepMemory {
        stages,
        capacity: usable_hbm(stack, memory.hbm),
        host_capacity: memory.host,
        storage_capacity: memory.storage,
    })
}

/// What programs can use of a device's `hbm`.
pub fn usable_hbm(stack: &SoftwareStack, hbm: Bytes) -> Bytes {
    hbm.saturating_sub(Bytes((stack.memory.driver_reserved_gib * GIB) as u64))
}

/// The model with the room that the fullest expert-parallel device takes where routing has no capacity limit.
#[must_use]
pub fn with_fullest_experts(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Model {
    let mut filled = model.clone();
    if let Some(experts) = filled.experts.as_mut().filter(|experts| experts.capacity_factor.is_none()) {
        let others = 1.0 - 1.0 / f64::from(plan.layout.expert.max(1));
        let fullest = 1.0 + stack.memory.expert_imbalance * others;
        experts.capacity_factor = Some(fullest.max(experts.imbalance.unwrap_or(1.0)));
    }
    filled
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
