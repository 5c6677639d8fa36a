//! Formats of gradients, optimizer states and master weights, by name.

use clap::ValueEnum;
use sim::kernel::DataType;
use step::{KeptFormats, MasterCopy};

/// A format of gradients.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum GradientFormat {
    /// 32 bits
    Fp32,
    /// bfloat16
    Bf16,
    /// 16 bits, for weights in fp16
    Fp16,
}

/// A format of optimizer states.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum StateFormat {
    /// 32 bits
    Fp32,
    /// bfloat16
    Bf16,
    /// 16 bits
    Fp16,
    /// 8 bits
    Fp8,
}

/// The optimizer's own copy of the weights.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum MasterFormat {
    /// A copy in 32 bits
    Fp32,
    /// No copy: the optimizer updates the weights that products read
    None,
}

/// Formats that a recipe chooses itself.
#[derive(Default, clap::Args)]
pub struct KeptArguments {
    /// Format of the optimizer's states (Megatron-LM's --exp-avg-dtype and --exp-avg-sq-dtype) [default: that of the
    /// master weights, else of the weights]
    #[arg(long, value_enum)]
    states: Option<StateFormat>,
    /// Format that weight gradients are accumulated and kept in [default: the stack's]
    #[arg(long, value_enum)]
    gradients: Option<GradientFormat>,
    /// The optimizer's own copy of the weights; `none` trains weights, gradients and states in the number format alone
    /// [default: fp32]
    #[arg(long, value_enum)]
    master: Option<MasterFormat>,
}

impl KeptArguments {
    /// Returns the formats; missing ones are those of `usual`.
    pub fn formats(&self, usual: KeptFormats) -> KeptFormats {
        let state = |format| match format {
            StateFormat::Fp32 => DataType::Fp32,
            StateFormat::Bf16 => DataType::Bf16,
            StateFormat::Fp16 => DataType::Fp16,
            StateFormat::Fp8 => DataType::Fp8,
        };
        let gradient = |format| match format {
            GradientFormat::Fp32 => DataType::Fp32,
            GradientFormat::Bf16 => DataType::Bf16,
            GradientFormat::Fp16 => DataType::Fp16,
        };
        let master = |format| match format {
            MasterFormat::Fp32 => MasterCopy::Fp32,
            MasterFormat::None => MasterCopy::None,
        };
        KeptFormats {
            states: self.states.map(state).or(usual.states),
            gradients: self.gradients.map(gradient).or(usual.gradients),
            master: self.master.map(master).or(usual.master),
        }
    }
}
