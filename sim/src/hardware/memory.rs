//! Memories and the links to what lies outside the device.

use crate::units::{Bytes, BytesPerSecond, Joules, Seconds};
use serde::{Deserialize, Serialize};

/// Who shares a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryScope {
    /// One instance per tensor core (and the vector core beside it).
    Core,
    /// One instance, shared by all cores.
    Chip,
}

/// One level of the memory hierarchy. Capacity, bandwidth and energy are of one instance ([`MemoryScope`]).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryLevel {
    /// What users call it: `vmem`, `l2`, `hbm`.
    pub name: String,
    /// Who shares it.
    pub scope: MemoryScope,
    /// Usable bytes of an instance.
    pub capacity: Bytes,
    /// Peak rate out of an instance.
    pub read_bandwidth: BytesPerSecond,
    /// Peak rate into an instance.
    pub write_bandwidth: BytesPerSecond,
    /// 1: reads and writes share the port, their times add. 2 or more: they proceed side by side.
    pub ports: u32,
    /// From a request to its first byte.
    pub latency: Seconds,
    /// Energy of reading one byte.
    pub read_energy_per_byte: Joules,
    /// Energy of writing one byte.
    pub write_energy_per_byte: Joules,
}

impl MemoryLevel {
    /// The time the level's ports are busy with this traffic through one instance: the sum of both directions behind one
    /// port, the slower of the two otherwise. Latency not included.
    #[must_use]
    pub fn busy_time(&self, read: Bytes, written: Bytes) -> Seconds {
        let (reading, writing) = (read / self.read_bandwidth, written / self.write_bandwidth);
        if self.ports <= 1 { reading + writing } else { reading.max(writing) }
    }

    /// Whether it is taken for DRAM by its capacity: it has a clock of its own.
    #[must_use]
    pub fn is_dram(&self) -> bool {
        super::energy::is_dram(self.capacity)
    }

    /// The energy of this traffic.
    #[must_use]
    pub fn traffic_energy(&self, read: Bytes, written: Bytes) -> Joules {
        self.read_energy_per_byte * read.as_f64() + self.write_energy_per_byte * written.as_f64()
    }
}

/// The link to the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostLink {
    /// One direction, per device; both directions proceed side by side.
    pub bandwidth: BytesPerSecond,
    /// Host memory at this device's disposal.
    pub capacity: Bytes,
    /// This device's part of the rate at which the host's processors read and write their memory, where it is known: what an optimizer step there takes
    /// (ZeRO-Offload, Ren et al. 2021, section 5: the CPU's Adam streams its operands).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<BytesPerSecond>,
}

/// Storage behind the host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Storage {
    /// Reads, per device.
    pub read_bandwidth: BytesPerSecond,
    /// Writes, per device.
    pub write_bandwidth: BytesPerSecond,
    /// Bytes at this device's disposal.
    pub capacity: Bytes,
}
