//! Settings of a training run, besides the model, that change a device's kernels and bytes.

use crate::footprint::{Optimizer, Precision};
use crate::model::Model;
use crate::serving_pass::ServingPass;
use serde::{Deserialize, Serialize};

/// The way in which attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// One fused kernel, tile by tile; scores never reach memory (FlashAttention).
    #[default]
    Fused,
    /// Scores, softmax, dropout and context as separate operators. All scores are computed, causal or not.
    Unfused,
}

/// The way in which the head and the loss are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossForm {
    /// All tokens at once: their logits, then their loss. The backward pass computes the gradients.
    #[default]
    Whole,
    /// Chunks of tokens one after the other. Each chunk's logits, loss, in-place logit gradient, and the gradient's
    /// products with the weights and with the hidden states follow each other. Only one chunk's logits exist at a time
    /// (Liger's fused linear cross-entropy).
    Chunked,
}

/// PyTorch's autocast, which chooses the type of each operator over fp32 parameters. Products run in the operand type.
/// The residual stream, norms and softmax are fp32, with 16-bit copies for the products (`autocast.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Autocast {
    /// No autocast: all activations have the operand type.
    #[default]
    None,
    /// PyTorch 1.7's rules: GELU runs in fp32 too, and softmax keeps its input.
    Pytorch1,
    /// PyTorch 2's rules.
    Pytorch2,
}

/// The way in which attention reaches the keys and values of other context-parallel devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextMethod {
    /// Keys and values pass around a ring (Liu et al. 2023), and each device keeps its queries. Sequences are cut so
    /// that causal work is even. The communication volume and memory equal those of an all-gather.
    #[default]
    Ring,
    /// All-to-alls redistribute each sequence from a share of the tokens with all heads to all tokens with a share of
    /// the heads, and back (DeepSpeed-Ulysses, Jacobs et al. 2023).
    Ulysses,
}

/// All settings of a training run, besides the model, that change a device's kernels and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lowering {
    /// Sequences in a micro-batch.
    pub micro_batch: u64,
    /// Tokens in a sequence.
    pub sequence_length: u64,
    /// Devices that split every layer (Megatron-LM).
    pub tensor_parallel: u32,
    /// True if the tensor-parallel devices split norms, dropout and residual sums along the sequence (Korthikanti et
    /// al. 2022).
    pub sequence_parallel: bool,
    /// Devices that split every sequence.
    pub context_parallel: u32,
    /// The way in which attention reaches the tokens of the other context-parallel devices.
    pub context_method: ContextMethod,
    /// Devices that share the experts of a layer; part of the data-parallel ranks.
    pub expert_parallel: u32,
    /// Number of neighbouring devices that split every expert by width; expert-parallel ranks are numbered next. `None`
    /// means the whole tensor-parallel group, with expert-parallel ranks after the context-parallel ones.
    pub expert_tensor_parallel: Option<u32>,
    /// True if every expert-parallel device gathers all tokens of the group, and the group sums the experts' results
    /// (Megatron-LM's dispatcher `allgather`). Otherwise all-to-alls send tokens only to the devices of their experts.
    pub expert_all_gather: bool,
    /// True if a token crosses every network tier once per unit that holds any of its experts, and is forwarded inside
    /// that unit (DeepEP; DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.2.2). Otherwise a token is sent
    /// once per chosen expert.
    pub expert_deduplicated: bool,
    /// The way in which attention is computed.
    pub attention: Attention,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// True if neighbouring elementwise operations form one kernel: dropout + residual sum, SwiGLU, RMSNorm with its
    /// conversions, scaled masked softmax. Otherwise they run as in eager PyTorch, and keep the tensors that it keeps.
    pub elementwise_fusion: bool,
    /// True if RMS norms, rotations and conversions run as the single operations that the model's Python file writes
    /// (transformers, LitGPT). It has an effect only without elementwise fusion.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub composed_layers: bool,
    /// True if query, key and value are three products, and gate and up are two (TorchTitan, MaxText). Otherwise each
    /// group is one product (Megatron-LM).
    pub separate_projections: bool,
    /// True if an elementwise operator runs on the preceding product's result while the result is on chip
    /// ([`Kernel::Epilogue`](sim::kernel::Kernel::Epilogue): one tensor and one vector core, like PHAZE's fused
    /// operators).
    pub epilogues: bool,
    /// True if a separate pass adds every weight gradient to the one in memory. PyTorch's automatic differentiation
    /// does so from a step's second micro-batch on. Otherwise the product's accumulators start from the gradient in
    /// memory (Megatron-LM's fused gradient accumulation). There is then no separate pass, and the read of the old
    /// gradient is not counted.
    pub separate_accumulation: bool,
    /// True if narrow operands are converted by Transformer Engine's rules. Weights are converted once per step,
    /// outside the passes. One pass over inputs and gradients writes both layouts, so the weight gradient finds its
    /// input converted. The tensor kept in memory is the converted input.
    pub cached_conversions: bool,
    /// True if the activation kernel applies the experts' weights before the last product. The experts' results then
    /// need not be kept for the weights' gradient.
    pub weighted_experts: bool,
    /// True if the loss is one kernel per direction that converts logits on the fly. Otherwise as in eager PyTorch:
    /// fp32 logits in memory, and separate conversion passes.
    pub fused_loss: bool,
    /// True if adapters are in fp32 whatever the operand type, and read their own fp32 copy of the input (PEFT's
    /// `autocast_adapter_dtype`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wide_adapters: bool,
    /// PyTorch's autocast. A device must hold whole layers: no tensor, context or expert parallelism.
    #[serde(default, skip_serializing_if = "Autocast::is_none")]
    pub autocast: Autocast,
    /// The way in which the head and the loss are computed. In chunked form, the loss is one kernel per chunk, whatever
    /// `fused_loss` says.
    #[serde(default, skip_serializing_if = "LossForm::is_whole")]
    pub loss: LossForm,
    /// The vocabulary is padded to a multiple of this number times the tensor-parallel degree, unless the model's file
    /// states its own multiple. A value of 1 pads to the degree alone.
    pub vocabulary_multiple: u64,
    /// Settings of a serving pass: a forward pass over `sequence_length` new tokens of `micro_batch` sequences. `None`
    /// in training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<ServingPass>,
}

impl Autocast {
    /// Returns whether all activations have the operand type.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl LossForm {
    /// Returns whether all logits exist at once.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        *self == Self::Whole
    }

    /// Returns the number of chunks in which `tokens` pass a head of `width` x `vocabulary` on this device; 1 for whole
    /// logits. A chunk's logits have about as many elements as all hidden states. Its tokens are rounded up to a power
    /// of two (Liger-Kernel, `src/liger_kernel/ops/fused_linear_cross_entropy.py`: `inc_factor`, `chunk_size`).
    #[must_use]
    pub fn chunk_count(self, tokens: u64, width: u64, vocabulary: u64) -> u64 {
        match self {
            Self::Whole => 1,
            Self::Chunked => {
                let parts = vocabulary.div_ceil(width.max(1)).max(1);
                let chunk = tokens.div_ceil(parts).next_power_of_two().min(tokens);
                tokens.div_ceil(chunk.max(1)).max(1)
            }
        }
    }
}

impl Lowering {
    /// Returns the defaults for a model: one sequence of the model's length per micro-batch, and no parallelism.
    /// Attention and elementwise work are fused, without epilogues. Products accumulate weight gradients. The optimizer
    /// is Adam in mixed precision.
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
            composed_layers: false,
            separate_projections: false,
            epilogues: false,
            separate_accumulation: false,
            cached_conversions: false,
            weighted_experts: false,
            fused_loss: true,
            wide_adapters: false,
            autocast: Autocast::None,
            loss: LossForm::Whole,
            vocabulary_multiple: 1,
            serving: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_those_of_liger() {
        let count = |tokens, width, vocabulary| LossForm::Chunked.chunk_count(tokens, width, vocabulary);
        // The example in Liger's source: 16,384 tokens and a head of 32,000 x 4,096. The vocabulary is 8 times the
        // width, so a chunk has 2,048 tokens.
        assert_eq!(count(16_384, 4096, 32_000), 8);
        // Llama 3.2 3B with 3,072 tokens: the vocabulary is 42 times the width. A chunk would have 74 tokens, which is
        // rounded up to 128.
        assert_eq!(count(3072, 3072, 128_256), 24);
        // Llama 2 7B with 1,304 tokens: a chunk would have 163 tokens, which is rounded up to 256. The last chunk is
        // shorter.
        assert_eq!(count(1304, 4096, 32_000), 6);
        assert_eq!((count(1, 4096, 32_000), count(64, 4096, 1000)), (1, 1));
        assert_eq!(LossForm::Whole.chunk_count(16_384, 4096, 32_000), 1);
    }
}
