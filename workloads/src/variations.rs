//! Differences of transformer families from GPT-2, BERT and Llama. The default has no difference.

use crate::layer_list::{EncoderDecoderSide, KeyChoice, KeyWindow, Mixer};
use crate::linear_attention::LinearAttention;
pub use crate::mixers::{
    ChannelScan, CompressedAttention, Conditioning, EntryForm, GatedConvolution, Recurrence, ResidualStreams,
    SharedBlock,
};
use crate::mixers::{is_one, one_group};
use serde::{Deserialize, Serialize};
use sim::kernel::DataType;
use sim::units::Bytes;

/// For serde: an option that is off is not written.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Norms of queries and keys before their rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNorm {
    /// Per head, with one gain for all heads (Qwen 3, Gemma 3).
    Head,
    /// Per head, with a gain per head (Command R+).
    OwnHead,
    /// Over all heads together (OLMo 2).
    Whole,
}

/// Attention and MLP in parallel: both read the layer's input, and both results are added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParallelBranches {
    /// After one common norm (Falcon 7B, GPT-J, Command R).
    OneNorm,
    /// After a norm each (GPT-NeoX, Falcon 40B).
    OwnNorms,
}

/// Multi-head latent attention (DeepSeek-V2, 2024): queries, keys and values come from narrow vectors. In training all
/// projections run as written; none is absorbed into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentAttention {
    /// Width of the vector that queries come from; `None` if they come from the layer's input.
    pub query_rank: Option<u64>,
    /// Width of the vector that keys and values come from.
    pub kv_rank: u64,
    /// Rotated part of a head's `head_dim`. The rotated part of the keys is common to all heads and comes from the
    /// layer's input.
    pub rope_dim: u64,
    /// Dimension of a value head.
    pub value_dim: u64,
}

/// A state-space layer with a selective scan (Mamba-2: Dao and Gu 2024, "Transformers are SSMs").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSpace {
    /// Heads of the scan, each with one decay per token.
    pub heads: u64,
    /// Dimension of a head.
    pub head_dim: u64,
    /// State numbers per dimension.
    pub state: u64,
    /// Groups of heads that share the projections into and out of the state.
    pub groups: u64,
    /// Width of the convolution before the scan, in tokens.
    pub convolution: u64,
    /// Tokens per chunk. Within a chunk the scan is a product, between chunks a recurrence.
    pub chunk: u64,
    /// True if the products have biases.
    pub bias: bool,
    /// True if the convolution has biases.
    pub convolution_bias: bool,
    /// True if the result has a gate but no norm (Falcon-H1).
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_norm: bool,
}

impl StateSpace {
    /// Returns the width of the scanned vectors.
    #[must_use]
    pub fn scan_width(&self) -> u64 {
        self.heads.saturating_mul(self.head_dim)
    }

    /// Returns the width of the convolution: the scanned vectors, and the projections into and out of the state.
    #[must_use]
    pub fn convolved_width(&self) -> u64 {
        self.scan_width().saturating_add(2 * self.groups.saturating_mul(self.state))
    }

    /// Returns the numbers of all heads' states.
    pub(crate) fn state_numbers(&self) -> u64 {
        self.scan_width().saturating_mul(self.state)
    }

    /// Returns the forward operations of a scan per token, in products. A chunk of q tokens needs four products: the q
    /// x q scores of the state's projections (shared by groups of heads), their product with the chunk, the chunk's
    /// state, and the previous state's contribution. Source: Dao and Gu 2024, section 6 and listing 1. The recurrence
    /// between chunks, 1/q of the last two, and the convolution are elementwise work.
    #[must_use]
    pub fn scan_operations(&self) -> u128 {
        let [groups, state, chunk, width] = [self.groups, self.state, self.chunk, self.scan_width()].map(u128::from);
        2 * (chunk * state * groups + chunk * width + 2 * state * width)
    }
}

/// Images instead of tokens (ViT, Dosovitskiy et al. 2021): one product turns every patch into a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patches {
    /// Numbers per patch: height x width x channels.
    pub numbers: u64,
    /// True if the product has a bias.
    pub bias: bool,
    /// True if all tokens are patches: no learned token comes first (DiT).
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_first_token: bool,
}

impl Patches {
    /// Returns the learned tokens before the patches: 1 or 0.
    #[must_use]
    pub fn first_tokens(&self) -> u64 {
        u64::from(!self.without_first_token)
    }
}

/// Frames of sound before an encoder, instead of tokens (Whisper, Radford et al. 2022, section 2.2): two convolutions
/// over the frames, the second with a stride, and a table of positions of the encoder's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoundFrames {
    /// Numbers per frame: bins of the spectrogram.
    pub bins: u64,
    /// The encoder's tokens per sequence, however long the decoder's is.
    pub tokens: u64,
}

impl SoundFrames {
    /// Frames that a convolution's result depends on (transformers 5.17, `WhisperEncoder`: `kernel_size`).
    pub const REACH: u64 = 3;
    /// Frames per token of the encoder (`WhisperEncoder`: the strides of both convolutions).
    pub const STRIDE: u64 = 2;

    /// Returns the weights of both convolutions into a width of `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        Self::REACH.saturating_mul(hidden).saturating_mul(self.bins.saturating_add(hidden))
    }

    /// Returns the parameters in no matrix: both convolutions' biases, and the table of positions.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        hidden.saturating_mul(self.tokens.saturating_add(2))
    }

    /// Returns the operations of a training step per sequence: 4 per weight of the first convolution, whose input has
    /// no gradient, on every frame, and 6 per weight of the second on every token.
    #[must_use]
    pub fn operations(&self, hidden: u64) -> u128 {
        let [bins, tokens, hidden] = [self.bins, self.tokens, hidden].map(u128::from);
        let (reach, stride) = (u128::from(Self::REACH), u128::from(Self::STRIDE));
        reach * hidden * tokens * (4 * stride * bins + 6 * hidden)
    }
}

/// The tokens that a [`TaskHead`] reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadTokens {
    /// One of every sequence.
    #[default]
    One,
    /// One of every sequence, after a product as wide as the model, with a bias, and tanh (BERT's pooler).
    Pooled,
    /// All.
    Every,
}

/// A head of another task instead of logits for the vocabulary: classes of an image, a text or its tokens, or the
/// embedding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHead {
    /// Width of its result.
    pub outputs: u64,
    /// True if its product has a bias.
    pub bias: bool,
    /// The tokens that it reads.
    #[serde(default, skip_serializing_if = "HeadTokens::is_one")]
    pub tokens: HeadTokens,
    /// True if it has no product: the loss covers the model's own vectors.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_product: bool,
}

impl HeadTokens {
    /// For serde: the usual choice is not written.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_one(&self) -> bool {
        *self == Self::One
    }
}

impl TaskHead {
    /// Returns the head on one token of every sequence.
    #[must_use]
    pub fn on_one_token(outputs: u64, bias: bool) -> Self {
        Self { outputs, bias, tokens: HeadTokens::One, without_product: false }
    }

    /// Returns the weights of its products after vectors of `width`, in a model as wide as `hidden`.
    pub(crate) fn matrices(&self, width: u64, hidden: u64) -> u64 {
        let product = if self.without_product { 0 } else { width.saturating_mul(self.outputs) };
        product.saturating_add(self.pooler_width(hidden).saturating_mul(hidden))
    }

    /// Returns its biases in a model as wide as `hidden`.
    pub(crate) fn biases(&self, hidden: u64) -> u64 {
        let product = if self.bias && !self.without_product { self.outputs } else { 0 };
        product.saturating_add(self.pooler_width(hidden))
    }

    fn pooler_width(&self, hidden: u64) -> u64 {
        if self.tokens == HeadTokens::Pooled { hidden } else { 0 }
    }
}

/// The indexer of sparse attention: small heads score all earlier tokens, and a query attends to the best ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indexer {
    /// Heads that score.
    pub heads: u64,
    /// Dimension of a head; all heads share one key.
    pub head_dim: u64,
    /// Tokens that a query attends to at most.
    pub chosen: u64,
    /// Neighbouring tokens that are chosen together; 1 where each is chosen by itself.
    pub block: u64,
    /// Tokens of a key, an entry that they are compressed to; 1 where each token has a key.
    #[serde(default = "one_group", skip_serializing_if = "is_one")]
    pub tokens_per_key: u64,
    /// Width of the narrow vector that its queries come from; `None` if they come from the layer's input.
    pub query_rank: Option<u64>,
    /// True if a product of the layer's input weighs the heads' scores.
    pub weighed: bool,
    /// Numbers of a query or key that share an fp32 scale, if the model is served with both in fp8; `None` if they have
    /// the formats of activations and cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled: Option<u64>,
}

impl Indexer {
    /// Returns the tokens that a query of a causal sequence attends to on average: k of s tokens, less the shortfall of
    /// the first k queries, k² / (2 s); half of the sequence if all are chosen.
    #[must_use]
    pub fn chosen_keys(&self, sequence: u64) -> u64 {
        let sequence = sequence / self.tokens_per_key.max(1);
        let chosen = self.chosen.min(sequence);
        (chosen - chosen.saturating_mul(chosen) / (2 * sequence.max(1))).max(1)
    }

    /// Returns the weights of its products, in a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        let queries = self.query_rank.unwrap_or(hidden).saturating_mul(self.heads).saturating_mul(self.head_dim);
        let weights = if self.weighed { self.heads } else { 0 };
        let keys = match self.entries() {
            Some(form) => form.matrices(hidden, self.head_dim),
            None => hidden.saturating_mul(self.head_dim),
        };
        queries.saturating_add(keys).saturating_add(hidden.saturating_mul(weights))
    }

    /// Returns the form of the entries that are its keys; `None` if each token has a key.
    pub(crate) fn entries(&self) -> Option<EntryForm> {
        (self.tokens_per_key > 1).then_some(EntryForm { tokens: self.tokens_per_key, overlaps: true })
    }

    /// Returns the parameters of its norms, and of its keys' gates if tokens are compressed.
    #[must_use]
    pub fn vectors(&self) -> u64 {
        self.entries().map_or(2 * self.head_dim, |form| form.biases(self.head_dim))
    }

    /// Returns the bytes of a token's key in a cache of the given format, or in its own.
    #[must_use]
    pub fn cached_key_bytes(&self, format: DataType) -> Bytes {
        match self.scaled {
            Some(block) => DataType::Fp8.packed_bytes_of(self.head_dim) + self.scale_bytes(block),
            None => format.packed_bytes_of(self.head_dim),
        }
    }

    /// Returns the bytes of the scales of a query or key whose blocks of `block` numbers have one each.
    pub(crate) fn scale_bytes(&self, block: u64) -> Bytes {
        Bytes(DataType::Fp32.bytes()) * self.head_dim.div_ceil(block.max(1))
    }

    /// Returns the forward operations of its scores per token: 2 per multiply-addition with half of the sequence.
    #[must_use]
    pub fn score_operations(&self, sequence: u64) -> u128 {
        2 * u128::from(self.heads)
            * u128::from(self.head_dim)
            * u128::from((sequence / self.tokens_per_key.max(1)).div_ceil(2))
    }
}

/// A gate on attention's result before its output projection: the sigmoid of a product of the layer's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputGate {
    /// One number per number of the result (Qwen3-Next).
    Number,
    /// One number per head (Step 3.7).
    Head,
}

/// Differences of a family from GPT-2, BERT and Llama.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Variations {
    /// True if LayerNorm has only a gain (MPT, Command R).
    pub norm_without_bias: bool,
    /// Norms of queries and keys.
    pub query_key_norm: Option<QueryKeyNorm>,
    /// Attention and MLP in parallel.
    pub parallel: Option<ParallelBranches>,
    /// Rotated dimensions per head; `None` means all.
    pub rotated: Option<u64>,
    /// Multi-head latent attention.
    pub latent: Option<LatentAttention>,
    /// True if every head has a learned logit besides its scores (GPT-OSS's sinks).
    pub sinks: bool,
    /// How the layers mix tokens.
    pub mixer: Mixer,
    /// The near keys that a query of attention sees; `None` means all.
    pub window: Option<KeyWindow>,
    /// The state-space layer, if there is one.
    pub scan: Option<StateSpace>,
    /// The scan by channels, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_scan: Option<ChannelScan>,
    /// The blocks that layers share, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_block: Option<SharedBlock>,
    /// The recurrence over mixes of neighbouring tokens, if layers have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<Recurrence>,
    /// The convolution between gates, if there are such layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub convolution: Option<GatedConvolution>,
    /// The linear attention, if there are such layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear: Option<LinearAttention>,
    /// The attention to compressed entries, if there are such layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<CompressedAttention>,
    /// The residual streams, if a token has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<ResidualStreams>,
    /// The indexer of sparse attention, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexer: Option<Indexer>,
    /// The keys that attention sees.
    #[serde(skip_serializing_if = "KeyChoice::is_all")]
    pub keys: KeyChoice,
    /// Dimension of a value head, if it differs from a key head's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_dim: Option<u64>,
    /// True if keys, before norm and rotation, are the values too.
    #[serde(skip_serializing_if = "is_false")]
    pub shared_value: bool,
    /// A gate on attention's result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_gate: Option<OutputGate>,
    /// Width of a dense MLP after attention in layers with experts, which then run beside both on the layer's input
    /// (Snowflake Arctic).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_beside_experts: Option<u64>,
    /// True if layers have no MLP.
    pub without_mlp: bool,
    /// True if the layers' first branch reads its input without a norm.
    pub without_first_norm: bool,
    /// True if the first product of BERT's head has no bias.
    pub transform_without_bias: bool,
    /// The layers' side of an encoder-decoder.
    pub side: EncoderDecoderSide,
    /// Rows of a table of score biases, one number per head, that each side's layers share (T5's relative positions).
    pub relative_rows: u64,
    /// True if every layer has such a table of its own (umT5).
    #[serde(skip_serializing_if = "is_false")]
    pub relative_in_layers: bool,
    /// True if keys have no bias where queries and values do (Whisper).
    #[serde(skip_serializing_if = "is_false")]
    pub key_without_bias: bool,
    /// Sound instead of tokens before the encoder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<SoundFrames>,
    /// Images instead of tokens.
    pub patches: Option<Patches>,
    /// The conditioning of all branches, in models that denoise images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditioning: Option<Conditioning>,
    /// A head of another task than predicting tokens.
    #[serde(rename = "pooled_head")]
    pub task_head: Option<TaskHead>,
    /// Modules that predict further tokens, each a layer like the last one
    /// ([`crate::Model::with_further_token_modules`]).
    pub further_tokens: u64,
}

impl Variations {
    /// Returns the tokens of a sequence in the encoder, where the decoder has `sequence`.
    #[must_use]
    pub fn encoder_tokens(&self, sequence: u64) -> u64 {
        self.frames.map_or(sequence, |frames| frames.tokens)
    }

    /// Returns the tokens of a sequence in the longer of encoder and decoder.
    #[must_use]
    pub fn longest_side(&self, sequence: u64) -> u64 {
        sequence.max(self.encoder_tokens(sequence))
    }

    /// Returns the tokens of a sequence in a layer of this side, where the decoder has `sequence`.
    #[must_use]
    pub fn tokens_of_side(&self, sequence: u64) -> u64 {
        if self.side == EncoderDecoderSide::Encoder { self.encoder_tokens(sequence) } else { sequence }
    }
}
