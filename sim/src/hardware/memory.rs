//! Memories, and the links to the host and to storage.

use crate::units::{Bytes, BytesPerSecond, Joules, Seconds};
use serde::{Deserialize, Serialize};

/// The cores that share a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryScope {
    /// One instance per tensor core and its vector core.
    Core,
    /// One instance, shared by all cores.
    Chip,
}

/// The owner of a shared memory's contents on the die: it decides which data crosses the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Hardware fills it (a GPU's L2). It sees all traffic between its neighbours.
    #[default]
    Cache,
    /// Software fills it (a TPU's CMEM). With a path around it, only data that is used again goes through it.
    Scratchpad {
        /// True if data can move between its neighbours without crossing it.
        bypass: bool,
    },
}

impl MemoryKind {
    /// True if data can move past the memory.
    #[must_use]
    pub fn has_bypass(self) -> bool {
        self == Self::Scratchpad { bypass: true }
    }
}

/// A memory larger than this counts as DRAM.
const LARGEST_SRAM: f64 = 1_073_741_824.0;

/// True if a memory of this capacity counts as DRAM, which has a clock of its own.
pub(super) fn is_dram(capacity: Bytes) -> bool {
    capacity.as_f64() > LARGEST_SRAM
}

/// One level of the memory hierarchy. Capacity, bandwidth and energy are per instance ([`MemoryScope`]).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryLevel {
    /// Its name: `vmem`, `l2`, `hbm`.
    pub name: String,
    /// The cores that share it.
    pub scope: MemoryScope,
    /// The owner of its contents. It matters only for shared memories on the die: a core's own memories and the
    /// device's memory are never bypassed.
    pub kind: MemoryKind,
    /// Usable bytes of an instance.
    pub capacity: Bytes,
    /// Peak rate out of an instance.
    pub read_bandwidth: BytesPerSecond,
    /// Peak rate into an instance.
    pub write_bandwidth: BytesPerSecond,
    /// 1: reads and writes share the port, so their times add. 2 or more: they proceed in parallel.
    pub ports: u32,
    /// Time from a request to its first byte.
    pub latency: Seconds,
    /// Energy of reading one byte.
    pub read_energy_per_byte: Joules,
    /// Energy of writing one byte.
    pub write_energy_per_byte: Joules,
}

impl MemoryLevel {
    /// Returns the time for which the ports are busy with this traffic through one instance: the sum of both directions
    /// with one port, else the slower of the two. Latency is not included.
    #[must_use]
    pub fn busy_time(&self, read: Bytes, written: Bytes) -> Seconds {
        let (reading, writing) = (read / self.read_bandwidth, written / self.write_bandwidth);
        if self.ports <= 1 { reading + writing } else { reading.max(writing) }
    }

    /// True if it counts as DRAM by its capacity; DRAM has a clock of its own.
    #[must_use]
    pub fn is_dram(&self) -> bool {
        is_dram(self.capacity)
    }

    /// Returns the energy of this traffic.
    #[must_use]
    pub fn traffic_energy(&self, read: Bytes, written: Bytes) -> Joules {
        self.read_energy_per_byte * read.as_f64() + self.write_energy_per_byte * written.as_f64()
    }
}

/// The bus of a link to the host whose stated rate is the wires', not the data's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostBus {
    /// PCIe, stated by its lanes' raw rate: 64 GB/s for generation 5 x16.
    Pcie,
}

/// The link to the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostLink {
    /// Rate of long copies from and to pinned memory, one direction, per device; both directions proceed in parallel.
    /// On PCIe it is the data's rate, without the bus's encoding and packets.
    pub bandwidth: BytesPerSecond,
    /// Host memory available to this device.
    pub capacity: Bytes,
    /// This device's part of the bandwidth between the host's processors and their memory, where known. It bounds an
    /// optimizer step on the host (ZeRO-Offload, Ren et al. 2021, section 5: the CPU's Adam streams its operands).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<BytesPerSecond>,
}

/// Storage behind the host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Storage {
    /// Read bandwidth, per device.
    pub read_bandwidth: BytesPerSecond,
    /// Write bandwidth, per device.
    pub write_bandwidth: BytesPerSecond,
    /// Capacity available to this device.
    pub capacity: Bytes,
}
