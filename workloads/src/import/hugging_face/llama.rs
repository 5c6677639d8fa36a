//! Llama: pre-norm RMSNorm, rotary positions, grouped-query attention, gated MLP. Many families are Llama with a few
//! differences.

use super::ModelFamily;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::layer_list::LayerList;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, NormPlacement, PositionEncoding};
use crate::variations::Variations;
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily =
    ModelFamily { model_types: &["llama"], keys: &[KEYS], defaults: &[], synonyms: SYNONYMS, read: read_llama };

/// The keys that [`read_llama`] reads.
pub(super) const KEYS: &[&str] = &[
    "attention_bias",
    "attention_dropout",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    // Read only for a nested `partial_rotary_factor`; the rotation angles cost nothing.
    "rope_parameters",
    "rope_scaling",
    "vocab_size",
];

pub(super) const SYNONYMS: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("ffn_dim", "intermediate_size"),
];

/// Defaults of transformers for keys that the file of a Llama-like family omits.
#[derive(Debug, Clone, Copy)]
pub(super) struct LlamaDefaults {
    /// True if the head's matrix is the token embedding.
    pub(super) tied: bool,
    /// True if the attention's products have biases.
    pub(super) attention_bias: bool,
    /// The MLP's nonlinearity.
    pub(super) activation: ElementwiseFunction,
    /// The rotated fraction of a head.
    pub(super) rotated: f64,
}

impl LlamaDefaults {
    pub(super) const LLAMA: Self =
        Self { tied: false, attention_bias: false, activation: ElementwiseFunction::Silu, rotated: 1.0 };
}

fn read_llama(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    read_with_defaults(reader, LlamaDefaults::LLAMA)
}

/// Reads a Llama-like model with these defaults.
pub(super) fn read_with_defaults(reader: &ConfigReader<'_>, defaults: LlamaDefaults) -> Result<Model, WorkloadError> {
    let model = read_without_mlp(reader, defaults)?;
    Ok(Model { ffn: reader.read_dimension("intermediate_size", MAX_FFN)?, ..model })
}

/// Reads a Llama-like model without the width of its MLP, for families that state it elsewhere.
pub(super) fn read_without_mlp(reader: &ConfigReader<'_>, defaults: LlamaDefaults) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_attention_heads", MAX_HEADS)?;
    let head_dim = match reader.read_optional_dimension("head_dim", MAX_WIDTH)? {
        Some(dim) => dim,
        // Latent attention has its own head dimensions, which its reader sets.
        None if reader.reads_latent_attention() => (hidden / heads).max(1),
        None => {
            reader.check_divides(
                NamedNumber { key: "num_attention_heads", value: heads },
                NamedNumber { key: "hidden_size", value: hidden },
            )?;
            hidden / heads
        }
    };
    let kv_heads =
        read_kv_heads(reader, "num_key_value_heads", NamedNumber { key: "num_attention_heads", value: heads })?;
    let attention_bias = reader.read_flag("attention_bias", defaults.attention_bias)?;
    let part = reader.read_fraction("partial_rotary_factor", &["rope_parameters", "rope_scaling"], defaults.rotated)?;
    Ok(Model {
        layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
        heads,
        kv_heads,
        head_dim,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?,
        activation: reader.read_activation("hidden_act", defaults.activation)?,
        qkv_bias: attention_bias,
        attention_output_bias: attention_bias,
        mlp_bias: reader.read_flag("mlp_bias", false)?,
        dropout: Dropout { attention: reader.read_probability("attention_dropout", 0.0)?, ..Dropout::default() },
        tied_head: reader.read_flag("tie_word_embeddings", defaults.tied)?,
        variations: Variations { rotated: read_rotated_fraction(head_dim, part), ..Variations::default() },
        ..llama_without_sizes(reader, hidden)
    })
}

/// Reads the number of key/value heads, which must divide `heads`; the default is `heads`.
pub(super) fn read_kv_heads(
    reader: &ConfigReader<'_>,
    key: &'static str,
    heads: NamedNumber<'_>,
) -> Result<u64, WorkloadError> {
    let kv_heads = reader.read_optional_dimension(key, MAX_HEADS)?.unwrap_or(heads.value);
    reader.check_divides(NamedNumber { key, value: kv_heads }, heads)?;
    Ok(kv_heads)
}

/// Returns the number of rotated dimensions of a head; `None` if all are rotated.
pub(super) fn read_rotated_fraction(head_dim: u64, part: f64) -> Option<u64> {
    (part < 1.0).then_some((head_dim as f64 * part) as u64)
}

/// Returns the common part of Llama-like models of width `hidden`; all other sizes are 0.
pub(super) fn llama_without_sizes(reader: &ConfigReader<'_>, hidden: u64) -> Model {
    Model {
        name: reader.name.to_owned(),
        family: reader.model_type.clone(),
        layers: 0,
        hidden,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        ffn: 0,
        experts: None,
        vocabulary: 0,
        vocabulary_multiple: 1,
        max_sequence: 0,
        embedding_width: hidden,
        position: PositionEncoding::Rotary,
        token_types: 0,
        norm: Norm::RmsNorm,
        norm_affine: true,
        norm_placement: NormPlacement::Pre,
        embedding_norm: false,
        final_norm: true,
        activation: ElementwiseFunction::Silu,
        gated: true,
        qkv_bias: false,
        attention_output_bias: false,
        mlp_bias: false,
        causal: true,
        dropout: Dropout::default(),
        tied_head: false,
        head_transform: false,
        head_bias: false,
        variations: Variations::default(),
        list: LayerList::default(),
        documents: Vec::new(),
        assumptions: Vec::new(),
    }
}
