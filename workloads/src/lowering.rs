//! How a model is lowered for one device: everything about a training run that changes a device's kernels and bytes, besides the model.

use crate::footprint::{Optimizer, Precision};
use crate::model::Model;
use serde::{Deserialize, Serialize};

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// Over tiles; scores never reach memory (FlashAttention).
    #[default]
    Fused,
    /// Scores, softmax, dropout, context as operators of their own, all scores computed (causal or not).
    Unfused,
}

/// How attention reaches the keys and values of other context-parallel devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextMethod {
    /// Keys and values pass around a ring (Liu et al. 2023), each device holding its queries; sequences are cut so that causal
    /// work is even. Volume and memory of an all-gather.
    #[default]
    Ring,
    /// All-to-alls turn a share of every head's tokens into all tokens of a share of the heads, and back (DeepSpeed-Ulysses,
    /// Jacobs et al. 2023).
    Ulysses,
}

/// Everything about a training run that changes a device's kernels and bytes, besides the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lowering {
    /// Sequences in a micro-batch.
    pub micro_batch: u64,
    /// Tokens in a sequence.
    pub sequence_length: u64,
    /// Devices over which every layer is split (Megatron-LM).
    pub tensor_parallel: u32,
    /// Whether norms, dropout and residual sums are split along the sequence over the same devices (Korthikanti et al. 2022).
    pub sequence_parallel: bool,
    /// Devices over which every sequence is split.
    pub context_parallel: u32,
    /// How attention reaches across them.
    pub context_method: ContextMethod,
    /// Devices over which the experts of a layer are split; a part of the data-parallel ranks.
    pub expert_parallel: u32,
    /// Devices over which every expert is split by width, neighbours; expert-parallel devices come next. Where none is given the whole
    /// tensor-parallel group, expert-parallel devices after the context-parallel ones.
    pub expert_tensor_parallel: Option<u32>,
    /// Whether every expert-parallel device gathers all tokens of the group and sums its share of the results (Megatron-LM's dispatcher `allgather`).
    /// Off, tokens travel to their experts' devices alone, by all-to-alls.
    pub expert_all_gather: bool,
    /// Whether a token crosses every tier of the network once to each unit that holds any of its experts and is handed on inside it (DeepEP; DeepSeek-V3
    /// Technical Report, arXiv:2412.19437, section 3.2.2). Off, every choice of a token is sent on its own.
    pub expert_deduplicated: bool,
    /// How attention is computed.
    pub attention: Attention,
    /// Number formats.
    pub precision: Precision,
    /// The optimiser.
    pub optimizer: Optimizer,
    /// Whether neighbouring elementwise work is one kernel: dropout + residual sum, SwiGLU, RMSNorm with its conversions, scaled
    /// masked softmax. Off is the eager execution of PyTorch, with the tensors that it keeps.
    pub elementwise_fusion: bool,
    /// Whether query, key and value, and gate and up, are products of their own (TorchTitan, MaxText), not one each
    /// (Megatron-LM).
    pub separate_projections: bool,
    /// Whether an elementwise operator runs on the result of the product before it while that is on chip
    /// ([`Kernel::Epilogue`](sim::kernel::Kernel::Epilogue): one tensor and one vector core, as PHAZE's fused operators).
    pub epilogues: bool,
    /// Whether every weight gradient of a product is added to the one in memory by a pass of its own, as PyTorch's automatic
    /// differentiation does from the second micro-batch of a step on. Off, the product's accumulators start from the gradient in
    /// memory (Megatron-LM's fused gradient accumulation); the kernel then has no separate pass, and that read is not counted.
    pub separate_accumulation: bool,
    /// Whether narrow operands are converted by Transformer Engine's rules: weights once per step (their conversion is left out of the passes),
    /// inputs and gradients in one pass over them that writes both layouts, so that the weight gradient finds its input converted, and the
    /// converted input is what stays in memory for it.
    pub cached_conversions: bool,
    /// Whether experts' results are weighed before their last product, in the kernel of the activation, so that they need not be kept for the
    /// gradient of the weights.
    pub weighted_experts: bool,
    /// Whether the loss is one kernel per direction that converts logits on the fly. Off is eager PyTorch: fp32 logits in memory, and
    /// conversions as passes of their own.
    pub fused_loss: bool,
}

impl Lowering {
    /// The defaults for a model: one sequence of the model's length per micro-batch, no parallelism, fused attention and
    /// elementwise work, no epilogues, gradients accumulated by the products, Adam in mixed precision.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        Self {
            micro_batch: 1,
            sequence_length: model.max_sequence,
            tensor_parallel: 1,
            sequence_parallel: false,
            context_parallel: 1,
            context_method: ContextMethod::Ring,
            expert_parallel: 1,
            expert_tensor_parallel: None,
            expert_all_gather: false,
            expert_deduplicated: false,
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            elementwise_fusion: true,
            separate_projections: false,
            epilogues: false,
            separate_accumulation: false,
            cached_conversions: false,
            weighted_experts: false,
            fused_loss: true,
        }
    }
}
