//! What is trained: the hyper-parameters of a transformer that decide its cost, whatever family it comes from.

use crate::error::WorkloadError;
use crate::import::hugging_face;
use serde::{Deserialize, Serialize};
use sim::kernel::Function;
use sim::units::Flops;
use std::path::Path;

/// The built-in models: (name, text of the config.json), sorted by name; the files of `workloads/models`.
static BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/built_in.rs"));

/// How positions enter the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// A learned table of this many rows, added to the token embedding.
    Learned {
        /// Rows of the table (OPT keeps two more than its longest sequence).
        rows: u64,
    },
    /// A rotation of queries and keys in every layer; no parameters.
    Rotary,
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

/// A mixture of experts in place of every layer's MLP.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts of a layer; each is an MLP of the model's width `ffn`.
    pub count: u64,
    /// Experts that a token goes to.
    pub top_k: u64,
    /// How much room an expert has compared with its even share of the tokens (GShard); none where no token is dropped and none
    /// is padded.
    pub capacity_factor: Option<f64>,
}

impl Experts {
    /// Places that `tokens` tokens take at their experts, all experts together: `top_k` each, or every expert's capacity.
    #[must_use]
    pub fn slots(&self, tokens: u64) -> u64 {
        let even = tokens.saturating_mul(self.top_k);
        match self.capacity_factor {
            None => even,
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
    /// Transformer layers.
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
    pub position: Position,
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
    pub activation: Function,
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
}

/// The built-in models' names, sorted.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

impl Model {
    /// A built-in model by name, or a `config.json` by path (or by the folder that holds it).
    ///
    /// # Errors
    /// Where the name is neither built in nor a file, and where the file is not a usable configuration.
    pub fn load(name_or_path: &str) -> Result<Self, WorkloadError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| sim::names::same(name, name_or_path)) {
            return hugging_face::parse(name, name, text);
        }
        let path = Path::new(name_or_path);
        if path.exists() {
            return Self::from_file(path);
        }
        Err(WorkloadError::unknown_model(name_or_path, built_in_names()))
    }

    /// A `config.json` in Hugging Face's format; a folder means the `config.json` in it.
    ///
    /// # Errors
    /// Where the file cannot be read or is not a usable configuration.
    pub fn from_file(path: &Path) -> Result<Self, WorkloadError> {
        let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
        let place = file.display().to_string();
        let text = sim::files::text::read(&file)
            .map_err(|e| WorkloadError::Unreadable { file: place.clone(), reason: e.to_string() })?;
        hugging_face::parse(&place, &place, &text)
    }

    /// Width of all query heads together.
    #[must_use]
    pub fn query_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    #[must_use]
    pub fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// The embedding's rows on `tensor_parallel` devices: the vocabulary rounded up to a multiple of
    /// `vocabulary_multiple * tensor_parallel` (Megatron-LM, `_vocab_size_with_padding`).
    #[must_use]
    pub fn padded_vocabulary(&self, tensor_parallel: u32) -> u64 {
        self.vocabulary.next_multiple_of(self.vocabulary_multiple.saturating_mul(u64::from(tensor_parallel)).max(1))
    }

    /// Weights of a layer that take part in matrix products.
    #[must_use]
    pub fn layer_matrix_parameters(&self) -> u64 {
        self.layer_matrices(|experts| experts.count)
    }

    /// Weights of a layer that one token meets in matrix products: of the experts only those it goes to.
    #[must_use]
    pub fn active_layer_matrix_parameters(&self) -> u64 {
        self.layer_matrices(|experts| experts.top_k)
    }

    fn layer_matrices(&self, met: impl Fn(Experts) -> u64) -> u64 {
        let attention = self.hidden.saturating_mul(2 * (self.query_width() + self.kv_width()));
        let products = if self.gated { 3 } else { 2 };
        let mlp = self.hidden.saturating_mul(products * self.ffn);
        let mlps = self
            .experts
            .map_or(mlp, |experts| mlp.saturating_mul(met(experts)).saturating_add(self.hidden.saturating_mul(experts.count)));
        attention.saturating_add(mlps)
    }

    /// Weights of all matrices, embedding included, in 128 bits: what [`crate::limits::MAX_WEIGHTS`] bounds.
    pub(crate) fn weights(&self) -> u128 {
        let layers = u128::from(self.layers) * u128::from(self.layer_matrix_parameters());
        layers + 2 * u128::from(self.embedding_width.max(self.hidden)) * u128::from(self.vocabulary)
    }

    /// Elements of the largest tensor that `tokens` tokens make, scores apart: what [`crate::limits::MAX_ELEMENTS`] bounds.
    pub(crate) fn largest_tensor(&self, tokens: u64) -> u128 {
        let places = self.experts.map_or(tokens, |experts| experts.slots(tokens).max(tokens));
        let mlp = 2 * u128::from(places) * u128::from(self.ffn.max(self.hidden));
        let attention = u128::from(self.query_width()) + 2 * u128::from(self.kv_width());
        mlp.max(u128::from(tokens) * attention.max(self.vocabulary.into()))
    }

    /// Weights of the whole model that take part in matrix products, with `vocabulary_rows` logits per token: layers,
    /// head, BERT's head transform and OPT's projections. The embedding's lookup multiplies nothing.
    #[must_use]
    pub fn matrix_parameters(&self, vocabulary_rows: u64) -> u64 {
        self.with_layers(self.layer_matrix_parameters(), vocabulary_rows)
    }

    /// Weights of the whole model that one token meets in matrix products: [`Self::matrix_parameters`] less the experts that it does
    /// not go to.
    #[must_use]
    pub fn active_matrix_parameters(&self, vocabulary_rows: u64) -> u64 {
        self.with_layers(self.active_layer_matrix_parameters(), vocabulary_rows)
    }

    fn with_layers(&self, per_layer: u64, vocabulary_rows: u64) -> u64 {
        let transform = if self.head_transform { self.hidden * self.hidden } else { 0 };
        let projections = if self.embedding_width == self.hidden { 0 } else { 2 * self.embedding_width * self.hidden };
        let logits = self.embedding_width.saturating_mul(vocabulary_rows);
        self.layers.saturating_mul(per_layer).saturating_add(logits + transform + projections)
    }

    /// All trained parameters, the vocabulary without padding, a tied head's matrix once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let norm = match (self.norm_affine, self.norm) {
            (false, _) => 0,
            (true, Norm::LayerNorm) => 2 * self.hidden,
            (true, Norm::RmsNorm) => self.hidden,
        };
        let if_so = |condition: bool, count: u64| if condition { count } else { 0 };
        let layer_biases = if_so(self.qkv_bias, self.query_width() + 2 * self.kv_width())
            + if_so(self.attention_output_bias, self.hidden)
            + if_so(self.mlp_bias, if_so(self.gated, self.ffn) + self.ffn + self.hidden);
        let positions = match self.position {
            Position::Learned { rows } => rows,
            Position::Rotary => 0,
        };
        let tables = (positions + self.token_types).saturating_mul(self.hidden);
        let norms = if_so(self.embedding_norm, norm) + if_so(self.final_norm, norm) + if_so(self.head_transform, norm);
        let head_biases = if_so(self.head_transform, self.hidden) + if_so(self.head_bias, self.vocabulary);
        let untied_table = if_so(!self.tied_head, self.embedding_width.saturating_mul(self.vocabulary));
        let layers = self.layers.saturating_mul(layer_biases + 2 * norm);
        self.matrix_parameters(self.vocabulary).saturating_add(layers + tables + norms + head_biases + untied_table)
    }

    /// The closed form of a training step's matrix operations, forward and both gradients, without recomputation and
    /// with all scores counted (Megatron's and PaLM's convention for model FLOPs, causal or not):
    /// 6 * matrix parameters that a token meets * tokens, and 12 * layers * query width * sequence per token for scores and context.
    /// For GPT this is 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) (Narayanan et al. 2021, without recomputation's quarter).
    #[must_use]
    pub fn training_flops(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64) -> Flops {
        self.flops_over(sequences, sequence_length, vocabulary_rows, u128::from(sequence_length))
    }

    /// [`Self::training_flops`] of the scores that the result depends on: a token of a causal model sees (s + 1) / 2 tokens on average. What
    /// utilisation divides: a kernel that skips the masked half would pass 100 % of its peak by the convention that counts all scores.
    #[must_use]
    pub fn necessary_training_flops(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64) -> Flops {
        let seen = if self.causal { u128::from(sequence_length).div_ceil(2) } else { u128::from(sequence_length) };
        self.flops_over(sequences, sequence_length, vocabulary_rows, seen)
    }

    /// The closed form with `seen` tokens per token in scores and context.
    fn flops_over(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64, seen: u128) -> Flops {
        let tokens = u128::from(sequences) * u128::from(sequence_length);
        let products = 6 * u128::from(self.active_matrix_parameters(vocabulary_rows));
        let attention = 12 * u128::from(self.layers) * u128::from(self.query_width()) * seen;
        Flops(tokens * (products + attention))
    }
}
