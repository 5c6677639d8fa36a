//! Mixers of tokens besides attention, Mamba 2 and linear attention, and additions that some families make around their
//! branches. [`crate::variations`] states which of them a model has.

use serde::{Deserialize, Serialize};

/// Attention to near tokens and to entries into which earlier tokens are compressed (DeepSeek-V4's report, section
/// 2.3). One key serves all heads and is also the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressedAttention {
    /// Width of the low-rank vector from which queries are computed.
    pub query_rank: u64,
    /// Number of head groups; the results of each group share an output projection.
    pub output_groups: u64,
    /// Width of the low-rank vector that a group's results are projected to.
    pub output_rank: u64,
    /// Tokens per entry in layers that see all entries.
    pub entry_tokens: u64,
    /// Tokens per entry in layers with an indexer, which chooses entries.
    pub chosen_entry_tokens: u64,
}

/// The rule by which tokens are compressed to entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryForm {
    /// Number of tokens between the starts of neighbouring entries.
    pub tokens: u64,
    /// True if an entry also includes one vector of each token of the previous entry.
    pub overlaps: bool,
}

/// Several residual streams per token (hyper-connections: arXiv:2512.24880).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidualStreams {
    /// Number of streams.
    pub count: u64,
    /// Normalisation rounds that make the mixing matrix doubly stochastic.
    pub rounds: u64,
}

/// Returns 1: serde's default for files that state no groups.
pub(crate) const fn one_group() -> u64 {
    1
}

/// Returns whether the number of groups is 1, which serde does not write.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) fn is_one(groups: &u64) -> bool {
    *groups == 1
}

/// A state-space layer with separate decays for every channel (Mamba: Gu and Dao 2023, arXiv:2312.00752).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelScan {
    /// Channels of the scan.
    pub width: u64,
    /// State numbers per channel.
    pub state: u64,
    /// Width of the convolution before the scan, in tokens.
    pub convolution: u64,
    /// Number of channel groups. The steps and projections of a group are computed from its own channels only (Zamba).
    /// It is 1 if they are computed from all channels.
    #[serde(default = "one_group", skip_serializing_if = "is_one")]
    pub groups: u64,
    /// Width of the low-rank vector from which the steps of each group are computed.
    pub step_rank: u64,
    /// True if the products into and out of the layer have biases.
    pub bias: bool,
    /// True if the convolution has biases.
    pub convolution_bias: bool,
    /// True if the steps' low-rank vector and the state's projections have norms with gains (Jamba).
    pub norms: bool,
}

impl ChannelScan {
    /// Returns the number of parts that tensor parallelism may divide: channels, or whole groups of them.
    pub(crate) fn divisible_parts(&self) -> u64 {
        if self.groups > 1 { self.groups } else { self.width }
    }

    /// Returns the name of those parts for messages.
    pub(crate) fn divided_parts(&self) -> &'static str {
        if self.groups > 1 { "groups of the scan's channels" } else { "channels of the scan" }
    }

    /// Returns the number of weights of the scan's products, in a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        self.width.saturating_mul(3 * hidden + 2 * self.step_rank + 2 * self.state)
    }

    /// Returns the scan's parameters outside matrices: convolution, decays, skip, the steps' biases, norms and biases.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        let convolution = self.convolution + u64::from(self.convolution_bias);
        let norms = if self.norms { self.step_rank + 2 * self.state } else { 0 };
        let biases = if self.bias { 2 * self.width + hidden } else { 0 };
        self.width.saturating_mul(convolution + self.state + 2) + norms + biases
    }
}

/// Blocks of attention and MLP whose weights several layers share (Zamba: Glorioso et al. 2024, arXiv:2405.16712). If
/// there are several blocks, these layers take them in turn (Zamba 2, arXiv:2411.15242). A block reads the layer's
/// input concatenated with the token's embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedBlock {
    /// Number of distinct blocks; layers run them in turn.
    pub count: u64,
    /// Rank of each layer's own adapters on queries, keys and values; `None` without them.
    pub attention_adapter: Option<u64>,
    /// Rank of each layer's own adapter on the MLP's first product; `None` without it.
    pub mlp_adapter: Option<u64>,
}

/// A recurrence per channel over mixes of neighbouring tokens, and a gated MLP over such mixes (RWKV 4: Peng et al.
/// 2023, arXiv:2305.13048).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recurrence {
    /// Number of channels.
    pub width: u64,
}

impl Recurrence {
    /// Elements of a channel's state: a sum, its weight and the largest exponent.
    pub const STATE: u64 = 3;

    /// Returns the number of weights of the mixer's products, in a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        4 * hidden.saturating_mul(self.width)
    }

    /// Returns the mixer's parameters outside matrices: decays, weights of the token itself, and three mixes.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        2 * self.width + 3 * hidden
    }
}

/// A short convolution between two gates (LFM2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedConvolution {
    /// Number of tokens that a result depends on.
    pub reach: u64,
    /// True if products and convolution have biases.
    pub bias: bool,
}

impl GatedConvolution {
    /// Returns the number of weights of the mixer's products, in a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        4 * hidden.saturating_mul(hidden)
    }

    /// Returns the number of parameters of the convolution, and of all biases.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        hidden.saturating_mul(self.reach + if self.bias { 5 } else { 0 })
    }
}

/// Conditioning on an image's time step and class, by one vector. From this vector, each branch gets a shift and a
/// scale after its norm, and a gate on its result (adaLN-zero: Peebles and Xie, ICCV 2023, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditioning {
    /// Rows of the table of classes, including the row for images without a class.
    pub rows: u64,
    /// True if every layer computes the vector with its own embedders, and the head with the first layer's (diffusers
    /// 0.42, `AdaLayerNormZero` and `DiTTransformer2DModel`). Otherwise, one vector serves all layers.
    pub in_layers: bool,
}

impl Conditioning {
    /// Number of sines and cosines of a time step (diffusers 0.42, `CombinedTimestepLabelEmbeddings`: `num_channels`).
    pub const WAVES: u64 = 256;
    /// Number of vectors that a layer makes from the conditioning vector: shift, scale and gate of two branches.
    pub const IN_LAYER: u64 = 6;
    /// Number of vectors that the head makes from the conditioning vector: shift and scale of its norm.
    pub const IN_HEAD: u64 = 2;

    /// Returns the number of weights of the products of a time step's embedder, in a model of width `hidden`.
    fn embedder_matrices(hidden: u64) -> u64 {
        hidden.saturating_mul(Self::WAVES.saturating_add(hidden))
    }

    /// Returns the number of vectors that all layers and the head make.
    fn vectors(layers: u64) -> u64 {
        layers.saturating_mul(Self::IN_LAYER).saturating_add(Self::IN_HEAD)
    }

    /// Returns the number of parameters of all embedders and of the products that make shifts, scales and gates.
    #[must_use]
    pub fn parameters(&self, hidden: u64, layers: u64) -> u64 {
        // The embedder's two biases, and the table of classes.
        let each = Self::embedder_matrices(hidden).saturating_add(hidden.saturating_mul(self.rows.saturating_add(2)));
        let embedders = if self.in_layers { layers } else { 1 };
        let product = hidden.saturating_mul(hidden.saturating_add(1));
        each.saturating_mul(embedders).saturating_add(product.saturating_mul(Self::vectors(layers)))
    }

    /// Returns the matrix operations of a training step per image: 6 per weight, or 4 per weight that reads a time
    /// step's waves, because the waves need no gradient.
    #[must_use]
    pub fn operations(&self, hidden: u64, layers: u64) -> u128 {
        let runs = if self.in_layers { layers.saturating_add(1) } else { 1 };
        let [runs, waves, vectors, hidden] = [runs, Self::WAVES, Self::vectors(layers), hidden].map(u128::from);
        runs * hidden * (4 * waves + 6 * hidden) + 6 * hidden * hidden * vectors
    }
}
