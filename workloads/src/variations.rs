//! What families of transformers do otherwise than GPT-2, BERT and Llama. The default is what those three do.

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

/// The first layers, where they have an MLP in place of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadingDense {
    /// How many.
    pub layers: u64,
    /// Width of their MLP.
    pub ffn: u64,
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
    /// The first layers, where they have no experts.
    pub leading_dense: Option<LeadingDense>,
}
