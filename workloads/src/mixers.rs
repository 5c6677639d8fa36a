//! Mixers of tokens besides attention, Mamba 2 and linear attention, and what some families have around their branches:
//! [`crate::variations`] says which of them a model has.

use serde::{Deserialize, Serialize};

/// Attention to near tokens, and to entries that earlier tokens are compressed to (DeepSeek-V4's report, section 2.3).
/// One key serves all heads and is the value too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressedAttention {
    /// Width of the vector that queries come from.
    pub query_rank: u64,
    /// Groups of heads whose results lead out together.
    pub output_groups: u64,
    /// Width of the vector that a group's results lead to.
    pub output_rank: u64,
    /// Tokens per entry in layers that see all entries.
    pub entry_tokens: u64,
    /// Tokens per entry in layers whose indexer chooses entries.
    pub chosen_entry_tokens: u64,
}

/// How tokens are compressed to entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryForm {
    /// Tokens from one entry to the next.
    pub tokens: u64,
    /// True if an entry also has a vector of each token of the entry before.
    pub overlaps: bool,
}

/// Several residual streams per token (hyper-connections: arXiv:2512.24880).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidualStreams {
    /// Streams.
    pub count: u64,
    /// Rounds that make the mixing matrix doubly stochastic.
    pub rounds: u64,
}

/// For serde: one group, as in files without groups.
pub(crate) const fn one_group() -> u64 {
    1
}

/// For serde: one group is not written.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) fn is_one(groups: &u64) -> bool {
    *groups == 1
}

/// A state-space layer whose decays are numbers per channel (Mamba: Gu and Dao 2023, arXiv:2312.00752).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelScan {
    /// Channels of the scan.
    pub width: u64,
    /// State numbers per channel.
    pub state: u64,
    /// Width of the convolution before the scan, in tokens.
    pub convolution: u64,
    /// Groups of channels whose steps and projections come from their own channels alone (Zamba); 1 if they come from
    /// all channels.
    #[serde(default = "one_group", skip_serializing_if = "is_one")]
    pub groups: u64,
    /// Width of the vector that the steps come from, for each group.
    pub step_rank: u64,
    /// True if the products into and out of the layer have biases.
    pub bias: bool,
    /// True if the convolution has biases.
    pub convolution_bias: bool,
    /// True if the step's vector and the state's projections have norms with gains (Jamba).
    pub norms: bool,
}

impl ChannelScan {
    /// Returns the number of parts that tensor parallelism may divide: channels, or whole groups of them.
    pub(crate) fn divisible_parts(&self) -> u64 {
        if self.groups > 1 { self.groups } else { self.width }
    }

    /// Returns what those parts are, for people.
    pub(crate) fn divided_parts(&self) -> &'static str {
        if self.groups > 1 { "groups of the scan's channels" } else { "channels of the scan" }
    }

    /// Returns the weights of its products, in a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        self.width.saturating_mul(3 * hidden + 2 * self.step_rank + 2 * self.state)
    }

    /// Returns its parameters in no matrix: convolution, decays, skip, the steps' biases, norms and biases.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        let convolution = self.convolution + u64::from(self.convolution_bias);
        let norms = if self.norms { self.step_rank + 2 * self.state } else { 0 };
        let biases = if self.bias { 2 * self.width + hidden } else { 0 };
        self.width.saturating_mul(convolution + self.state + 2) + norms + biases
    }
}

/// Blocks of attention and MLP whose weights several layers share, in turn (Zamba: Glorioso et al. 2024,
/// arXiv:2405.16712). A block reads the layer's input beside the token's embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedBlock {
    /// Blocks with weights of their own; layers run them in turn.
    pub count: u64,
    /// Rank of the adapters of a layer's own that are added to queries, keys and values.
    pub attention_adapter: Option<u64>,
    /// Rank of the adapter of a layer's own that is added to the MLP's first product.
    pub mlp_adapter: Option<u64>,
}

/// A recurrence by channels over mixes of neighbouring tokens, and an MLP over such mixes with a gate (RWKV 4: Peng et
/// al. 2023, arXiv:2305.13048).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recurrence {
    /// Channels.
    pub width: u64,
}

impl Recurrence {
    /// Numbers of a channel's state: a sum, its weight and the largest exponent.
    pub const STATE: u64 = 3;

    /// Returns the weights of the mixer's products, in a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        4 * hidden.saturating_mul(self.width)
    }

    /// Returns the mixer's parameters in no matrix: decays, weights of the token itself, and three mixes.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        2 * self.width + 3 * hidden
    }
}

/// A short convolution between two gates (LFM2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedConvolution {
    /// Tokens that a result depends on.
    pub reach: u64,
    /// True if products and convolution have biases.
    pub bias: bool,
}

impl GatedConvolution {
    /// Returns the weights of its products, in a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        4 * hidden.saturating_mul(hidden)
    }

    /// Returns the parameters of the convolution, and of all biases.
    #[must_use]
    pub fn vectors(&self, hidden: u64) -> u64 {
        hidden.saturating_mul(self.reach + if self.bias { 5 } else { 0 })
    }
}

/// A vector of an image's time step and class. Each branch gets from it a shift and a scale after its norm, and a gate
/// on its result (adaLN-zero: Peebles and Xie, ICCV 2023, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditioning {
    /// Rows of the table of classes, with the one of images without a class.
    pub rows: u64,
    /// True if every layer makes the vector with embedders of its own, and the head with the first layer's (diffusers
    /// 0.42, `AdaLayerNormZero` and `DiTTransformer2DModel`). Otherwise, one vector serves all layers.
    pub in_layers: bool,
}

impl Conditioning {
    /// Sines and cosines of a time step (diffusers 0.42, `CombinedTimestepLabelEmbeddings`: `num_channels`).
    pub const WAVES: u64 = 256;
    /// Vectors that a layer makes of the conditioning vector: shift, scale and gate of two branches.
    pub const IN_LAYER: u64 = 6;
    /// Vectors that the head makes of it: shift and scale of its norm.
    pub const IN_HEAD: u64 = 2;

    /// Returns the weights of the products of a time step's embedder, in a model of width `hidden`.
    fn embedder_matrices(hidden: u64) -> u64 {
        hidden.saturating_mul(Self::WAVES.saturating_add(hidden))
    }

    /// Returns the vectors that all layers and the head make.
    fn vectors(layers: u64) -> u64 {
        layers.saturating_mul(Self::IN_LAYER).saturating_add(Self::IN_HEAD)
    }

    /// Returns the parameters of all embedders and of the products that make shifts, scales and gates.
    #[must_use]
    pub fn parameters(&self, hidden: u64, layers: u64) -> u64 {
        // Two biases, and the table of classes.
        let each = Self::embedder_matrices(hidden).saturating_add(hidden.saturating_mul(self.rows.saturating_add(2)));
        let embedders = if self.in_layers { layers } else { 1 };
        let product = hidden.saturating_mul(hidden.saturating_add(1));
        each.saturating_mul(embedders).saturating_add(product.saturating_mul(Self::vectors(layers)))
    }

    /// Returns the operations of a training step per image: 6 per weight; 4 for those that read a time step's waves,
    /// which have no gradient.
    #[must_use]
    pub fn operations(&self, hidden: u64, layers: u64) -> u128 {
        let runs = if self.in_layers { layers.saturating_add(1) } else { 1 };
        let [runs, waves, vectors, hidden] = [runs, Self::WAVES, Self::vectors(layers), hidden].map(u128::from);
        runs * hidden * (4 * waves + 6 * hidden) + 6 * hidden * hidden * vectors
    }
}
