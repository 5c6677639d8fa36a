//! Energy per operation, and static power.

use super::PerDataType;
use crate::kernel::DataType;
use crate::units::{Joules, Watts};
use serde::{Deserialize, Serialize};

/// What an operation costs, and what the chip draws while it does nothing. Energy per byte belongs to each
/// [`MemoryLevel`](super::MemoryLevel).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergyModel {
    /// One multiply-accumulate (a product and an addition, accumulated in fp32, or in int32 for int8), by operand type.
    pub per_mac: PerDataType<Joules>,
    /// One result of the simplest vector function (an fp32 addition with its operands from the register file).
    pub per_vector_operation: Joules,
    /// Leakage, clocks and PHYs: drawn for as long as a step takes.
    pub static_power: Watts,
}

impl EnergyModel {
    /// The energy of `count` multiply-accumulates; that of fp32 where the type has no figure of its own.
    #[must_use]
    pub fn macs(&self, data_type: DataType, count: u128) -> Joules {
        let each = self.per_mac.get(data_type).or(self.per_mac.fp32).unwrap_or_default();
        each * count as f64
    }

    /// The energy of `count` vector results.
    #[must_use]
    pub fn vector_operations(&self, count: u128) -> Joules {
        self.per_vector_operation * count as f64
    }
}
