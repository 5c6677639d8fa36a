//! Memory of one stage's devices by class, and what exceeds their capacity.

use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::units::Bytes;
use std::fmt;
use thiserror::Error;

/// Uses of memory, in the order in which a device fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// Driver and libraries, before training starts.
    Framework,
    /// Buffers of the collective library, per communicator.
    Collectives,
    /// Weights as they are stored.
    Weights,
    /// Weight gradients.
    Gradients,
    /// The optimizer's own copy of the weights, if the stored weights are not that copy.
    MasterWeights,
    /// Optimizer states.
    OptimizerStates,
    /// Gathered weights, and gradients not yet reduced, under ZeRO-2 and ZeRO-3.
    Gathered,
    /// Activations kept for the backward pass.
    Activations,
    /// Tensors that exist only while a layer or the update runs.
    Transient,
    /// Logits and the tensors that the loss makes from them.
    Logits,
    /// Bytes that the allocator holds beyond live tensors.
    Allocator,
    /// Offloaded bytes in host memory.
    Host,
    /// Offloaded bytes in storage.
    Storage,
}

impl MemoryClass {
    /// The classes in device memory, in order.
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

/// The moment when a stage's memory peaks.
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

/// Returns whether there are no bytes.
pub(crate) fn is_zero(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

fn are_zero(bytes: &[Bytes; 2]) -> bool {
    bytes.iter().all(is_zero)
}

/// Kinds of memory readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryReading {
    /// Live tensors (`torch.cuda.max_memory_allocated`).
    Allocated,
    /// Memory that the allocator has reserved on the device (`torch.cuda.max_memory_reserved`).
    Reserved,
    /// All used memory of the device, with driver and collective buffers (`nvidia-smi`).
    Device,
}

/// The peak of one stage's devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMemory {
    /// The pipeline stage, from 0.
    pub stage: u32,
    /// The moment of the peak.
    pub moment: PeakMoment,
    /// Bytes of each class, in the order of [`MemoryClass::ALL`]. [`MemoryClass::Allocator`] is the part that a run
    /// cannot avoid even under pressure.
    pub classes: [Bytes; 11],
    /// The excess of a reserved reading over live tensors: mostly blocks that the allocator caches and would free under
    /// pressure.
    pub cached: Bytes,
    /// Bytes in host memory: offloaded activations, and what memory techniques place there.
    pub host: Bytes,
    /// The part of `host` that is weights, gradients, optimizer states and read-only data.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host_states: Bytes,
    /// Read-only data, in host memory and in storage.
    #[serde(default, skip_serializing_if = "are_zero")]
    pub read_only: [Bytes; 2],
    /// Bytes in storage: offloaded activations, and what memory techniques place there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub storage: Bytes,
    /// Bytes written to storage: once per step by the update, and per micro-batch.
    #[serde(default, skip_serializing_if = "are_zero")]
    pub written: [Bytes; 2],
}

/// A stage whose need exceeds a capacity.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("stage {stage} needs {:.2} GiB of {:.2} GiB{}", need.gib(), have.gib(), self.describe_excess())]
pub struct OverCapacity {
    /// The stage, from 0.
    pub stage: u32,
    /// The largest class of device memory, or [`MemoryClass::Host`] or [`MemoryClass::Storage`] if device memory
    /// suffices and that one does not.
    pub class: MemoryClass,
    /// Bytes of that class; for host memory only those of activations.
    pub largest: Bytes,
    /// For host memory and storage: bytes of read-only data.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read_only: Bytes,
    /// Needed bytes of the memory that does not suffice.
    pub need: Bytes,
    /// Available bytes of that memory.
    pub have: Bytes,
}

/// Capacities of one device's memories, as the hardware has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Device memory.
    pub hbm: Bytes,
    /// Host memory per device; zero if the chip has no host link, since then nothing can be offloaded.
    pub host: Bytes,
    /// Storage per device.
    pub storage: Bytes,
}

impl DeviceMemory {
    /// Returns the capacities of a chip.
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
    /// Describes the memory that does not suffice; for host memory and storage, also the cure.
    fn describe_excess(&self) -> String {
        match self.class {
            MemoryClass::Host if self.read_only > self.have => format!(
                " of host memory per device: {:.2} GiB of it read-only data, which do not fit; keep less of it, or \
                 correct the chip's host.capacity_gib",
                self.read_only.gib()
            ),
            MemoryClass::Storage if self.read_only > self.have => format!(
                " of storage per device: {:.2} GiB of it read-only data, which do not fit; keep less of it, or give \
                 the chip's file a large enough [storage]",
                self.read_only.gib()
            ),
            // Weights and states, which no recomputation reduces.
            MemoryClass::Host if self.largest < self.need => format!(
                " of host memory per device: {:.2} GiB of it weights, gradients and optimizer states, which do not \
                 fit; use a higher ZeRO stage, more devices, storage, or correct the chip's host.capacity_gib",
                self.need.saturating_sub(self.largest + self.read_only).gib()
            ),
            MemoryClass::Host if self.have == Bytes::ZERO => {
                " of host memory per device: offloaded activations do not fit; recompute instead, or give the chip's \
                 file its [host]"
                    .to_owned()
            }
            MemoryClass::Host => " of host memory per device: offloaded activations do not fit; recompute instead, \
                use a smaller micro-batch, or correct the chip's host.capacity_gib"
                .to_owned(),
            MemoryClass::Storage => " of storage per device: recompute instead, or give the chip's file a large \
                enough [storage]"
                .to_owned(),
            class => format!(": the largest part, {class}, is {:.2} GiB", self.largest.gib()),
        }
    }
}

impl StageMemory {
    /// Returns the bytes of a class.
    #[must_use]
    pub fn class_bytes(&self, class: MemoryClass) -> Bytes {
        match class {
            MemoryClass::Host => self.host,
            MemoryClass::Storage => self.storage,
            _ => self.classes.get(class as usize).copied().unwrap_or_default(),
        }
    }

    /// Returns the device memory that the stage needs.
    #[must_use]
    pub fn bytes_needed(&self) -> Bytes {
        self.classes.iter().copied().sum()
    }

    /// Returns the bytes that an instrument shows at the peak.
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

    /// Checks that the stage fits into host memory.
    ///
    /// # Errors
    /// The stage keeps more than `have` there.
    pub fn check_host(&self, have: Bytes) -> Result<(), OverCapacity> {
        if self.host <= have {
            return Ok(());
        }
        let largest = self.host.saturating_sub(self.host_states);
        let read_only = self.read_only[0];
        Err(OverCapacity { stage: self.stage, class: MemoryClass::Host, largest, read_only, need: self.host, have })
    }

    /// Checks that the stage fits into storage.
    ///
    /// # Errors
    /// The stage keeps more than `have` there.
    pub fn check_storage(&self, have: Bytes) -> Result<(), OverCapacity> {
        if self.storage <= have {
            return Ok(());
        }
        let (largest, read_only) = (self.storage, self.read_only[1]);
        Err(OverCapacity {
            stage: self.stage,
            class: MemoryClass::Storage,
            largest,
            read_only,
            need: self.storage,
            have,
        })
    }

    /// Returns the largest class of device memory.
    #[must_use]
    pub fn largest_class(&self) -> MemoryClass {
        MemoryClass::ALL.into_iter().max_by_key(|class| self.class_bytes(*class)).unwrap_or(MemoryClass::Weights)
    }

    /// Checks that the stage fits into device memory; the error names the largest class.
    ///
    /// # Errors
    /// The stage needs more than `have`.
    pub fn check_device(&self, have: Bytes) -> Result<(), OverCapacity> {
        let (need, class) = (self.bytes_needed(), self.largest_class());
        if need <= have {
            return Ok(());
        }
        Err(OverCapacity {
            stage: self.stage,
            class,
            largest: self.class_bytes(class),
            read_only: Bytes::ZERO,
            need,
            have,
        })
    }
}
