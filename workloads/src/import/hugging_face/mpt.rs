//! MPT: ALiBi, LayerNorm and products without biases, GELU, a tied head.

use super::ModelFamily;
use super::gpt_neox::{neox_like_model, read_widths};
use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY};
use crate::model::{Dropout, Model, PositionEncoding};
use crate::variations::Variations;
use serde_json::Value;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["mpt"],
    keys: &[&[
        "attn_config",
        "d_model",
        "emb_pdrop",
        "expansion_ratio",
        "learned_pos_emb",
        "max_seq_len",
        "n_heads",
        "n_layers",
        "no_bias",
        "norm_type",
        "resid_pdrop",
        "vocab_size",
    ]],
    defaults: &[("expansion_ratio", 4), ("max_seq_len", 2048)],
    synonyms: &[("hidden_size", "d_model"), ("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers")],
    read: read_mpt,
};

fn read_mpt(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let (hidden, heads) = read_widths(reader, "d_model", "n_heads")?;
    let max_sequence = reader.read_dimension("max_seq_len", MAX_POSITIONS)?;
    let attention = reader.get("attn_config");
    let inner = |key: &str| attention.and_then(|config| config.get(key)).filter(|value| !value.is_null());
    let set = |key: &str, default| inner(key).and_then(Value::as_bool).unwrap_or(default);
    if set("qk_ln", false) {
        return Err(reader.value_error(
            "attn_config.qk_ln",
            true,
            "false",
            "norms of queries and keys are not covered for MPT: set it to false",
        ));
    }
    if let Some(norm) = reader.get("norm_type").and_then(Value::as_str).filter(|norm| !norm.contains("layernorm")) {
        return Err(reader.value_error("norm_type", norm, "a LayerNorm", "other norms are not covered for MPT"));
    }
    let groups = match inner("attn_type").and_then(Value::as_str) {
        Some("multiquery_attention") => 1,
        Some("grouped_query_attention") => inner("kv_n_heads").and_then(Value::as_u64).unwrap_or(heads),
        _ => heads,
    };
    let kv_heads = groups.clamp(1, MAX_HEADS);
    reader.check_divides(("attn_config.kv_n_heads", kv_heads), ("n_heads", heads))?;
    let position = match (set("alibi", true), set("rope", false), reader.read_flag("learned_pos_emb", true)?) {
        (true, ..) => PositionEncoding::Alibi,
        (false, true, _) => PositionEncoding::Rotary,
        _ => PositionEncoding::Learned { rows: max_sequence },
    };
    let dropped = inner("attn_pdrop").map_or(Some(0.0), Value::as_f64).filter(|p| (0.0..1.0).contains(p));
    let Some(dropped) = dropped else {
        let given = inner("attn_pdrop").cloned().unwrap_or_default();
        return Err(reader.value_error(
            "attn_config.attn_pdrop",
            given,
            "a probability at least 0 and below 1",
            "write 0.0 for none",
        ));
    };
    let bias = !reader.read_flag("no_bias", true)?;
    let ratio = reader.read_dimension("expansion_ratio", MAX_FFN / hidden)?;
    Ok(Model {
        layers: reader.read_dimension("n_layers", MAX_LAYERS)?,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn: hidden * ratio,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence,
        position,
        qkv_bias: bias,
        attention_output_bias: bias,
        mlp_bias: bias,
        dropout: Dropout {
            embedding: reader.read_probability("emb_pdrop", 0.0)?,
            attention: dropped,
            residual: reader.read_probability("resid_pdrop", 0.0)?,
            activation: 0.0,
        },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        variations: Variations { norm_without_bias: !bias, ..Variations::default() },
        ..neox_like_model(reader, hidden)
    })
}
