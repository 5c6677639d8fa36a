//! What is trained: the hyper-parameters of a transformer that decide its cost, whatever family it comes from.

use crate::layer_list::LayerList;
use crate::variations::Variations;
use serde::{Deserialize, Serialize};
use sim::kernel::ElementwiseFunction;
use std::path::{Path, PathBuf};

/// The built-in models: (name, text of the config.json), sorted by name; the files of `workloads/models`.
pub(crate) static BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/built_in.rs"));

/// How positions enter the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionEncoding {
    /// A learned table of this many rows, added to the token embedding.
    Learned {
        /// Rows of the table (OPT keeps two more than its longest sequence).
        rows: u64,
    },
    /// A rotation of queries and keys in every layer; no parameters.
    Rotary,
    /// A bias on the scores that falls with distance (ALiBi, Press et al. 2022; T5's table is in
    /// [`crate::variations::Variations::relative_rows`]); no parameters.
    Alibi,
    /// Nothing: scans know the order, and attention beside them needs no more (Mamba 2, Nemotron-H).
    None,
}

/// The normalisation of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// Mean and variance, with gain and bias.
    LayerNorm,
    /// Root mean square, with gain only.
    RmsNorm,
}

/// Where a layer normalises.
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
    /// Whether attention and MLP read normalised input.
    #[must_use]
    pub fn normalises_before(self) -> bool {
        matches!(self, Self::Pre | Self::Sandwich)
    }

    /// Whether their results are normalised before the residual sum.
    #[must_use]
    pub fn normalises_result(self) -> bool {
        matches!(self, Self::Output | Self::Sandwich)
    }
}

/// Probability of dropping, per site; 0 means that the operator does not exist.
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

/// An expert that every token goes to, beside those that it is routed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Its width; of all of them together where there are several.
    pub ffn: u64,
    /// Whether its result is weighed by the sigmoid of a product of its own (Qwen2-MoE).
    pub weighed: bool,
}

/// How a router limits the groups that a token's experts are in (DeepSeek-V2, arXiv:2405.04434, section 2.2.2, device-limited routing; DeepSeek-V3,
/// arXiv:2412.19437, section 2.1.2, node-limited routing).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Equal groups of experts side by side.
    pub count: u64,
    /// Groups that hold all experts of a token.
    pub chosen: u64,
}

/// A mixture of experts in place of every layer's MLP.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Experts {
    /// Experts of a layer; each is an MLP of the model's width `ffn`.
    pub count: u64,
    /// Experts that a token goes to.
    pub top_k: u64,
    /// How much room an expert has compared with its even share of the tokens (GShard); none where no token is dropped and none
    /// is padded.
    pub capacity_factor: Option<f64>,
    /// How many tokens the fullest expert-parallel device has compared with an even share, where no capacity limits them: what all others wait for.
    /// None is an even share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<f64>,
    /// The expert that every token goes to.
    #[serde(default)]
    pub shared: Option<SharedExpert>,
    /// Whether the router's product has a bias.
    #[serde(default)]
    pub router_bias: bool,
    /// What limits the experts of a token to few groups; none where any may be chosen together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<ExpertGroups>,
}

impl Experts {
    /// Places that `tokens` tokens take at their experts, all experts together: `top_k` each, as uneven as routing is, or every expert's capacity.
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

/// A transformer, by the numbers that decide its cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// What the user called it: a built-in name or the path of its file.
    pub name: String,
    /// The family it was read as: Hugging Face's `model_type`.
    pub family: String,
    /// Layers; where they differ, how often the block of layers in [`Self::list`] follows itself.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key/value heads (fewer than `heads` under grouped-query attention).
    pub kv_heads: u64,
    /// Dimension of a head; `heads * head_dim` is `hidden` in most models.
    pub head_dim: u64,
    /// Width of the MLP, of one expert where there are several.
    pub ffn: u64,
    /// The experts in place of the MLP; none in dense models.
    pub experts: Option<Experts>,
    /// Tokens in the vocabulary.
    pub vocabulary: u64,
    /// The embedding's rows are padded to a multiple of this times the tensor-parallel degree
    /// (Megatron's `make_vocab_size_divisible_by`; 1 where the model does not say).
    pub vocabulary_multiple: u64,
    /// The longest sequence it was made for, and the default length in training.
    pub max_sequence: u64,
    /// Width of the token embedding (OPT's `word_embed_proj_dim`): where it is not `hidden`, projections lead in and out.
    pub embedding_width: u64,
    /// How positions enter.
    pub position: PositionEncoding,
    /// Rows of BERT's token-type table; 0 where there is none.
    pub token_types: u64,
    /// Which normalisation.
    pub norm: Norm,
    /// Whether norms have parameters (OPT's `layer_norm_elementwise_affine`).
    pub norm_affine: bool,
    /// Where layers normalise.
    pub norm_placement: NormPlacement,
    /// Whether the embedding's output is normalised (BERT).
    pub embedding_norm: bool,
    /// Whether the last layer's output is normalised (pre-norm families).
    pub final_norm: bool,
    /// The MLP's nonlinearity.
    pub activation: ElementwiseFunction,
    /// Whether the MLP is gated: activation(gate) * up (Llama).
    pub gated: bool,
    /// Whether query, key, value have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub attention_output_bias: bool,
    /// Whether the MLP's products have biases.
    pub mlp_bias: bool,
    /// Whether a token only sees earlier ones.
    pub causal: bool,
    /// Dropout probabilities.
    pub dropout: Dropout,
    /// Whether the head's matrix is the token embedding.
    pub tied_head: bool,
    /// Whether the head begins with a product, an activation and a norm (BERT's masked-language-model head).
    pub head_transform: bool,
    /// Whether the head's logits have a bias (BERT).
    pub head_bias: bool,
    /// What its family does otherwise than GPT-2, BERT and Llama.
    #[serde(default)]
    pub variations: Variations,
    /// Which layers there are, where they differ.
    #[serde(default, skip_serializing_if = "LayerList::is_empty")]
    pub list: LayerList,
    /// What its file says that is not modelled, and what was taken instead, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

/// The built-in models' names, sorted.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// The text of a built-in model's configuration, by name, or of a `config.json` by path (or by the folder that holds it); `None` where there is
/// none. It has what says nothing of the work, such as the base of rotary embeddings.
#[must_use]
pub fn config_text(name_or_path: &str) -> Option<String> {
    if let Some((_, text)) = BUILT_IN.iter().find(|(name, _)| sim::names::are_same_name(name, name_or_path)) {
        return Some((*text).to_owned());
    }
    sim::files::text::read_text(&config_file(Path::new(name_or_path))).ok()
}

/// The file of a configuration that is named by its path, or by the folder that holds it.
#[must_use]
pub fn config_file(path: &Path) -> PathBuf {
    let inside = path.join("config.json");
    if path.is_dir() || sim::files::text::is_kept(&inside) { inside } else { path.to_path_buf() }
}

/// Whether a model is named that is built in.
#[must_use]
pub fn is_built_in(name: &str) -> bool {
    built_in_names().any(|known| sim::names::are_same_name(known, name))
}
