//! Falcon: one or few key/value heads, rotary positions or ALiBi, attention and MLP beside each other behind one LayerNorm (7B) or one each (40B).

use super::Family;
use super::gpt_neox::{plain, widths};
use super::llama::kv_heads;
use super::reader::Reader;
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY};
use crate::model::{Dropout, Model, Position};
use crate::variations::{ParallelBranches, Variations};
use sim::kernel::Function;

pub(super) const FAMILY: Family = Family {
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
    synonyms: &[("n_embd", "hidden_size"), ("intermediate_size", "ffn_hidden_size"), ("num_key_value_heads", "num_kv_heads")],
    read,
};

fn read(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let key = reader.word(&["num_attention_heads", "n_head"]);
    let (hidden, heads) = widths(reader, "hidden_size", key)?;
    let new = reader.flag("new_decoder_architecture", false)?;
    let kv_heads = match (new, reader.flag("multi_query", true)?) {
        (true, _) => kv_heads(reader, "num_kv_heads", (key, heads))?,
        (false, true) => 1,
        (false, false) => heads,
    };
    let norms = reader.optional_dimension("num_ln_in_parallel_attn", 2)?.unwrap_or(if new { 2 } else { 1 });
    let branches = if norms == 2 { ParallelBranches::OwnNorms } else { ParallelBranches::OneNorm };
    let bias = reader.flag("bias", false)?;
    let residual = reader.probability("hidden_dropout", 0.0)?;
    Ok(Model {
        layers: reader.dimension(reader.word(&["num_hidden_layers", "n_layer"]), MAX_LAYERS)?,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn: reader.optional_dimension("ffn_hidden_size", MAX_FFN)?.unwrap_or(4 * hidden),
        vocabulary: reader.dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.vocabulary_multiple()?,
        max_sequence: reader.dimension("max_position_embeddings", MAX_POSITIONS)?,
        position: if reader.flag("alibi", false)? { Position::Alibi } else { Position::Rotary },
        activation: reader.activation("activation", Function::Gelu)?,
        qkv_bias: bias,
        attention_output_bias: bias,
        mlp_bias: bias,
        dropout: Dropout { attention: reader.probability("attention_dropout", 0.0)?, residual, ..Dropout::default() },
        tied_head: reader.flag("tie_word_embeddings", true)?,
        variations: Variations {
            parallel: (new || reader.flag("parallel_attn", true)?).then_some(branches),
            ..Variations::default()
        },
        ..plain(reader, hidden)
    })
}
