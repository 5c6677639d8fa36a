//! Transformers: the hyper-parameters that decide the cost of a model of any family.

use crate::document_lengths::DocumentLength;
use crate::layer_list::LayerList;
use crate::variations::Variations;
use serde::{Deserialize, Serialize};
use sim::files::carried::Files;
use sim::kernel::ElementwiseFunction;
use std::path::{Path, PathBuf};

/// The built-in models: (name, text of the config.json), sorted by name; generated from the files in
/// `workloads/models`.
static BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/built_in.rs"));

/// Aliases of built-in models: (alias, the built-in model's own name). An alias is the name on Hugging Face, or the
/// name of another model with the same layers.
static OTHER_NAMES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/other_names.rs"));

/// Returns a built-in model's own name and the text of its configuration, given its own name or an alias; `None` for
/// any other name.
pub(crate) fn find_built_in(name: &str) -> Option<(&'static str, &'static str)> {
    let other = OTHER_NAMES.iter().find(|(other, _)| sim::names::are_same_name(other, name));
    let own = other.map_or(name, |(_, own)| own);
    BUILT_IN.iter().find(|(known, _)| sim::names::are_same_name(known, own)).copied()
}

/// The position encoding of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionEncoding {
    /// A learned table, added to the token embedding.
    Learned {
        /// Rows of the table (OPT has two more than its longest sequence).
        rows: u64,
    },
    /// A rotation of queries and keys in every layer; no parameters.
    Rotary,
    /// A bias on the scores that falls with distance, without parameters (ALiBi, Press et al. 2022). T5's table is in
    /// [`crate::variations::Variations::relative_rows`].
    Alibi,
    /// No encoding: scans depend on the order of tokens, and attention layers beside them need no positions (Mamba 2,
    /// Nemotron-H).
    None,
}

/// The kind of normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// Mean and variance, with gain and bias.
    LayerNorm,
    /// Root mean square, with gain only.
    RmsNorm,
}

/// Positions of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// Before attention and before the MLP (GPT-2, Llama).
    Pre,
    /// After each residual sum (BERT, OPT-350m).
    Post,
    /// On the result of attention and of the MLP, before the residual sum (OLMo 2).
    Output,
    /// Before attention and MLP, and again on their results (Gemma 2).
    Sandwich,
}

impl NormPlacement {
    /// Returns whether attention and MLP read a normalised input.
    #[must_use]
    pub fn normalises_before(self) -> bool {
        matches!(self, Self::Pre | Self::Sandwich)
    }

    /// Returns whether the results of attention and MLP are normalised before the residual sum.
    #[must_use]
    pub fn normalises_result(self) -> bool {
        matches!(self, Self::Output | Self::Sandwich)
    }
}

/// Dropout probability per site. At 0, the site has no dropout operator.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Dropout {
    /// On the embedding's output.
    pub embedding: f64,
    /// On the attention probabilities.
    pub attention: f64,
    /// On the outputs of attention and MLP, before the residual sum.
    pub residual: f64,
    /// On the MLP's activation (OPT's `activation_dropout`; 0 in all published models).
    pub activation: f64,
}

/// An expert that processes every token, beside the routed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Its width; the total width if there are several.
    pub ffn: u64,
    /// True if a sigmoid gate scales its result; a separate product makes the gate (Qwen2-MoE).
    pub weighed: bool,
}

/// The limit on the groups that hold a token's experts (DeepSeek-V2, arXiv:2405.04434, section 2.2.2, device-limited
/// routing; DeepSeek-V3, arXiv:2412.19437, section 2.1.2, node-limited routing).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of equal groups of neighbouring experts.
    pub count: u64,
    /// The number of groups from which all experts of a token are chosen.
    pub chosen: u64,
}

/// A mixture of experts that replaces every layer's MLP.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Experts {
    /// Experts per layer; each is an MLP of the model's width `ffn`.
    pub count: u64,
    /// Experts per token.
    pub top_k: u64,
    /// The capacity of an expert relative to its even share of the tokens (GShard). `None` if tokens are neither
    /// dropped nor padded.
    pub capacity_factor: Option<f64>,
    /// Tokens of the fullest expert-parallel device relative to an even share. All other devices wait for that device.
    /// It has no effect with a capacity factor. `None` means an even share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<f64>,
    /// The shared expert.
    #[serde(default)]
    pub shared: Option<SharedExpert>,
    /// True if the router's product has a bias.
    #[serde(default)]
    pub router_bias: bool,
    /// Width of the vectors that experts read and write, if narrower than the hidden vectors: products before the
    /// dispatch and after the combination change the width (Nemotron 3's latent experts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<u64>,
    /// True if the router's input, the routed experts' input and result, and the shared expert's result have norms of
    /// their own (Gemma 4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_norms: bool,
    /// The limit on the groups of a token's experts; `None` if any experts may be chosen together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<ExpertGroups>,
}

impl Experts {
    /// Returns the number of token slots over all experts. Without a capacity, it is `top_k` per token, scaled by the
    /// imbalance. With a capacity, it is the capacity of all experts.
    #[must_use]
    pub fn expert_slots(&self, tokens: u64) -> u64 {
        let even = tokens.saturating_mul(self.top_k);
        match self.capacity_factor {
            None => match self.imbalance {
                None => even,
                Some(factor) => (factor * even as f64).ceil() as u64,
            },
            Some(factor) => {
                let capacity = (factor * even as f64 / self.count.max(1) as f64).ceil() as u64;
                capacity.saturating_mul(self.count)
            }
        }
    }
}

/// A transformer, described by the numbers that decide its cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The user's name for it: a built-in name or the path of its file.
    pub name: String,
    /// The family that it was read as: Hugging Face's `model_type`.
    pub family: String,
    /// Number of layers. If layers differ, it is the number of repetitions of the block in [`Self::list`].
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key/value heads (fewer than `heads` under grouped-query attention).
    pub kv_heads: u64,
    /// Dimension of a head; `heads * head_dim` is `hidden` in most models.
    pub head_dim: u64,
    /// Width of the MLP, or of one expert.
    pub ffn: u64,
    /// The experts that replace the MLP; `None` in dense models.
    pub experts: Option<Experts>,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// The embedding's rows are padded to a multiple of this times the tensor-parallel degree (Megatron's
    /// `make_vocab_size_divisible_by`; 1 if the model does not say).
    pub vocabulary_multiple: u64,
    /// The longest sequence that the model was made for, in tokens; the default sequence length in training.
    pub max_sequence: u64,
    /// Width of the token embedding (OPT's `word_embed_proj_dim`). If it differs from `hidden`, one projection follows
    /// the embedding and another precedes the head.
    pub embedding_width: u64,
    /// Kind of position encoding.
    pub position: PositionEncoding,
    /// Rows of BERT's token-type table; 0 without one.
    pub token_types: u64,
    /// Kind of normalisation.
    pub norm: Norm,
    /// True if norms have parameters (OPT's `layer_norm_elementwise_affine`).
    pub norm_affine: bool,
    /// Positions of the layers' norms.
    pub norm_placement: NormPlacement,
    /// True if the embedding's output is normalised (BERT).
    pub embedding_norm: bool,
    /// True if the last layer's output is normalised (pre-norm families).
    pub final_norm: bool,
    /// The MLP's nonlinearity.
    pub activation: ElementwiseFunction,
    /// True if the MLP is gated: activation(gate) * up (Llama).
    pub gated: bool,
    /// True if query, key and value have biases.
    pub qkv_bias: bool,
    /// True if the attention's output projection has a bias.
    pub attention_output_bias: bool,
    /// True if the MLP's products have biases.
    pub mlp_bias: bool,
    /// True if a token sees only itself and earlier ones.
    pub causal: bool,
    /// Dropout probabilities.
    pub dropout: Dropout,
    /// True if the head's matrix is the token embedding.
    pub tied_head: bool,
    /// True if the head begins with a product, an activation and a norm (BERT's masked-language-model head).
    pub head_transform: bool,
    /// True if the head's logits have a bias (BERT).
    pub head_bias: bool,
    /// Differences from GPT-2, BERT and Llama.
    #[serde(default)]
    pub variations: Variations,
    /// The lengths of the documents that are packed into sequences. It is empty if attention covers whole sequences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<DocumentLength>,
    /// The list of layers; empty if the fields above describe every layer.
    #[serde(default, skip_serializing_if = "LayerList::is_empty")]
    pub list: LayerList,
    /// Keys of the model's file that are ignored, with the assumption made instead; one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

/// Returns the names of the built-in models, sorted.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// Returns the text of a configuration: a built-in model's by name, or a `config.json` by its path or folder. Returns
/// `None` if there is no such model or file. The text includes keys that do not affect the work, such as the base of
/// rotary embeddings.
#[must_use]
pub fn config_text(name_or_path: &str, files: &Files) -> Option<String> {
    if let Some((_, text)) = find_built_in(name_or_path) {
        return Some(text.to_owned());
    }
    files.read(&config_file(Path::new(name_or_path), files)).ok()
}

/// Returns the path of a configuration's file, given that path or its folder.
#[must_use]
pub fn config_file(path: &Path, files: &Files) -> PathBuf {
    let inside = path.join("config.json");
    if path.is_dir() || files.text(&inside).is_some() { inside } else { path.to_path_buf() }
}

/// Returns the aliases of built-in models: (alias, the model's own name). An alias is the name on Hugging Face, or the
/// name of another model with the same layers.
pub fn other_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    OTHER_NAMES.iter().copied()
}

/// Returns whether a built-in model has this name or alias.
#[must_use]
pub fn is_built_in(name: &str) -> bool {
    find_built_in(name).is_some()
}
