//! MPT: ALiBi, LayerNorm and products without biases, GELU, a tied head.

use super::ModelFamily;
use super::gpt_neox::{neox_like_model, read_widths};
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY};
use crate::model::{Dropout, Model, PositionEncoding};
use crate::variations::Variations;
use serde_json::Value;
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["mpt"],
    keys: &[&[
        "attn_config",
        "d_model",
        "emb_pdrop",
        "expansion_ratio",
        "ffn_config",
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
    let attention = AttentionConfig::new(reader)?;
    let kv_heads = attention.read_kv_heads(heads)?;
    let position = attention.read_position(max_sequence)?;
    let dropped = attention.read_dropout()?;
    let bias = !reader.read_flag("no_bias", true)?;
    let wide = hidden * reader.read_dimension("expansion_ratio", MAX_FFN / hidden)?;
    let FeedForwardConfig { gated, ffn, activation } = read_feed_forward(reader, wide)?;
    let model = Model {
        layers: reader.read_dimension("n_layers", MAX_LAYERS)?,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        ffn,
        gated,
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
    };
    Ok(Model { activation: activation.unwrap_or(model.activation), ..model })
}

/// llm-foundry's `attn_config`.
struct AttentionConfig<'r, 'a> {
    reader: &'r ConfigReader<'a>,
    object: Option<&'r Value>,
}

impl<'r, 'a> AttentionConfig<'r, 'a> {
    /// Reads the object; an absent object means llm-foundry's defaults.
    ///
    /// # Errors
    /// Norms that are not covered.
    fn new(reader: &'r ConfigReader<'a>) -> Result<Self, WorkloadError> {
        let config = Self { reader, object: reader.get("attn_config") };
        if config.is_set("qk_ln", false) {
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
        Ok(config)
    }

    fn get(&self, key: &str) -> Option<&'r Value> {
        self.object.and_then(|config| config.get(key)).filter(|value| !value.is_null())
    }

    fn is_set(&self, key: &str, default: bool) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn read_kv_heads(&self, heads: u64) -> Result<u64, WorkloadError> {
        let groups = match self.get("attn_type").and_then(Value::as_str) {
            Some("multiquery_attention") => 1,
            Some("grouped_query_attention") => self.get("kv_n_heads").and_then(Value::as_u64).unwrap_or(heads),
            _ => heads,
        };
        let kv_heads = groups.clamp(1, MAX_HEADS);
        self.reader.check_divides(
            NamedNumber { key: "attn_config.kv_n_heads", value: kv_heads },
            NamedNumber { key: "n_heads", value: heads },
        )?;
        Ok(kv_heads)
    }

    fn read_position(&self, max_sequence: u64) -> Result<PositionEncoding, WorkloadError> {
        let learned = self.reader.read_flag("learned_pos_emb", true)?;
        Ok(match (self.is_set("alibi", true), self.is_set("rope", false), learned) {
            (true, ..) => PositionEncoding::Alibi,
            (false, true, _) => PositionEncoding::Rotary,
            _ => PositionEncoding::Learned { rows: max_sequence },
        })
    }

    fn read_dropout(&self) -> Result<f64, WorkloadError> {
        let given = self.get("attn_pdrop");
        given.map_or(Some(0.0), Value::as_f64).filter(|p| (0.0..1.0).contains(p)).ok_or_else(|| {
            self.reader.value_error(
                "attn_config.attn_pdrop",
                given.cloned().unwrap_or_default(),
                "a probability at least 0 and below 1",
                "write 0.0 for none",
            )
        })
    }
}

/// The MLP that `ffn_config` describes.
struct FeedForwardConfig {
    gated: bool,
    ffn: u64,
    activation: Option<ElementwiseFunction>,
}

/// Reads llm-foundry's `ffn_config`. Without the key, the MLP has no gate and the width `wide`.
fn read_feed_forward(reader: &ConfigReader<'_>, wide: u64) -> Result<FeedForwardConfig, WorkloadError> {
    let mut found = FeedForwardConfig { gated: false, ffn: wide, activation: None };
    let Some(config) = reader.get("ffn_config") else { return Ok(found) };
    let wrong = |key: &str, value: &Value, limit: &str, cure: &str| {
        let key = if key.is_empty() { "ffn_config".to_owned() } else { format!("ffn_config.{key}") };
        Err(reader.value_error(&key, value.clone(), limit, cure))
    };
    let Some(entries) = config.as_object() else {
        return wrong("", config, "an object", "write it as llm-foundry does");
    };
    for (key, value) in entries.iter().filter(|(_, value)| !value.is_null()) {
        match key.as_str() {
            "ffn_type" => match value.as_str() {
                Some("mptmlp" | "te_ln_mlp") => {}
                Some("mptglu") => found.gated = true,
                _ => return wrong(key, value, "mptmlp, te_ln_mlp or mptglu", "experts are not covered for MPT"),
            },
            "ffn_hidden_size" => match value.as_u64().filter(|n| (1..=MAX_FFN).contains(n)) {
                Some(width) => found.ffn = width,
                None => return wrong(key, value, &format!("a whole number from 1 to {MAX_FFN}"), "correct it"),
            },
            "ffn_act_fn" => {
                let name = value.get("name").and_then(Value::as_str).unwrap_or_default();
                found.activation = match super::reader::activation_by_name(name) {
                    Some(function) => Some(function),
                    None => return wrong(key, value, "a nonlinearity by name, such as gelu or silu", "correct it"),
                };
            }
            "fc_type" => {}
            _ => return wrong(key, value, "absent", "it is not known in this object: leave it out"),
        }
    }
    Ok(found)
}
