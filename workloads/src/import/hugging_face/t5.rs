//! T5 (Raffel et al. 2020): an encoder and a decoder with cross attention, RMSNorm and no biases. Relative positions
//! are a table of score biases that each side's layers share; every layer of umT5 has its own. T5 1.1 and mT5 have
//! gated MLPs and an untied head.

use super::ModelFamily;
use super::llama::llama_without_sizes;
use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::layer_list::{EncoderDecoderSide, LayerKind, LayerList};
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, PositionEncoding};
use crate::variations::Variations;
use serde_json::Value;
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["t5", "mt5", "umt5"],
    keys: &[&[
        "d_ff",
        "d_kv",
        "d_model",
        "dense_act_fn",
        "dropout_rate",
        "feed_forward_proj",
        "is_gated_act",
        "n_positions",
        "num_decoder_layers",
        "num_heads",
        "num_layers",
        "relative_attention_max_distance",
        "relative_attention_num_buckets",
        "vocab_size",
    ]],
    defaults: &[("n_positions", 512), ("relative_attention_num_buckets", 32)],
    synonyms: &[("hidden_size", "d_model"), ("intermediate_size", "d_ff"), ("num_hidden_layers", "num_layers")],
    read: read_t5,
};

fn read_t5(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("d_model", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_heads", MAX_HEADS)?;
    let encoder = reader.read_dimension("num_layers", MAX_LAYERS)?;
    let (gated, activation) = read_feed_forward(reader)?;
    reader.read_optional_dimension("relative_attention_max_distance", MAX_POSITIONS)?;
    let rate = reader.read_probability("dropout_rate", 0.1)?;
    let max_sequence = reader.read_optional_dimension("n_positions", MAX_POSITIONS)?.unwrap_or(512);
    reader.note_assumption(format!(
        "the decoder's sequences are as long as the encoder's ({max_sequence} tokens by default); the encoder stays \
         on a pipeline's first stage"
    ));
    let leading = vec![LayerKind { side: EncoderDecoderSide::Encoder, ..LayerKind::default() }; encoder as usize];
    Ok(Model {
        layers: reader.read_optional_dimension("num_decoder_layers", MAX_LAYERS)?.unwrap_or(encoder),
        heads,
        kv_heads: heads,
        head_dim: reader.read_dimension("d_kv", MAX_WIDTH)?,
        ffn: reader.read_dimension("d_ff", MAX_FFN)?,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence,
        position: PositionEncoding::Alibi,
        activation,
        gated,
        dropout: Dropout { embedding: rate, attention: rate, residual: rate, activation: rate },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        variations: Variations {
            side: EncoderDecoderSide::Decoder,
            relative_in_layers: reader.model_type == "umt5",
            relative_rows: reader.read_optional_dimension("relative_attention_num_buckets", MAX_WIDTH)?.unwrap_or(32),
            ..Variations::default()
        },
        list: LayerList { leading, ..LayerList::default() },
        ..llama_without_sizes(reader, hidden)
    })
}

/// MLPs of the family by `feed_forward_proj`: (name, true if gated, nonlinearity).
const FEED_FORWARDS: [(&str, bool, ElementwiseFunction); 3] = [
    ("relu", false, ElementwiseFunction::Relu),
    ("gated-gelu", true, ElementwiseFunction::Gelu),
    ("gated-silu", true, ElementwiseFunction::Silu),
];

/// Reads the MLP's gate and nonlinearity. `is_gated_act` and `dense_act_fn`, which transformers derives from
/// `feed_forward_proj`, must agree with it.
fn read_feed_forward(reader: &ConfigReader<'_>) -> Result<(bool, ElementwiseFunction), WorkloadError> {
    let key = "feed_forward_proj";
    reader.refuse_null(key)?;
    // Only T5 has an ungated MLP by default.
    let usual = Value::from(if reader.model_type == "t5" { "relu" } else { "gated-gelu" });
    let value = reader.get(key).unwrap_or(&usual);
    let known = FEED_FORWARDS.iter().find(|(name, ..)| value.as_str() == Some(name));
    let Some(&(name, gated, activation)) = known else {
        let limit = "\"relu\", \"gated-gelu\" or \"gated-silu\"";
        return Err(reader.value_error(key, value.clone(), limit, "other MLPs are not covered in this family"));
    };
    let agrees = format!("must agree with `{key}` (\"{name}\"): correct one of the two");
    if reader.read_flag("is_gated_act", gated)? != gated {
        return Err(reader.value_error("is_gated_act", !gated, &gated.to_string(), &agrees));
    }
    if reader.read_activation("dense_act_fn", activation)? != activation {
        let given = reader.get("dense_act_fn").cloned().unwrap_or_default();
        let limit = format!("the nonlinearity of \"{name}\"");
        return Err(reader.value_error("dense_act_fn", given, &limit, &agrees));
    }
    Ok((gated, activation))
}
