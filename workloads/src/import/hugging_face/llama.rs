//! Llama: pre-norm RMSNorm, rotary positions, grouped-query attention, gated MLP.

use super::Family;
use super::reader::Reader;
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, NormPlacement, Position};
use sim::kernel::Function;

pub(super) const FAMILY: Family = Family {
    model_types: &["llama"],
    keys: &[
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
        "vocab_size",
    ],
    // A rotation costs the same whatever its angles are: what sets them is not looked at, only how much of a head is rotated is.
    irrelevant: &[
        "is_llama_config",
        "max_sequence_length",
        "pretraining_tp",
        "rms_norm_eps",
        "rope_interleaved",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
    ],
    synonyms: &[
        ("n_embd", "hidden_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("n_kv_heads", "num_key_value_heads"),
        ("ffn_dim", "intermediate_size"),
    ],
    read,
};

pub(super) fn read(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.dimension("num_attention_heads", MAX_HEADS)?;
    let head_dim = match reader.optional_dimension("head_dim", MAX_WIDTH)? {
        Some(dim) => dim,
        None => {
            reader.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
            hidden / heads
        }
    };
    let kv_heads = reader.optional_dimension("num_key_value_heads", MAX_HEADS)?.unwrap_or(heads);
    reader.divides(("num_key_value_heads", kv_heads), ("num_attention_heads", heads))?;
    let cure = "a part of a head cannot be rotated here: remove it, which costs the rotation of whole heads";
    reader.require_one("partial_rotary_factor", &["rope_parameters", "rope_scaling"], cure)?;
    let attention_bias = reader.flag("attention_bias", false)?;
    Ok(Model {
        name: reader.name.to_owned(),
        family: reader.model_type.clone(),
        layers: reader.dimension("num_hidden_layers", MAX_LAYERS)?,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn: reader.dimension("intermediate_size", MAX_FFN)?,
        experts: None,
        vocabulary: reader.dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.vocabulary_multiple()?,
        max_sequence: reader.dimension("max_position_embeddings", MAX_POSITIONS)?,
        embedding_width: hidden,
        position: Position::Rotary,
        token_types: 0,
        norm: Norm::RmsNorm,
        norm_affine: true,
        norm_placement: NormPlacement::Pre,
        embedding_norm: false,
        final_norm: true,
        activation: reader.activation("hidden_act", Function::Silu)?,
        gated: true,
        qkv_bias: attention_bias,
        attention_output_bias: attention_bias,
        mlp_bias: reader.flag("mlp_bias", false)?,
        causal: true,
        dropout: Dropout { attention: reader.probability("attention_dropout", 0.0)?, ..Dropout::default() },
        tied_head: reader.flag("tie_word_embeddings", false)?,
        head_transform: false,
        head_bias: false,
    })
}
