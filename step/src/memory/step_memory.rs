//! Memory of a training step on every device: the peak of each pipeline stage by class, and whether it fits.
//!
//! A stage peaks at one of three moments. The model sums what is alive then:
//! - [`PeakMoment::Layers`]: the backward pass of a layer, with the most micro-batches in flight. Besides weights,
//!   gradients, states and kept activations, it counts one layer's gradients and rebuilt activations, ZeRO-3's gathered
//!   weights, and gradients not yet reduced.
//! - [`PeakMoment::Loss`]: the loss and its gradient, on the stage with the head: logits in the widths of the stack.
//! - [`PeakMoment::Update`]: the optimizer's update with its temporaries, after all activations are freed.
//!
//! [`sim::pipeline::passes_in_flight`] gives the micro-batches in flight. Tests there and here compare it with the
//! event simulation.

use crate::memory::account::{GIB, MemoryAccount, MemoryProfile};
pub use crate::memory::stage::{DeviceMemory, MemoryClass, MemoryReading, OverCapacity, StageMemory};
use crate::pipeline::arrangement::Arrangement;
use crate::{SoftwareStack, StepError, TrainingPlan, lower_plan};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use workloads::{Model, TrainingGraph};

/// Peak memory of a run's stages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMemory {
    /// One entry per pipeline stage.
    pub stages: Vec<StageMemory>,
    /// Usable bytes of a device.
    pub capacity: Bytes,
    /// Host memory per device.
    pub host_capacity: Bytes,
    /// Storage per device.
    #[serde(default, skip_serializing_if = "crate::memory::stage::is_zero")]
    pub storage_capacity: Bytes,
}

impl StepMemory {
    /// Returns the largest reading of any stage, limited to the device's capacity where the allocator's cache exceeds
    /// it.
    #[must_use]
    pub fn peak_reading(&self, reading: MemoryReading) -> Bytes {
        self.stages
            .iter()
            .map(|s| s.reading_of(reading).min(self.limit_to_capacity(s, reading)))
            .max()
            .unwrap_or_default()
    }

    /// Returns the reading of the first stage; some frameworks log memory there.
    #[must_use]
    pub fn first_stage_reading(&self, reading: MemoryReading) -> Bytes {
        self.stages.first().map(|s| s.reading_of(reading).min(self.limit_to_capacity(s, reading))).unwrap_or_default()
    }

    /// Returns the reading of the last stage; Megatron-LM logs memory there.
    #[must_use]
    pub fn last_stage_reading(&self, reading: MemoryReading) -> Bytes {
        self.stages.last().map(|s| s.reading_of(reading).min(self.limit_to_capacity(s, reading))).unwrap_or_default()
    }

    /// Returns the limit of a reading. The allocator's cache never exceeds the device, because the allocator then frees
    /// blocks.
    fn limit_to_capacity(&self, stage: &StageMemory, reading: MemoryReading) -> Bytes {
        let outside = stage.class_bytes(MemoryClass::Framework) + stage.class_bytes(MemoryClass::Collectives);
        match reading {
            MemoryReading::Allocated => Bytes(u64::MAX),
            MemoryReading::Reserved => {
                self.capacity.saturating_sub(outside).max(stage.reading_of(MemoryReading::Allocated))
            }
            MemoryReading::Device => self.capacity.max(stage.reading_of(MemoryReading::Allocated) + outside),
        }
    }

    /// Checks that every stage fits, first into device memory, then into host memory and storage.
    ///
    /// # Errors
    /// The stage with the largest need of the first memory that does not suffice, and its largest class.
    pub fn check_fits(&self) -> Result<(), OverCapacity> {
        let worst = self.stages.iter().max_by_key(|s| s.bytes_needed());
        worst.map_or(Ok(()), |s| s.check_device(self.capacity))?;
        let fullest = self.stages.iter().max_by_key(|s| s.host);
        fullest.map_or(Ok(()), |s| s.check_host(self.host_capacity))?;
        let stored = self.stages.iter().max_by_key(|s| s.storage);
        stored.map_or(Ok(()), |s| s.check_storage(self.storage_capacity))
    }
}

/// Returns the memory of a plan on devices with `memory`. ZeRO shards over `domain` data-parallel ranks; over all of
/// them if `None` (no hybrid sharding).
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

/// Returns [`step_memory`] of a lowered model, for a plan with the same lowering. Experts are as full as in the
/// lowering; for the fullest device, lower [`with_fullest_experts`].
///
/// # Errors
/// Layers that do not divide among the chunks.
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
    let stages =
        (0..plan.layout.pipeline).map(|stage| account.peak_of_stage(stage, &account.stage_holding(stage))).collect();
    Ok(StepMemory {
        stages,
        capacity: usable_hbm(stack, memory.hbm),
        host_capacity: memory.host,
        storage_capacity: memory.storage,
    })
}

/// Returns the usable bytes of a device's `hbm`: all but those that the driver reserves.
pub fn usable_hbm(stack: &SoftwareStack, hbm: Bytes) -> Bytes {
    hbm.saturating_sub(Bytes((stack.memory.driver_reserved_gib * GIB) as u64))
}

/// Returns the model with the expert capacity of the fullest expert-parallel device. A model without experts, or with a
/// capacity limit in its routing, stays unchanged.
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
