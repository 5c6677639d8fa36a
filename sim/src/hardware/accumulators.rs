//! The place of partial sums between the folds of a product.

use crate::units::{Bytes, Joules};
use serde::{Deserialize, Serialize};

/// The place of the partial sums of arrays with a stationary operand. A product whose contracted dimension takes F
/// folds writes each of its sums F times and reads it F - 1 times. Output-stationary arrays keep their sums in
/// registers beside the units and have no such traffic.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accumulation {
    /// The core's innermost memory: the sums take time at its ports.
    #[default]
    LocalBuffer,
    /// Ports of the local buffer that serve only the sums and keep up with the arrays. The sums take no time.
    DedicatedPorts,
    /// A memory of their own in each core. Sums that do not fit go to the local buffer.
    Memory(AccumulatorMemory),
}

impl Accumulation {
    /// The memory of the sums, if they have one of their own.
    #[must_use]
    pub fn memory(&self) -> Option<&AccumulatorMemory> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::LocalBuffer | Self::DedicatedPorts => None,
        }
    }
}

/// The accumulators of one core. Reads and writes have ports of their own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AccumulatorMemory {
    /// Bytes of fp32 sums (int32 for int8).
    pub capacity: Bytes,
    /// Peak rate out of it, in bytes per cycle of the core.
    pub read_bytes_per_cycle: f64,
    /// Peak rate into it, in bytes per cycle of the core.
    pub write_bytes_per_cycle: f64,
    /// Energy of reading one byte.
    pub read_energy_per_byte: Joules,
    /// Energy of writing one byte.
    pub write_energy_per_byte: Joules,
}
