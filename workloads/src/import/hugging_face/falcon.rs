//! Falcon: one or a few key/value heads, and rotary positions or ALiBi. Attention and MLP run in parallel after one
//! LayerNorm (7B) or one each (40B).

use super::ModelFamily;
use super::gpt_neox::{neox_like_model, read_widths};
use super::llama::read_kv_heads;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY};
use crate::model::{Dropout, Model, PositionEncoding};
use crate::variations::{ParallelBranches, Variations};
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["falcon"],
    keys: &[&[
        "activation",
        "alibi",
        "attention_dropout",
        "bias",
        "ffn_hidden_size",
        "hidden_dropout",
        "hidden_size",
        "max_position_embeddings",
        "multi_query",
        "n_head",
        "n_layer",
        "new_decoder_architecture",
        "num_attention_heads",
        "num_hidden_layers",
        "num_kv_heads",
        "num_ln_in_parallel_attn",
        "parallel_attn",
        "vocab_size",
    ]],
    defaults: &[("max_position_embeddings", 2048)],
    synonyms: &[
        ("n_embd", "hidden_size"),
        ("intermediate_size", "ffn_hidden_size"),
        ("num_key_value_heads", "num_kv_heads"),
    ],
    read: read_falcon,
};

fn read_falcon(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let key = reader.first_given_key(&["num_attention_heads", "n_head"]);
    let (hidden, heads) = read_widths(reader, "hidden_size", key)?;
    let new = reader.read_flag("new_decoder_architecture", false)?;
    let kv_heads = match (new, reader.read_flag("multi_query", true)?) {
        (true, _) => read_kv_heads(reader, "num_kv_heads", NamedNumber { key, value: heads })?,
        (false, true) => 1,
        (false, false) => heads,
    };
    let norms = reader.read_optional_dimension("num_ln_in_parallel_attn", 2)?.unwrap_or(if new { 2 } else { 1 });
    let branches = if norms == 2 { ParallelBranches::OwnNorms } else { ParallelBranches::OneNorm };
    let bias = reader.read_flag("bias", false)?;
    let residual = reader.read_probability("hidden_dropout", 0.0)?;
    Ok(Model {
        layers: reader.read_dimension(reader.first_given_key(&["num_hidden_layers", "n_layer"]), MAX_LAYERS)?,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn: reader.read_optional_dimension("ffn_hidden_size", MAX_FFN)?.unwrap_or(4 * hidden),
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?,
        position: if reader.read_flag("alibi", false)? { PositionEncoding::Alibi } else { PositionEncoding::Rotary },
        activation: reader.read_activation("activation", ElementwiseFunction::Gelu)?,
        qkv_bias: bias,
        attention_output_bias: bias,
        mlp_bias: bias,
        dropout: Dropout {
            attention: reader.read_probability("attention_dropout", 0.0)?,
            residual,
            ..Dropout::default()
        },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        variations: Variations {
            parallel: (new || reader.read_flag("parallel_attn", true)?).then_some(branches),
            ..Variations::default()
        },
        ..neox_like_model(reader, hidden)
    })
}
