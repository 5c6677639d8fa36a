//! Bytes that training keeps per parameter: weights, gradients, the optimiser's master copy and states.

use serde::{Deserialize, Serialize};
use sim::kernel::{DataType, Function};
use sim::units::Bytes;

/// The optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Stochastic gradient descent: no state.
    Sgd,
    /// SGD with momentum: one state.
    Momentum,
    /// Adam or AdamW: two states.
    #[default]
    Adam,
}

impl Optimizer {
    /// Numbers kept per parameter besides the parameter.
    #[must_use]
    pub fn states(self) -> u64 {
        match self {
            Self::Sgd => 0,
            Self::Momentum => 1,
            Self::Adam => 2,
        }
    }

    /// The kernel function of its update.
    #[must_use]
    pub fn function(self) -> Function {
        match self {
            Self::Sgd => Function::Sgd,
            Self::Momentum => Function::Momentum,
            Self::Adam => Function::Adam,
        }
    }
}

/// Number formats of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Precision {
    /// Weights and activations, and the operands of every product.
    pub operand: DataType,
    /// Weight gradients in memory.
    pub gradient: DataType,
    /// The optimiser's own copy of the weights, and its states; without one, states have the weights' type.
    pub master: Option<DataType>,
}

impl Precision {
    /// Mixed precision as in Megatron-LM and LOMO's table 1: bf16 weights and gradients, fp32 master copy and states.
    pub const MIXED_BF16: Self = Self { operand: DataType::Bf16, gradient: DataType::Bf16, master: Some(DataType::Fp32) };
    /// The same with gradients accumulated in fp32 (Megatron-LM's default for bf16).
    pub const MIXED_BF16_FP32_GRADIENTS: Self =
        Self { operand: DataType::Bf16, gradient: DataType::Fp32, master: Some(DataType::Fp32) };
    /// Everything in bf16.
    pub const PURE_BF16: Self = Self { operand: DataType::Bf16, gradient: DataType::Bf16, master: None };
    /// Everything in fp32.
    pub const FP32: Self = Self { operand: DataType::Fp32, gradient: DataType::Fp32, master: None };
}

impl Default for Precision {
    fn default() -> Self {
        Self::MIXED_BF16
    }
}

/// What one parameter costs in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesPerParameter {
    /// The weight that products read.
    pub weight: Bytes,
    /// Its gradient.
    pub gradient: Bytes,
    /// The optimiser's own copy.
    pub master: Bytes,
    /// The optimiser's states.
    pub state: Bytes,
}

impl BytesPerParameter {
    /// Under an optimiser and number formats.
    #[must_use]
    pub fn new(optimizer: Optimizer, precision: &Precision) -> Self {
        let state = precision.master.unwrap_or(precision.operand);
        Self {
            weight: Bytes(precision.operand.bytes()),
            gradient: Bytes(precision.gradient.bytes()),
            master: Bytes(precision.master.map_or(0, DataType::bytes)),
            state: Bytes(state.bytes()) * optimizer.states(),
        }
    }

    /// Master copy and states: what ZeRO shards first.
    #[must_use]
    pub fn optimizer(&self) -> Bytes {
        self.master + self.state
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.weight + self.gradient + self.master + self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_per_parameter_are_the_published_ones() {
        let total = |optimizer, precision: Precision| BytesPerParameter::new(optimizer, &precision).total();
        assert_eq!(total(Optimizer::Sgd, Precision::MIXED_BF16), Bytes(8));
        assert_eq!(total(Optimizer::Momentum, Precision::MIXED_BF16), Bytes(12));
        assert_eq!(total(Optimizer::Adam, Precision::MIXED_BF16), Bytes(16));
        assert_eq!(total(Optimizer::Adam, Precision::MIXED_BF16_FP32_GRADIENTS), Bytes(18));
        assert_eq!(total(Optimizer::Sgd, Precision::PURE_BF16), Bytes(4));
        assert_eq!(total(Optimizer::Adam, Precision::PURE_BF16), Bytes(8));
        assert_eq!(total(Optimizer::Adam, Precision::FP32), Bytes(16));
    }

    #[test]
    fn adam_states_of_seven_billion_parameters_match_lomo() {
        // LOMO (Lv et al. 2023), table 1: optimizer states of LLaMA-7B under AdamW take 75.31 GiB.
        let per = BytesPerParameter::new(Optimizer::Adam, &Precision::MIXED_BF16);
        let gib = (per.optimizer() * 6_738_415_616).gib();
        assert!((gib - 75.31).abs() < 0.005, "{gib}");
    }
}
