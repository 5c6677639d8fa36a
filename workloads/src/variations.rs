//! Differences of transformer families from GPT-2, BERT and Llama. The default is no difference.

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

/// Used by serde to skip an option that is off.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Norms of queries and keys before rotation.
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

/// Parallel attention and MLP: both read the layer's input, and both results are added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParallelBranches {
    /// Both read the input after one common norm (Falcon 7B, GPT-J, Command R).
    OneNorm,
    /// Each reads the input after its own norm (GPT-NeoX, Falcon 40B).
    OwnNorms,
}

/// Multi-head latent attention (DeepSeek-V2, 2024): queries, keys and values are computed from low-rank vectors. In
/// training all projections run as written; none is absorbed into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentAttention {
    /// Width of the vector from which queries are computed; `None` if they are computed from the layer's input.
    pub query_rank: Option<u64>,
    /// Width of the vector from which keys and values are computed.
    pub kv_rank: u64,
    /// Rotated dimensions of a head's `head_dim`. All heads share the rotated part of the keys, which is computed from
    /// the layer's input.
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
    /// Tokens per chunk. Within a chunk the scan is a product; between chunks it is a recurrence.
    pub chunk: u64,
    /// True if the products have biases.
    pub bias: bool,
    /// True if the convolution has biases.
    pub convolution_bias: bool,
    /// True if the result has a gate but no norm of its own (Falcon-H1).
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_norm: bool,
}

impl StateSpace {
    /// Returns the width of the scanned vectors.
    #[must_use]
    pub fn scan_width(&self) -> u64 {
        self.heads.saturating_mul(self.head_dim)
    }

    /// Returns the width of the convolution's input: the scanned vectors, and the projections into and out of the
    /// state.
    #[must_use]
    pub fn convolved_width(&self) -> u64 {
        self.scan_width().saturating_add(2 * self.groups.saturating_mul(self.state))
    }

    /// Returns the number of elements in all heads' states.
    pub(crate) fn state_numbers(&self) -> u64 {
        self.scan_width().saturating_mul(self.state)
    }

    /// Returns the forward matrix operations of a scan per token. A chunk of q tokens needs four products: the q x q
    /// scores of the state's projections (shared by groups of heads), their product with the chunk, the chunk's state,
    /// and the previous state's contribution. Source: Dao and Gu 2024, section 6 and listing 1. The recurrence between
    /// chunks, 1/q of the last two products, and the convolution are elementwise work.
    #[must_use]
    pub fn scan_operations(&self) -> u128 {
        let [groups, state, chunk, width] = [self.groups, self.state, self.chunk, self.scan_width()].map(u128::from);
        2 * (chunk * state * groups + chunk * width + 2 * state * width)
    }
}

/// Images as input instead of tokens (ViT, Dosovitskiy et al. 2021): one product turns every patch into a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patches {
    /// Elements per patch: height x width x channels.
    pub numbers: u64,
    /// True if the product has a bias.
    pub bias: bool,
    /// True if no learned token precedes the patches (DiT).
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_first_token: bool,
}

impl Patches {
    /// Returns the number of learned tokens before the patches: 1 or 0.
    #[must_use]
    pub fn first_tokens(&self) -> u64 {
        u64::from(!self.without_first_token)
    }
}

/// Frames of sound as the encoder's input, instead of tokens (Whisper, Radford et al. 2022, section 2.2). Two
/// convolutions read the frames, the second with a stride, and the encoder has its own table of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoundFrames {
    /// Elements per frame: bins of the spectrogram.
    pub bins: u64,
    /// The encoder's tokens per sequence, whatever the decoder's sequence length.
    pub tokens: u64,
}

impl SoundFrames {
    /// Frames that a convolution's result depends on (transformers 5.17, `WhisperEncoder`: `kernel_size`).
    pub const REACH: u64 = 3;
    /// Frames per token of the encoder (`WhisperEncoder`: the strides of both convolutions).
    pub const STRIDE: u64 = 2;

    /// Returns the number of weights of both convolutions into a width of `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        Self::REACH.saturating_mul(hidden).saturating_mul(self.bins.saturating_add(hidden))
    }

    /// Returns the number of parameters outside matrices: both convolutions' biases, and the table of positions.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        hidden.saturating_mul(self.tokens.saturating_add(2))
    }

    /// Returns the operations of a training step per sequence. The first convolution counts 4 per weight and frame,
    /// because its input needs no gradient. The second counts 6 per weight and token.
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
    /// One token of every sequence.
    #[default]
    One,
    /// One token of every sequence, after a product as wide as the model, with a bias, and tanh (BERT's pooler).
    Pooled,
    /// Every token.
    Every,
}

/// A head for another task instead of logits for the vocabulary: classes of an image, a text or its tokens, or the
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
    /// True if it has no output product: the loss reads the model's own vectors.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_product: bool,
}

impl HeadTokens {
    /// Used by serde to skip the usual choice.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_one(&self) -> bool {
        *self == Self::One
    }
}

impl TaskHead {
    /// Returns a head that reads one token of every sequence.
    #[must_use]
    pub fn on_one_token(outputs: u64, bias: bool) -> Self {
        Self { outputs, bias, tokens: HeadTokens::One, without_product: false }
    }

    /// Returns the number of weights of its products on vectors of `width`, in a model of width `hidden`.
    pub(crate) fn matrices(&self, width: u64, hidden: u64) -> u64 {
        let product = if self.without_product { 0 } else { width.saturating_mul(self.outputs) };
        product.saturating_add(self.pooler_width(hidden).saturating_mul(hidden))
    }

    /// Returns the number of its biases, in a model of width `hidden`.
    pub(crate) fn biases(&self, hidden: u64) -> u64 {
        let product = if self.bias && !self.without_product { self.outputs } else { 0 };
        product.saturating_add(self.pooler_width(hidden))
    }

    fn pooler_width(&self, hidden: u64) -> u64 {
        if self.tokens == HeadTokens::Pooled { hidden } else { 0 }
    }
}

/// The indexer of sparse attention: small heads score all earlier tokens, and a query attends to the tokens with the
/// highest scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indexer {
    /// Number of scoring heads.
    pub heads: u64,
    /// Dimension of a head; all heads share one key.
    pub head_dim: u64,
    /// Largest number of keys that a query attends to.
    pub chosen: u64,
    /// Number of neighbouring tokens that are chosen together; 1 if each token is chosen by itself.
    pub block: u64,
    /// Number of tokens that are compressed into one key; 1 if each token has a key.
    #[serde(default = "one_group", skip_serializing_if = "is_one")]
    pub tokens_per_key: u64,
    /// Width of the low-rank vector from which its queries are computed; `None` if they are computed from the layer's
    /// input.
    pub query_rank: Option<u64>,
    /// True if a product of the layer's input gives the weights of the heads' scores.
    pub weighed: bool,
    /// Elements of a query or key that share an fp32 scale, if the model is served with both in fp8. `None` if they
    /// have the formats of activations and cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled: Option<u64>,
}

impl Indexer {
    /// Returns the mean number of keys that a query of a causal sequence attends to. With k of s keys chosen, it is k -
    /// k² / (2 s), because the first k queries see fewer than k keys. If all are chosen, it is half of the sequence.
    #[must_use]
    pub fn chosen_keys(&self, sequence: u64) -> u64 {
        let sequence = sequence / self.tokens_per_key.max(1);
        let chosen = self.chosen.min(sequence);
        (chosen - chosen.saturating_mul(chosen) / (2 * sequence.max(1))).max(1)
    }

    /// Returns the number of weights of the indexer's products, in a layer of width `hidden`.
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

    /// Returns the form of the entries that serve as its keys; `None` if each token has a key.
    pub(crate) fn entries(&self) -> Option<EntryForm> {
        (self.tokens_per_key > 1).then_some(EntryForm { tokens: self.tokens_per_key, overlaps: true })
    }

    /// Returns the number of parameters outside the indexer's matrices: its norms, and its keys' gates if tokens are
    /// compressed.
    #[must_use]
    pub fn vectors(&self) -> u64 {
        self.entries().map_or(2 * self.head_dim, |form| form.biases(self.head_dim))
    }

    /// Returns the bytes of one key in a cache of the given format. An indexer with scales uses its own format, fp8.
    #[must_use]
    pub fn cached_key_bytes(&self, format: DataType) -> Bytes {
        match self.scaled {
            Some(block) => DataType::Fp8.packed_bytes_of(self.head_dim) + self.scale_bytes(block),
            None => format.packed_bytes_of(self.head_dim),
        }
    }

    /// Returns the bytes of the fp32 scales of a query or key; every `block` elements share a scale.
    pub(crate) fn scale_bytes(&self, block: u64) -> Bytes {
        Bytes(DataType::Fp32.bytes()) * self.head_dim.div_ceil(block.max(1))
    }

    /// Returns the forward operations of its scores per token: 2 per multiply-addition, with half of the sequence's
    /// keys.
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
    /// One gate per element of the result (Qwen3-Next).
    Number,
    /// One gate per head (Step 3.7).
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
    /// True if every head has a learned logit in addition to its scores (GPT-OSS's sinks).
    pub sinks: bool,
    /// The operation by which the layers mix tokens.
    pub mixer: Mixer,
    /// The near keys that a query sees; `None` means all.
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
    /// The gated convolution, if layers have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub convolution: Option<GatedConvolution>,
    /// The linear attention, if layers have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear: Option<LinearAttention>,
    /// The attention to compressed entries, if layers have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<CompressedAttention>,
    /// The residual streams, if a token has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<ResidualStreams>,
    /// The indexer of sparse attention, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexer: Option<Indexer>,
    /// The keys that queries see.
    #[serde(skip_serializing_if = "KeyChoice::is_all")]
    pub keys: KeyChoice,
    /// Dimension of a value head, if it differs from a key head's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_dim: Option<u64>,
    /// True if keys, before norm and rotation, also serve as values.
    #[serde(skip_serializing_if = "is_false")]
    pub shared_value: bool,
    /// A gate on attention's result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_gate: Option<OutputGate>,
    /// Width of a dense MLP in layers with experts. The MLP follows attention, and the experts read the layer's input
    /// in parallel with both (Snowflake Arctic).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_beside_experts: Option<u64>,
    /// True if layers have no MLP.
    pub without_mlp: bool,
    /// True if the layers' first branch reads the layer's input without a norm.
    pub without_first_norm: bool,
    /// True if the first product of BERT's head has no bias.
    pub transform_without_bias: bool,
    /// The side of an encoder-decoder that the layers belong to.
    pub side: EncoderDecoderSide,
    /// Rows of a table of score biases, one bias per head, that all layers of a side share (T5's relative positions).
    pub relative_rows: u64,
    /// True if every layer has its own table of score biases (umT5).
    #[serde(skip_serializing_if = "is_false")]
    pub relative_in_layers: bool,
    /// True if keys have no bias although queries and values do (Whisper).
    #[serde(skip_serializing_if = "is_false")]
    pub key_without_bias: bool,
    /// Sound as the encoder's input, instead of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<SoundFrames>,
    /// Images as input, instead of tokens.
    pub patches: Option<Patches>,
    /// The conditioning of all branches, in models that denoise images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditioning: Option<Conditioning>,
    /// A head for a task other than predicting tokens.
    #[serde(rename = "pooled_head")]
    pub task_head: Option<TaskHead>,
    /// Number of modules that predict further tokens; each has a layer like the last one
    /// ([`crate::Model::with_further_token_modules`]).
    pub further_tokens: u64,
}

impl Variations {
    /// Returns the encoder's tokens per sequence, given the decoder's.
    #[must_use]
    pub fn encoder_tokens(&self, sequence: u64) -> u64 {
        self.frames.map_or(sequence, |frames| frames.tokens)
    }

    /// Returns the larger of the encoder's and the decoder's tokens per sequence, given the decoder's.
    #[must_use]
    pub fn longest_side(&self, sequence: u64) -> u64 {
        sequence.max(self.encoder_tokens(sequence))
    }

    /// Returns the number of tokens per sequence in a layer of this side, given the decoder's.
    #[must_use]
    pub fn tokens_of_side(&self, sequence: u64) -> u64 {
        if self.side == EncoderDecoderSide::Encoder { self.encoder_tokens(sequence) } else { sequence }
    }
}
