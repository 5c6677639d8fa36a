//! DBRX: LayerNorm without biases, grouped queries, and gated experts in every layer. Its files state the sizes of
//! attention and of experts in nested objects ([`super::INNER_OBJECTS`]). Defaults are those of transformers'
//! `DbrxConfig`.

use super::ModelFamily;
use super::experts::read_routed_experts;
use super::gpt_neox::read_widths;
use super::llama::{llama_without_sizes, read_kv_heads};
use super::reader::{ConfigReader, NamedNumber, activation_by_name};
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm};
use crate::variations::Variations;
use serde_json::Value;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["dbrx"],
    keys: &[&[
        "attn_pdrop",
        "capacity_factor",
        "d_model",
        "emb_pdrop",
        "ffn_act_fn",
        "ffn_hidden_size",
        "hidden_size",
        "kv_n_heads",
        "max_seq_len",
        "moe_num_experts",
        "n_heads",
        "n_layers",
        "num_experts_per_tok",
        "num_key_value_heads",
        "resid_pdrop",
        "vocab_size",
    ]],
    defaults: &[("ffn_hidden_size", 3584), ("kv_n_heads", 1), ("max_seq_len", 2048), ("n_heads", 16)],
    synonyms: &[("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers")],
    read: read_dbrx,
};

fn read_dbrx(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let (hidden, heads) = read_widths(reader, "d_model", "n_heads")?;
    let kv_heads = read_kv_heads(reader, "kv_n_heads", NamedNumber { key: "n_heads", value: heads })?;
    // Transformers writes each of these numbers under two keys.
    for (key, own, value) in [("hidden_size", "d_model", hidden), ("num_key_value_heads", "kv_n_heads", kv_heads)] {
        if let Some(other) = reader.read_optional_dimension(key, MAX_WIDTH)?.filter(|other| *other != value) {
            let limit = format!("`{own}` ({value})");
            return Err(reader.value_error(key, other, &limit, "correct one of the two"));
        }
    }
    let model = llama_without_sizes(reader, hidden);
    let activation = match reader.get("ffn_act_fn") {
        None => model.activation,
        Some(value) => value.get("name").and_then(Value::as_str).and_then(activation_by_name).ok_or_else(|| {
            let limit = "an object with the `name` of a nonlinearity, such as silu";
            reader.value_error("ffn_act_fn", value.clone(), limit, "correct it")
        })?,
    };
    Ok(Model {
        layers: reader.read_dimension("n_layers", MAX_LAYERS)?,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn: reader.read_dimension("ffn_hidden_size", MAX_FFN)?,
        experts: Some(read_routed_experts(reader, "moe_num_experts")?),
        activation,
        norm: Norm::LayerNorm,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("max_seq_len", MAX_POSITIONS)?,
        dropout: Dropout {
            embedding: reader.read_probability("emb_pdrop", 0.0)?,
            attention: reader.read_probability("attn_pdrop", 0.0)?,
            residual: reader.read_probability("resid_pdrop", 0.0)?,
            activation: 0.0,
        },
        tied_head: reader.read_flag("tie_word_embeddings", false)?,
        variations: Variations { norm_without_bias: true, ..Variations::default() },
        ..model
    })
}
