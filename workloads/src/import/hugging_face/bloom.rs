//! BLOOM: ALiBi, a norm on the embedding, GELU, biases, a tied head.

use super::ModelFamily;
use super::gpt_neox::{neox_like_model, read_widths};
use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY};
use crate::model::{Dropout, Model, PositionEncoding};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["bloom"],
    keys: &[&[
        "apply_residual_connection_post_layernorm",
        "attention_dropout",
        "hidden_dropout",
        "hidden_size",
        "n_embed",
        "n_head",
        "n_inner",
        "n_layer",
        "num_attention_heads",
        "num_hidden_layers",
        "seq_length",
        "vocab_size",
    ]],
    // BloomConfig states no longest sequence. The published models were trained at 2048 (Le Scao et al. 2022, table 3).
    defaults: &[("seq_length", 2048)],
    synonyms: &[("n_embd", "hidden_size"), ("max_position_embeddings", "seq_length")],
    read: read_bloom,
};

fn read_bloom(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let width = reader.first_given_key(&["hidden_size", "n_embed"]);
    let (hidden, heads) = read_widths(reader, width, reader.first_given_key(&["n_head", "num_attention_heads"]))?;
    reader.forbid_flag(
        "apply_residual_connection_post_layernorm",
        "residuals that start behind the norm are not covered: set it to false",
    )?;
    let residual = reader.read_probability("hidden_dropout", 0.0)?;
    Ok(Model {
        layers: reader.read_dimension(reader.first_given_key(&["n_layer", "num_hidden_layers"]), MAX_LAYERS)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_optional_dimension("n_inner", MAX_FFN)?.unwrap_or(4 * hidden),
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("seq_length", MAX_POSITIONS)?,
        position: PositionEncoding::Alibi,
        embedding_norm: true,
        qkv_bias: true,
        attention_output_bias: true,
        dropout: Dropout {
            attention: reader.read_probability("attention_dropout", 0.0)?,
            residual,
            ..Dropout::default()
        },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        ..neox_like_model(reader, hidden)
    })
}
