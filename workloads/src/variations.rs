//! What families of transformers do otherwise than GPT-2, BERT and Llama. The default is what those three do.

use crate::layer_list::{EncoderDecoderSide, Mixer};
use serde::{Deserialize, Serialize};

/// Norms of queries and keys, before they are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNorm {
    /// Over each head, with one gain for all of them (Qwen 3, Gemma 3).
    Head,
    /// Over each head, with gains of its own (Command R+).
    OwnHead,
    /// Over all heads together (OLMo 2).
    Whole,
}

/// Attention and MLP beside each other: both read the layer's input, and their results are added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParallelBranches {
    /// Behind one norm (Falcon 7B, GPT-J, Command R).
    OneNorm,
    /// Behind a norm each (GPT-NeoX, Falcon 40B).
    OwnNorms,
}

/// Multi-head latent attention (DeepSeek-V2, 2024): queries, keys and values are made of narrow vectors. In training the projections
/// run as they are written, none absorbed into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentAttention {
    /// Width of the vector that queries are made of; none where they are made of the layer's input.
    pub query_rank: Option<u64>,
    /// Width of the vector that keys and values are made of.
    pub kv_rank: u64,
    /// How much of a head's `head_dim` is rotated; of keys this part is one for all heads, made of the layer's input.
    pub rope_dim: u64,
    /// Dimension of a value head.
    pub value_dim: u64,
}

/// A state-space layer by its selective scan (Mamba-2: Dao and Gu 2024, "Transformers are SSMs").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSpace {
    /// Heads of the scan, each with one decay per token.
    pub heads: u64,
    /// Dimension of a head.
    pub head_dim: u64,
    /// Numbers of state per dimension.
    pub state: u64,
    /// Groups of heads that share the projections into and out of the state.
    pub groups: u64,
    /// Width of the convolution before the scan, in tokens.
    pub convolution: u64,
    /// Tokens of a chunk: within one the scan is a product, between chunks a recurrence.
    pub chunk: u64,
    /// Whether the products have biases.
    pub bias: bool,
    /// Whether the convolution has biases.
    pub convolution_bias: bool,
}

impl StateSpace {
    /// Width of what is scanned.
    #[must_use]
    pub fn scan_width(&self) -> u64 {
        self.heads.saturating_mul(self.head_dim)
    }

    /// Width of what is convolved: what is scanned, and the projections into and out of the state.
    #[must_use]
    pub fn convolved_width(&self) -> u64 {
        self.scan_width().saturating_add(2 * self.groups.saturating_mul(self.state))
    }

    /// Operations of a scan forward, per token, in products: of every chunk of q tokens the q x q scores of the state's projections, groups of heads
    /// sharing them, what these make of the chunk, its state, and what the state before it adds (Dao and Gu 2024, section 6 and listing 1). The
    /// recurrence between chunks, a q-th of the last two's, and the convolution are elementwise work.
    #[must_use]
    pub fn scan_operations(&self) -> u128 {
        let [groups, state, chunk, width] = [self.groups, self.state, self.chunk, self.scan_width()].map(u128::from);
        2 * (chunk * state * groups + chunk * width + 2 * state * width)
    }
}

/// Images in place of tokens (ViT, Dosovitskiy et al. 2021): every patch becomes a token by one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patches {
    /// Numbers of a patch: its height x width x channels.
    pub numbers: u64,
    /// Whether the product has a bias.
    pub bias: bool,
}

/// A head on one token of every sequence, in place of one on all of them (classes of an image, an embedding of a text).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PooledHead {
    /// Its width.
    pub outputs: u64,
    /// Whether it has a bias.
    pub bias: bool,
}

/// What a family does otherwise than GPT-2, BERT and Llama.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Variations {
    /// Whether LayerNorm has a gain only (MPT, Command R).
    pub norm_without_bias: bool,
    /// Norms of queries and keys.
    pub query_key_norm: Option<QueryKeyNorm>,
    /// Attention and MLP beside each other.
    pub parallel: Option<ParallelBranches>,
    /// How many dimensions of a head are rotated; all where none is given.
    pub rotated: Option<u64>,
    /// Multi-head latent attention.
    pub latent: Option<LatentAttention>,
    /// Whether every head has a learned logit beside its scores (GPT-OSS's sinks).
    pub sinks: bool,
    /// What mixes tokens in the layers.
    pub mixer: Mixer,
    /// Most keys that a query of attention sees; all where none is given.
    pub window: Option<u64>,
    /// The state-space layer, where there is one.
    pub scan: Option<StateSpace>,
    /// Whether layers have no MLP.
    pub without_mlp: bool,
    /// Whether the layers' first branch reads its input as it is.
    pub without_first_norm: bool,
    /// Whether the first product of BERT's head has no bias.
    pub transform_without_bias: bool,
    /// Which side of an encoder-decoder the layers are on.
    pub side: EncoderDecoderSide,
    /// Rows of a table of biases of the scores, one number a head each, that each side's layers share (T5's relative positions).
    pub relative_rows: u64,
    /// Images in place of tokens.
    pub patches: Option<Patches>,
    /// A head on one token of every sequence.
    pub pooled_head: Option<PooledHead>,
    /// Modules that predict further tokens, each a layer like the last one ([`crate::Model::with_further_token_modules`]).
    pub further_tokens: u64,
}
