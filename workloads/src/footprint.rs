//! Bytes per parameter in training: weights, gradients, and the optimizer's master copy and states.

use serde::{Deserialize, Serialize};
use sim::kernel::{DataType, ElementwiseFunction};
use sim::units::Bytes;
use std::fmt;

/// The optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Stochastic gradient descent: no state.
    Sgd,
    /// SGD with momentum: one state.
    Momentum,
    /// Adam or AdamW: two states.
    #[default]
    #[serde(alias = "adamw")]
    Adam,
    /// Adafactor without momentum (Shazeer and Stern 2018). Its row and column of second moments per matrix are not
    /// counted: less than 0.2 % of a state for matrices of 1024 and more.
    Adafactor,
    /// Adam with both states in 8 bits (Dettmers et al. 2022), for any type of the master copy. The fp32 scale per
    /// block of 2048 numbers (0.2 % of a state) is not counted.
    Adam8bit,
    /// Muon (Jordan et al. 2024): one momentum. Its orthogonalisation, several products per matrix and step, is not
    /// costed.
    Muon,
}

impl Optimizer {
    /// Returns the number of state values per parameter, without the master copy.
    #[must_use]
    pub fn states(self) -> u64 {
        match self {
            Self::Sgd | Self::Adafactor => 0,
            Self::Momentum | Self::Muon => 1,
            Self::Adam | Self::Adam8bit => 2,
        }
    }

    /// Returns the kernel function of its update.
    #[must_use]
    pub fn update_function(self) -> ElementwiseFunction {
        match self {
            Self::Sgd => ElementwiseFunction::Sgd,
            Self::Momentum | Self::Muon => ElementwiseFunction::Momentum,
            Self::Adam => ElementwiseFunction::Adam,
            Self::Adafactor => ElementwiseFunction::Adafactor,
            Self::Adam8bit => ElementwiseFunction::Adam8bit,
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sgd => "sgd",
            Self::Momentum => "momentum",
            Self::Adam => "adam",
            Self::Adafactor => "adafactor",
            Self::Adam8bit => "adam8bit",
            Self::Muon => "muon",
        })
    }
}

/// Number formats of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Precision {
    /// Type of weights and activations, and of every product's operands.
    pub operand: DataType,
    /// Type of weight gradients in memory.
    pub gradient: DataType,
    /// Operand type of products with layers' weights, if it is narrower than `operand` (fp8, int8). Operands are
    /// converted before each product. Activations stay in `operand`, except products' inputs if conversions are cached.
    /// Scores, head and router always use `operand`.
    pub product: Option<DataType>,
    /// Type of the optimizer's own copy of the weights. Without a copy, the optimizer updates the weights themselves.
    pub master: Option<DataType>,
    /// Type of the optimizer's states. `None` means the type of the master copy or, without a copy, of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<DataType>,
}

impl Precision {
    /// Mixed precision as in Megatron-LM and LOMO's table 1: bf16 weights and gradients, fp32 master copy and states.
    pub const MIXED_BF16: Self = Self::of_types(DataType::Bf16, DataType::Bf16, Some(DataType::Fp32));
    /// [`Self::MIXED_BF16`] with gradients accumulated in fp32 (Megatron-LM's default for bf16).
    pub const MIXED_BF16_FP32_GRADIENTS: Self = Self::of_types(DataType::Bf16, DataType::Fp32, Some(DataType::Fp32));
    /// Everything in bf16.
    pub const PURE_BF16: Self = Self::of_types(DataType::Bf16, DataType::Bf16, None);
    /// Everything in fp32.
    pub const FP32: Self = Self::of_types(DataType::Fp32, DataType::Fp32, None);

    const fn of_types(operand: DataType, gradient: DataType, master: Option<DataType>) -> Self {
        Self { operand, product: None, gradient, master, state: None }
    }

    /// Returns the same formats with another operand type for products with layers' weights.
    #[must_use]
    pub const fn with_product_type(self, product: DataType) -> Self {
        Self { product: Some(product), ..self }
    }

    /// Returns the type of the optimizer's states: `state` if stated, else the master copy's type, else the weights'.
    #[must_use]
    pub fn state_type(&self) -> DataType {
        self.state.or(self.master).unwrap_or(self.operand)
    }
}

impl Default for Precision {
    fn default() -> Self {
        Self::MIXED_BF16
    }
}

/// Bytes of one parameter in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesPerParameter {
    /// Bytes of the weight that products read.
    pub weight: Bytes,
    /// Bytes of its gradient.
    pub gradient: Bytes,
    /// Bytes of the optimizer's master copy; zero without one.
    pub master: Bytes,
    /// Bytes of the optimizer's states.
    pub state: Bytes,
}

impl BytesPerParameter {
    /// Returns the bytes of one parameter under an optimizer and number formats.
    #[must_use]
    pub fn new(optimizer: Optimizer, precision: &Precision) -> Self {
        let state = match optimizer {
            Optimizer::Adam8bit => DataType::Int8,
            _ => precision.state_type(),
        };
        Self {
            weight: Bytes(precision.operand.bytes()),
            gradient: Bytes(precision.gradient.bytes()),
            master: Bytes(precision.master.map_or(0, DataType::bytes)),
            state: Bytes(state.bytes()) * optimizer.states(),
        }
    }

    /// Returns the bytes of master copy and states, which ZeRO shards first.
    #[must_use]
    pub fn optimizer_bytes(&self) -> Bytes {
        self.master + self.state
    }

    /// Returns the sum of all bytes.
    #[must_use]
    pub fn total_bytes(&self) -> Bytes {
        self.weight + self.gradient + self.master + self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_per_parameter_are_the_published_ones() {
        let total = |optimizer, precision: Precision| BytesPerParameter::new(optimizer, &precision).total_bytes();
        assert_eq!(total(Optimizer::Sgd, Precision::MIXED_BF16), Bytes(8));
        assert_eq!(total(Optimizer::Momentum, Precision::MIXED_BF16), Bytes(12));
        assert_eq!(total(Optimizer::Adam, Precision::MIXED_BF16), Bytes(16));
        assert_eq!(total(Optimizer::Adam, Precision::MIXED_BF16_FP32_GRADIENTS), Bytes(18));
        assert_eq!(total(Optimizer::Sgd, Precision::PURE_BF16), Bytes(4));
        assert_eq!(total(Optimizer::Adam, Precision::PURE_BF16), Bytes(8));
        assert_eq!(total(Optimizer::Adam, Precision::FP32), Bytes(16));
        assert_eq!(total(Optimizer::Adam8bit, Precision::MIXED_BF16), Bytes(10));
        assert_eq!(total(Optimizer::Adam8bit, Precision::PURE_BF16), Bytes(6));
        assert_eq!(total(Optimizer::Adafactor, Precision::MIXED_BF16), Bytes(8));
        assert_eq!(total(Optimizer::Adafactor, Precision::PURE_BF16), Bytes(4));
        // DeepSeek-V3 (2024), section 3.3.3: both moments in bf16, master weights and gradients in fp32.
        let narrow = Precision { state: Some(DataType::Bf16), ..Precision::MIXED_BF16_FP32_GRADIENTS };
        assert_eq!(total(Optimizer::Adam, narrow), Bytes(14));
        assert_eq!(
            total(Optimizer::Momentum, Precision { state: Some(DataType::Fp32), ..Precision::PURE_BF16 }),
            Bytes(8)
        );
    }

    #[test]
    fn adam_states_of_seven_billion_parameters_match_lomo() {
        // LOMO (Lv et al. 2023), table 1: optimizer states of LLaMA-7B under AdamW take 75.31 GiB.
        let per = BytesPerParameter::new(Optimizer::Adam, &Precision::MIXED_BF16);
        let gib = (per.optimizer_bytes() * 6_738_415_616).gib();
        assert!((gib - 75.31).abs() < 0.005, "{gib}");
    }
}
