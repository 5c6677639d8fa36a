//! What the devices of one stage hold, by class, and what exceeds their memory.

use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::units::Bytes;
use std::fmt;
use thiserror::Error;

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
    /// The optimizer's own copy of the weights, where the stored weights are not that copy already.
    MasterWeights,
    /// Optimizer states.
    OptimizerStates,
    /// Weights gathered for use, and gradients not yet reduced, of ZeRO-2 and ZeRO-3.
    Gathered,
    /// Activations kept for the backward pass.
    Activations,
    /// What exists only while a layer or the update runs.
    Transient,
    /// Logits and what the loss makes of them.
    Logits,
    /// What the allocator holds beyond live tensors.
    Allocator,
    /// Offloaded activations, in the host's memory.
    Host,
    /// What is in storage.
    Storage,
}

impl MemoryClass {
    /// Those of the device's own memory, in order.
    pub const ALL: [Self; 11] = [
        Self::Framework,
        Self::Collectives,
        Self::Weights,
        Self::Gradients,
        Self::MasterWeights,
        Self::OptimizerStates,
        Self::Gathered,
        Self::Activations,
        Self::Transient,
        Self::Logits,
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
            Self::MasterWeights => "master weights",
            Self::OptimizerStates => "optimizer states",
            Self::Gathered => "gathered weights and gradients",
            Self::Activations => "activations",
            Self::Transient => "transients",
            Self::Logits => "logits",
            Self::Allocator => "allocator",
            Self::Host => "host memory",
            Self::Storage => "storage",
        })
    }
}

/// When a stage's memory peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeakMoment {
    /// In the backward pass of a layer.
    Layers,
    /// In the loss.
    Loss,
    /// In the optimizer's update.
    Update,
}

/// Whether there are no bytes.
pub(crate) fn none(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

fn neither(bytes: &[Bytes; 2]) -> bool {
    bytes.iter().all(none)
}

/// What an instrument counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryReading {
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
    pub moment: PeakMoment,
    /// Bytes of each class, in the order of [`MemoryClass::ALL`]. [`MemoryClass::Allocator`] is what a run that has to fit cannot avoid.
    pub classes: [Bytes; 11],
    /// What a reserved reading shows above live tensors: blocks that the allocator keeps for reuse and would give up under pressure.
    pub cached: Bytes,
    /// Bytes in host memory: offloaded activations, and what memory techniques send there.
    pub host: Bytes,
    /// Of these, weights, gradients, optimizer states and data that training only reads.
    #[serde(default, skip_serializing_if = "none")]
    pub host_states: Bytes,
    /// Of the bytes in the host's memory and in storage, data that training only reads.
    #[serde(default, skip_serializing_if = "neither")]
    pub read_only: [Bytes; 2],
    /// Bytes in storage: what memory techniques send there.
    #[serde(default, skip_serializing_if = "none")]
    pub storage: Bytes,
    /// Bytes written to storage: once a step, by the update, and in every micro-batch.
    #[serde(default, skip_serializing_if = "neither")]
    pub written: [Bytes; 2],
}

/// A stage that needs more than there is.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("stage {stage} needs {:.2} GiB of {:.2} GiB{}", need.gib(), have.gib(), self.describe_excess())]
pub struct OverCapacity {
    /// The stage, from 0.
    pub stage: u32,
    /// The class that takes most of the device's memory; [`MemoryClass::Host`] where that suffices and the host's does not.
    pub class: MemoryClass,
    /// Bytes of that class; of the host's those of activations.
    pub largest: Bytes,
    /// Of the host's memory and of storage, bytes of data that training only reads.
    #[serde(default, skip_serializing_if = "none")]
    pub read_only: Bytes,
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
    pub fn of_chip(chip: &Accelerator) -> Self {
        Self {
            hbm: chip.memory_capacity(),
            host: chip.host.as_ref().map_or(Bytes::ZERO, |host| host.capacity),
            storage: chip.storage.as_ref().map_or(Bytes::ZERO, |storage| storage.capacity),
        }
    }
}

impl OverCapacity {
    /// What does not fit. Of the host's memory, what to do as well.
    fn describe_excess(&self) -> String {
        match self.class {
            MemoryClass::Host if self.read_only > self.have => format!(
                " of host memory per device: {:.2} GiB of it read-only data, which do not fit; keep less of it, or correct the chip's \
                 host.capacity_gib",
                self.read_only.gib()
            ),
            MemoryClass::Storage if self.read_only > self.have => format!(
                " of storage per device: {:.2} GiB of it read-only data, which do not fit; keep less of it, or give the chip's file a large enough [storage]",
                self.read_only.gib()
            ),
            // Weights and states, which no recomputation makes fewer.
            MemoryClass::Host if self.largest < self.need => format!(
                " of host memory per device: {:.2} GiB of it weights, gradients and optimizer states, which do not fit; use a higher ZeRO stage, more \
                 devices, storage, or correct the chip's host.capacity_gib",
                self.need.saturating_sub(self.largest + self.read_only).gib()
            ),
            MemoryClass::Host if self.have == Bytes::ZERO => {
                " of host memory per device: offloaded activations do not fit; recompute instead, or give the chip's file its [host]".to_owned()
            }
            MemoryClass::Host => " of host memory per device: offloaded activations do not fit; recompute instead, use a smaller micro-batch, or \
                                  correct the chip's host.capacity_gib"
                .to_owned(),
            MemoryClass::Storage => " of storage per device: recompute instead, or give the chip's file a large enough [storage]".to_owned(),
            class => format!(": the largest part, {class}, is {:.2} GiB", self.largest.gib()),
        }
    }
}

impl StageMemory {
    /// Bytes of a class.
    #[must_use]
    pub fn class_bytes(&self, class: MemoryClass) -> Bytes {
        match class {
            MemoryClass::Host => self.host,
            MemoryClass::Storage => self.storage,
            _ => self.classes.get(class as usize).copied().unwrap_or_default(),
        }
    }

    /// What a device must have to run the stage.
    #[must_use]
    pub fn bytes_needed(&self) -> Bytes {
        self.classes.iter().copied().sum()
    }

    /// What an instrument shows.
    #[must_use]
    pub fn reading_of(&self, reading: MemoryReading) -> Bytes {
        let outside = self.class_bytes(MemoryClass::Framework) + self.class_bytes(MemoryClass::Collectives);
        let live = self.bytes_needed().saturating_sub(outside + self.class_bytes(MemoryClass::Allocator));
        match reading {
            MemoryReading::Allocated => live,
            MemoryReading::Reserved => live + self.cached,
            MemoryReading::Device => live + self.cached + outside,
        }
    }

    /// Whether it fits into the host's memory.
    ///
    /// # Errors
    /// More than `have` is kept there.
    pub fn check_host(&self, have: Bytes) -> Result<(), OverCapacity> {
        if self.host <= have {
            return Ok(());
        }
        let largest = self.host.saturating_sub(self.host_states);
        let read_only = self.read_only[0];
        Err(OverCapacity { stage: self.stage, class: MemoryClass::Host, largest, read_only, need: self.host, have })
    }

    /// Whether it fits into the storage at hand.
    ///
    /// # Errors
    /// More than `have` is kept there.
    pub fn check_storage(&self, have: Bytes) -> Result<(), OverCapacity> {
        if self.storage <= have {
            return Ok(());
        }
        let (largest, read_only) = (self.storage, self.read_only[1]);
        Err(OverCapacity { stage: self.stage, class: MemoryClass::Storage, largest, read_only, need: self.storage, have })
    }

    /// The class that takes most of the device's memory.
    #[must_use]
    pub fn largest_class(&self) -> MemoryClass {
        MemoryClass::ALL.into_iter().max_by_key(|class| self.class_bytes(*class)).unwrap_or(MemoryClass::Weights)
    }

    /// Whether it fits into the device's own memory, and if not, which class takes most.
    ///
    /// # Errors
    /// A sum above `have`.
    pub fn check_device(&self, have: Bytes) -> Result<(), OverCapacity> {
        let (need, class) = (self.bytes_needed(), self.largest_class());
        if need <= have {
            return Ok(());
        }
        Err(OverCapacity { stage: self.stage, class, largest: self.class_bytes(class), read_only: Bytes::ZERO, need, have })
    }
}
