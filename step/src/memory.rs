//! How much memory a training step takes on every device: the peak of each pipeline stage by class, whether it fits, and what breaks it.
//!
//! A stage peaks at one of three moments, and what is alive then is summed:
//! - [`Moment::Layers`]: the backward pass of a layer while as many micro-batches are in flight as the schedule ever has. Besides weights,
//!   gradients, states and the activations kept: the gradients and rebuilt activations of one layer, the weights that ZeRO-3 has gathered and the
//!   gradients not yet reduced.
//! - [`Moment::Loss`]: the loss and its gradient, on the stage with the head: logits in the widths that the stack keeps them in.
//! - [`Moment::Update`]: the optimizer's update with its temporaries, when no activation is left.
//!
//! [`sim::pipeline::in_flight`] gives the micro-batches in flight; its equality with the event simulation is tested there and here.

use super::arrangement::Arrangement;
use super::memory_account::{Account, GIB, MemoryProfile};
use super::{SoftwareStack, StepError, TrainingPlan, lowered};
use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::units::Bytes;
use std::fmt;
use thiserror::Error;
use workloads::{Model, TrainingGraph};

/// What memory is used for, in the order in which a device fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// What the driver and the libraries take before anything is trained.
    Framework,
    /// Buffers of the collective library, per communicator.
    Collectives,
    /// Weights as they are stored.
    Weights,
    /// Gradients of weights.
    Gradients,
    /// Master weights and optimizer states.
    OptimizerStates,
    /// Weights gathered for use, and gradients not yet reduced, of ZeRO-2 and ZeRO-3.
    Gathered,
    /// Activations kept for the backward pass.
    Activations,
    /// What exists only while a layer, the loss or the update runs.
    Transient,
    /// What the allocator holds beyond live tensors.
    Allocator,
    /// Offloaded activations, in the host's memory.
    Host,
    /// What is in storage.
    Storage,
}

impl MemoryClass {
    /// Those of the device's own memory, in order.
    pub const ALL: [Self; 9] = [
        Self::Framework,
        Self::Collectives,
        Self::Weights,
        Self::Gradients,
        Self::OptimizerStates,
        Self::Gathered,
        Self::Activations,
        Self::Transient,
        Self::Allocator,
    ];
}

impl fmt::Display for MemoryClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Framework => "framework",
            Self::Collectives => "collective buffers",
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::OptimizerStates => "optimizer states",
            Self::Gathered => "gathered weights and gradients",
            Self::Activations => "activations",
            Self::Transient => "transients",
            Self::Allocator => "allocator",
            Self::Host => "host memory",
            Self::Storage => "storage",
        })
    }
}

/// When a stage's memory peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// In the backward pass of a layer.
    Layers,
    /// In the loss.
    Loss,
    /// In the optimizer's update.
    Update,
}

/// Whether there are no bytes.
fn none(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

/// What an instrument counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Live tensors (`torch.cuda.max_memory_allocated`).
    Allocated,
    /// What the allocator has asked of the device (`torch.cuda.max_memory_reserved`).
    Reserved,
    /// All that is taken of the device, driver and collective buffers included (`nvidia-smi`).
    Device,
}

/// The peak of one stage's devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMemory {
    /// The pipeline stage, from 0.
    pub stage: u32,
    /// When it peaks.
    pub moment: Moment,
    /// Bytes of each class, in the order of [`MemoryClass::ALL`]. [`MemoryClass::Allocator`] is what a run that has to fit cannot avoid.
    pub classes: [Bytes; 9],
    /// What a reserved reading shows above live tensors: blocks that the allocator keeps for reuse and would give up under pressure.
    pub cached: Bytes,
    /// Bytes in host memory: offloaded activations, and what memory techniques send there.
    pub host: Bytes,
    /// Bytes in storage: what memory techniques send there.
    #[serde(default, skip_serializing_if = "none")]
    pub storage: Bytes,
}

/// A stage that needs more than there is.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("stage {stage} needs {:.2} GiB of {:.2} GiB{}", need.gib(), have.gib(), self.reason())]
pub struct OverCapacity {
    /// The stage, from 0.
    pub stage: u32,
    /// The class that takes most of the device's memory; [`MemoryClass::Host`] where that suffices and the host's does not.
    pub class: MemoryClass,
    /// Bytes of that class.
    pub largest: Bytes,
    /// Bytes needed, of the device's memory or of the host's.
    pub need: Bytes,
    /// Bytes there are for it.
    pub have: Bytes,
}

/// The memory of one device and of its host, as the hardware has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// The device's own.
    pub hbm: Bytes,
    /// The host's at one device's disposal; none where the chip has no link to a host, over which nothing could be offloaded either.
    pub host: Bytes,
    /// Storage at one device's disposal.
    pub storage: Bytes,
}

impl DeviceMemory {
    /// Of a chip.
    #[must_use]
    pub fn of(chip: &Accelerator) -> Self {
        Self {
            hbm: chip.memory_capacity(),
            host: chip.host.as_ref().map_or(Bytes::ZERO, |host| host.capacity),
            storage: chip.storage.as_ref().map_or(Bytes::ZERO, |storage| storage.capacity),
        }
    }
}

impl OverCapacity {
    /// What does not fit. Of the host's memory, what to do as well.
    fn reason(&self) -> String {
        match self.class {
            MemoryClass::Host if self.have == Bytes::ZERO => {
                " of host memory per device: offloaded activations do not fit; recompute instead, or give the chip's file its [host]".to_owned()
            }
            MemoryClass::Host => " of host memory per device: offloaded activations do not fit; recompute instead, use a smaller micro-batch, or \
                                  correct the chip's host.capacity_gib"
                .to_owned(),
            MemoryClass::Storage => " of storage per device: recompute instead, or give the chip's file a [storage] that is large enough".to_owned(),
            class => format!(": the largest part, {class}, is {:.2} GiB", self.largest.gib()),
        }
    }
}

impl StageMemory {
    /// Bytes of a class.
    #[must_use]
    pub fn class(&self, class: MemoryClass) -> Bytes {
        match class {
            MemoryClass::Host => self.host,
            MemoryClass::Storage => self.storage,
            _ => self.classes.get(class as usize).copied().unwrap_or_default(),
        }
    }

    /// What a device must have to run the stage.
    #[must_use]
    pub fn need(&self) -> Bytes {
        self.classes.iter().copied().sum()
    }

    /// What an instrument shows.
    #[must_use]
    pub fn reading(&self, reading: Reading) -> Bytes {
        let outside = self.class(MemoryClass::Framework) + self.class(MemoryClass::Collectives);
        let live = self.need().saturating_sub(outside + self.class(MemoryClass::Allocator));
        match reading {
            Reading::Allocated => live,
            Reading::Reserved => live + self.cached,
            Reading::Device => live + self.cached + outside,
        }
    }

    /// Whether it fits into the host's memory.
    ///
    /// # Errors
    /// More than `have` is kept there.
    pub fn fits_host(&self, have: Bytes) -> Result<(), OverCapacity> {
        if self.host <= have {
            return Ok(());
        }
        Err(OverCapacity { stage: self.stage, class: MemoryClass::Host, largest: self.host, need: self.host, have })
    }

    /// Whether it fits into the storage at hand.
    ///
    /// # Errors
    /// More than `have` is kept there.
    pub fn fits_storage(&self, have: Bytes) -> Result<(), OverCapacity> {
        if self.storage <= have {
            return Ok(());
        }
        Err(OverCapacity { stage: self.stage, class: MemoryClass::Storage, largest: self.storage, need: self.storage, have })
    }

    /// The class that takes most of the device's memory.
    #[must_use]
    pub fn largest(&self) -> MemoryClass {
        MemoryClass::ALL.into_iter().max_by_key(|class| self.class(*class)).unwrap_or(MemoryClass::Weights)
    }

    /// Whether it fits into the device's own memory, and if not, which class takes most.
    ///
    /// # Errors
    /// A sum above `have`.
    pub fn fits(&self, have: Bytes) -> Result<(), OverCapacity> {
        let (need, class) = (self.need(), self.largest());
        if need <= have {
            return Ok(());
        }
        Err(OverCapacity { stage: self.stage, class, largest: self.class(class), need, have })
    }
}

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
    #[serde(default, skip_serializing_if = "none")]
    pub storage_capacity: Bytes,
}

impl StepMemory {
    /// The largest reading of any stage.
    #[must_use]
    pub fn peak(&self, reading: Reading) -> Bytes {
        self.stages.iter().map(|s| s.reading(reading).min(self.limit(s, reading))).max().unwrap_or_default()
    }

    /// The reading of the first stage, which is where some frameworks log memory.
    #[must_use]
    pub fn first_stage(&self, reading: Reading) -> Bytes {
        self.stages.first().map(|s| s.reading(reading).min(self.limit(s, reading))).unwrap_or_default()
    }

    /// The reading of the last stage, which is where Megatron-LM logs memory.
    #[must_use]
    pub fn last_stage(&self, reading: Reading) -> Bytes {
        self.stages.last().map(|s| s.reading(reading).min(self.limit(s, reading))).unwrap_or_default()
    }

    /// A cache never grows beyond the device: there the allocator gives blocks back first.
    fn limit(&self, stage: &StageMemory, reading: Reading) -> Bytes {
        let outside = stage.class(MemoryClass::Framework) + stage.class(MemoryClass::Collectives);
        match reading {
            Reading::Allocated => Bytes(u64::MAX),
            Reading::Reserved => self.capacity.saturating_sub(outside).max(stage.reading(Reading::Allocated)),
            Reading::Device => self.capacity.max(stage.reading(Reading::Allocated) + outside),
        }
    }

    /// Whether every stage fits, into the devices' memory first and then into the hosts'.
    ///
    /// # Errors
    /// The stage that exceeds the capacity most, and the class that takes most of it.
    pub fn fits(&self) -> Result<(), OverCapacity> {
        let worst = self.stages.iter().max_by_key(|s| s.need());
        worst.map_or(Ok(()), |s| s.fits(self.capacity))?;
        let fullest = self.stages.iter().max_by_key(|s| s.host);
        fullest.map_or(Ok(()), |s| s.fits_host(self.host_capacity))?;
        let stored = self.stages.iter().max_by_key(|s| s.storage);
        stored.map_or(Ok(()), |s| s.fits_storage(self.storage_capacity))
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
    let training = lowered(&filled, plan, stack)?;
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
    let account = Account::new(&profile, &arrangement, stack, domain);
    let stages = (0..plan.layout.pipeline).map(|stage| account.stage(stage, &account.holding(stage))).collect();
    Ok(StepMemory { stages, capacity: usable(stack, memory.hbm), host_capacity: memory.host, storage_capacity: memory.storage })
}

/// What programs can use of a device's `hbm`.
pub fn usable(stack: &SoftwareStack, hbm: Bytes) -> Bytes {
    hbm.saturating_sub(Bytes((stack.memory.driver_reserved_gib * GIB) as u64))
}

/// The model with the room that the fullest expert-parallel device takes where routing has no capacity limit.
#[must_use]
pub fn with_fullest_experts(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Model {
    let mut filled = model.clone();
    if let Some(experts) = filled.experts.as_mut().filter(|experts| experts.capacity_factor.is_none()) {
        let others = 1.0 - 1.0 / f64::from(plan.layout.expert.max(1));
        experts.capacity_factor = Some(1.0 + stack.memory.expert_imbalance * others);
    }
    filled
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
